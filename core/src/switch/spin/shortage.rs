//! Whether processors are short. A thread that looks for a message and yields meanwhile waits behind threads that
//! compute, for a time slice at worst. The kernel wakes a sleeping thread ahead of those. So once a yield took long,
//! the process's threads sleep at once for a while, and then look again.
//!
//! It does not matter who has the processor: another program, a guest of the same host, or nobody, where a cgroup has
//! used its share up.

use crate::sys::time;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A yield that took so long (ns) gave the processor to a thread that computes. The kernel lets such a thread have the
/// processor for longer at a time.
const VERY_LONG: u64 = 500_000;
/// Two yields that took so long (ns) show the same, if no thread found its message without one in between. A peer's
/// answer seldom takes as long.
const LONG: u64 = 100_000;
/// How long (ns) threads sleep at once afterwards; doubled each time that looking again shows the same.
const FIRST_STAY: u64 = 4_000_000;
const LONGEST_STAY: u64 = 512_000_000;

#[link_section = "sanshim_words"]
static SHORTAGE: Shortage = Shortage::new();

/// True if a thread that would look had better sleep at once.
#[inline]
pub(super) fn look() -> bool {
    let until = SHORTAGE.until.load(Relaxed);
    until != 0 && SHORTAGE.end_if_over(time::now())
}

/// A yield took so long (ns). It is `now` (clock, ns). True if that is long.
#[inline]
pub(super) fn note_yield(took: u64, now: u64) -> bool {
    let is_long = took >= LONG;
    if is_long {
        SHORTAGE.note_long(took, now);
    }
    is_long
}

/// A thread found its message, or goes on with its work, and no yield was long.
#[inline]
pub(super) fn note_no_long_yield() {
    SHORTAGE.trust();
}

/// A look paid off without a long yield.
#[inline]
pub(super) fn note_success() {
    SHORTAGE.trust();
    if SHORTAGE.stay.load(Relaxed) != 0 {
        SHORTAGE.stay.store(SHORTAGE.stay.load(Relaxed) / 2, Relaxed);
    }
}

/// One verdict for the process. Threads write past each other: at worst it lasts a little longer, or shorter.
struct Shortage {
    /// Clock (ns); zero: there is none.
    until: AtomicU64,
    /// How long (ns) the last one lasted, as far as that still counts.
    stay: AtomicU64,
    /// A yield was long, and no thread has found its message without one since.
    is_suspected: AtomicBool,
}

impl Shortage {
    const fn new() -> Self {
        Shortage {
            until: AtomicU64::new(0),
            stay: AtomicU64::new(0),
            is_suspected: AtomicBool::new(false),
        }
    }

    /// A yield took so long (ns).
    #[cold]
    fn note_long(&self, took: u64, now: u64) {
        if self.is_suspected.swap(true, Relaxed) || took >= VERY_LONG {
            self.begin(now);
        }
    }

    #[inline]
    fn trust(&self) {
        if self.is_suspected.load(Relaxed) {
            self.is_suspected.store(false, Relaxed);
        }
    }

    #[cold]
    fn begin(&self, now: u64) {
        let stay = (2 * self.stay.load(Relaxed)).clamp(FIRST_STAY, LONGEST_STAY);
        self.stay.store(stay, Relaxed);
        self.until.store(now + stay, Relaxed);
    }

    /// Ends it if it is over; true if it is not.
    #[cold]
    fn end_if_over(&self, now: u64) -> bool {
        let lasts = now < self.until.load(Relaxed);
        if !lasts {
            self.until.store(0, Relaxed);
        }
        lasts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_lasts_longer_each_time_that_it_is_found_again() {
        let shortage = Shortage::new();
        let mut now = 1;
        let mut lasted = || {
            let began = now;
            shortage.begin(now);
            while shortage.end_if_over(now) {
                now += FIRST_STAY / 4;
            }
            now - began
        };
        assert_eq!(lasted(), FIRST_STAY);
        assert_eq!(lasted(), 2 * FIRST_STAY);
        for _ in 0..10 {
            lasted();
        }
        assert_eq!(lasted(), LONGEST_STAY);
        assert_eq!(shortage.until.load(Relaxed), 0);
    }

    #[test]
    fn a_slice_shows_it_and_two_long_yields_do() {
        let shortage = Shortage::new();
        let lasts = |now| shortage.until.load(Relaxed) > now;
        shortage.note_long(LONG, 1);
        assert!(!lasts(1));
        shortage.trust();
        shortage.note_long(LONG, 2);
        assert!(!lasts(2), "a thread found its message without a long yield in between");
        shortage.note_long(LONG, 3);
        assert!(lasts(3));
        let shortage = Shortage::new();
        shortage.note_long(VERY_LONG, 1);
        assert!(shortage.until.load(Relaxed) > 1);
    }
}
