//! Threads that share a processor and look for messages take turns. A thread that always finds some would keep the
//! processor for a whole time slice. The threads that wait for it, or for its peer, would wait as long. So it yields
//! now and then although it has work. It does not yield to a thread that never gives the processor back: that would
//! cost a slice each time.

use super::{is_on, shortage};
use crate::sys::{process, time};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How long (ticks, some 100 µs) threads work without a yield.
const TURN: u64 = 300_000;
/// A yield that took this long (ns) let another thread have all of a time slice.
const SLICE: u64 = 2_000_000;
/// The same (some 12 ms) after a yield to a thread that took a whole slice.
const TURN_AFTER_SLICE: u64 = 120 * TURN;

static TURNS: Turns = Turns { end: AtomicU64::new(0) };

/// A thread that spins, or waits for one of many, found something to do. Yields if its turn is over.
#[inline]
pub(in crate::switch) fn give_way() {
    if TURNS.is_over(time::ticks()) && is_on() {
        let before = time::now();
        process::yield_now();
        let now = time::now();
        if !shortage::note_yield(now - before, now) {
            shortage::note_no_long_yield();
        }
        TURNS.begin(time::ticks(), now - before);
    }
}

/// A thread comes from a sleep: others have had the processor.
#[inline]
pub(in crate::switch) fn begin_turn() {
    TURNS.begin(time::ticks(), 0);
}

/// One for all threads of the process: a word of each would cost more to find than it is worth.
struct Turns {
    /// Clock (ticks).
    end: AtomicU64,
}

impl Turns {
    #[inline]
    fn is_over(&self, now: u64) -> bool {
        now >= self.end.load(Relaxed)
    }

    /// Begins a turn after a yield that took so long (ns).
    fn begin(&self, now: u64, took: u64) {
        let turn = if took >= SLICE { TURN_AFTER_SLICE } else { TURN };
        self.end.store(now + turn, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_longer_after_somebody_took_a_slice() {
        let turns = Turns { end: AtomicU64::new(0) };
        let length = |began: u64| (1..).map(|n| n * TURN).find(|&n| turns.is_over(began + n));
        turns.begin(TURN, 1_000);
        assert_eq!(length(TURN), Some(TURN));
        turns.begin(0, 3_000_000);
        assert_eq!(length(0), Some(TURN_AFTER_SLICE));
    }
}
