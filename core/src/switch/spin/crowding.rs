//! Whether looking pays on a machine with more to do than processors. Who looks and yields waits behind those who compute,
//! for a time slice at worst; who sleeps is woken ahead of them, but each message has to wake somebody. Which is better
//! depends on who the others are: peers give a processor back soon, a compiler does not. So when a yield took a time slice
//! both ways are tried in turns, and the one with more transfers is kept for a while. One verdict for the process.

use crate::sys::time;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// A yield that took longer than this (ns) let somebody else have all of a time slice.
const SLICE: u64 = 500_000;
/// How long (ns) a way is tried at a time: several time slices.
const TURN: u64 = 20_000_000;
/// A turn that took longer (ns) was none: the process had nothing to do.
const LONGEST_TURN: u64 = 4 * TURN;
/// Turns of a trial, of looking and of sleeping.
const TURNS: u32 = 6;
/// How long (ns) a verdict holds; doubled each time that it is the same.
const FIRST_STAY: u64 = 640_000_000;
const LONGEST_STAY: u64 = 5_120_000_000;

/// States: threads look, and nobody counts; a turn of a trial; threads sleep; somebody changes the state.
const LOOKING: u32 = 0;
const TRIES_LOOKING: u32 = 1;
const TRIES_SLEEPING: u32 = 2;
const SLEEPING: u32 = 3;
const CHANGING: u32 = 4;

static CROWDING: Crowding = Crowding::new();

/// A transfer was made.
#[inline]
pub(in crate::switch) fn count_transfer() {
    CROWDING.count_transfer();
}

/// True if a thread that would look had better sleep at once.
#[inline]
pub(super) fn sleeps() -> bool {
    CROWDING.state.load(Relaxed) != LOOKING && CROWDING.sleeps(time::now())
}

/// True if sleeping was found to be better: nobody is awake to serve from shared memory.
pub(in crate::switch) fn is_crowded() -> bool {
    sleeps() && CROWDING.state.load(Relaxed) == SLEEPING
}

/// True while both ways are tried: what has to be woken now says nothing of later.
pub(in crate::switch) fn is_trying() -> bool {
    matches!(CROWDING.state.load(Relaxed), TRIES_LOOKING | TRIES_SLEEPING | CHANGING)
}

/// A yield took so long (ns).
#[inline]
pub(super) fn note_yield(took: u64, now: u64) {
    if took >= SLICE {
        CROWDING.try_both(now);
    }
}

/// In a fork child, which may have been made while another thread changed the state.
pub(in crate::switch) fn after_fork_in_child() {
    CROWDING.state.store(LOOKING, Relaxed);
}

/// What is known of it.
struct Crowding {
    state: AtomicU32,
    /// Clock (ns): when this turn began, and when it or the verdict ends.
    began: AtomicU64,
    until: AtomicU64,
    /// In this turn.
    transfers: AtomicU64,
    /// Turns that were, and the transfers per second of looking and of sleeping in them.
    turn: AtomicU32,
    rates: [AtomicU64; 2],
    /// How long (ns) the last verdict was to hold, and whether it was to sleep.
    stay: AtomicU64,
    verdict: AtomicU32,
}

impl Crowding {
    const fn new() -> Self {
        Crowding {
            state: AtomicU32::new(LOOKING),
            began: AtomicU64::new(0),
            until: AtomicU64::new(0),
            transfers: AtomicU64::new(0),
            turn: AtomicU32::new(0),
            rates: [const { AtomicU64::new(0) }; 2],
            stay: AtomicU64::new(0),
            verdict: AtomicU32::new(LOOKING),
        }
    }

    #[inline]
    fn count_transfer(&self) {
        if self.state.load(Relaxed) != LOOKING {
            self.transfers.fetch_add(1, Relaxed);
        }
    }

    /// Begins a trial, unless the last one's verdict holds.
    fn try_both(&self, now: u64) {
        if now >= self.until.load(Relaxed) {
            self.change(LOOKING, |_| {
                self.turn.store(0, Relaxed);
                for rate in &self.rates {
                    rate.store(0, Relaxed);
                }
                self.begin_turn(now, TRIES_LOOKING)
            });
        }
    }

    #[cold]
    fn sleeps(&self, now: u64) -> bool {
        let state = self.state.load(Acquire);
        if now >= self.until.load(Relaxed) {
            match state {
                SLEEPING => self.change(state, |_| LOOKING),
                TRIES_LOOKING | TRIES_SLEEPING => self.change(state, |way| self.end_turn(now, way)),
                _ => {}
            }
        }
        matches!(self.state.load(Relaxed), TRIES_SLEEPING | SLEEPING)
    }

    /// One thread alone changes the state; what belongs to it is published with it.
    fn change(&self, from: u32, to: impl FnOnce(u32) -> u32) {
        if self.state.compare_exchange(from, CHANGING, Acquire, Relaxed).is_ok() {
            self.state.store(to(from), Release);
        }
    }

    fn begin_turn(&self, now: u64, way: u32) -> u32 {
        self.transfers.store(0, Relaxed);
        self.began.store(now, Relaxed);
        self.until.store(now + TURN, Relaxed);
        way
    }

    fn end_turn(&self, now: u64, way: u32) -> u32 {
        let took = (now - self.began.load(Relaxed)).max(1);
        if took > LONGEST_TURN {
            return LOOKING;
        }
        let rate = self.transfers.load(Relaxed) * 1_000_000_000 / took;
        self.rates[(way == TRIES_SLEEPING) as usize].fetch_add(rate, Relaxed);
        if self.turn.fetch_add(1, Relaxed) + 1 < TURNS {
            return self.begin_turn(now, TRIES_LOOKING + TRIES_SLEEPING - way);
        }
        let [looking, sleeping] = self.rates.each_ref().map(|rate| rate.load(Relaxed));
        // Looking saves the peer's time as well, and what it costs others is theirs already.
        let verdict = if sleeping > looking + looking / 4 { SLEEPING } else { LOOKING };
        let is_same = self.verdict.swap(verdict, Relaxed) == verdict;
        let longer = if is_same { 2 * self.stay.load(Relaxed) } else { FIRST_STAY };
        let stay = longer.clamp(FIRST_STAY, LONGEST_STAY);
        self.stay.store(stay, Relaxed);
        self.until.store(now + stay, Relaxed);
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: u64 = 1_000_000;

    /// A trial with so many transfers in each turn of looking and of sleeping; how long (ms) the verdict holds that
    /// threads sleep.
    fn sleeps_after_trial(crowding: &Crowding, now: &mut u64, transfers: [u64; 2]) -> u64 {
        crowding.try_both(*now);
        for turn in 0..TURNS {
            assert_eq!(crowding.sleeps(*now), turn % 2 == 1, "turn {turn}");
            (0..transfers[turn as usize % 2]).for_each(|_| crowding.count_transfer());
            *now += TURN;
        }
        let since = *now;
        while crowding.sleeps(*now) {
            *now += MILLISECOND;
        }
        (*now - since) / MILLISECOND
    }

    #[test]
    fn the_way_with_more_transfers_is_kept_and_longer_each_time() {
        let (crowding, mut now) = (Crowding::new(), 1);
        assert!(!crowding.sleeps(now));
        let mut trial = |transfers| sleeps_after_trial(&crowding, &mut now, transfers);
        assert_eq!(trial([10, 20]), 640);
        assert_eq!(trial([10, 20]), 1280);
        assert_eq!(trial([10, 12]), 0, "hardly better");
        // That verdict holds, too.
        crowding.try_both(now);
        assert_eq!(crowding.state.load(Relaxed), LOOKING);
        now += FIRST_STAY;
        assert_eq!(sleeps_after_trial(&crowding, &mut now, [10, 20]), 640);
    }

    #[test]
    fn a_process_with_nothing_to_do_comes_to_no_verdict() {
        let (crowding, mut now) = (Crowding::new(), 1);
        crowding.try_both(now);
        now += LONGEST_TURN + 1;
        assert!(!crowding.sleeps(now));
        assert_eq!(crowding.state.load(Relaxed), LOOKING);
    }
}
