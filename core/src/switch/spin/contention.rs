//! Whether looking pays on a machine with more to do than processors. Who looks and yields waits behind those who compute,
//! for a time slice at worst; who sleeps is woken ahead of them, but each message has to wake somebody. Which is better
//! depends on who the others are: peers give a processor back soon, a compiler does not. So when a yield took a time slice
//! both ways are tried in turns, and the one with more transfers is kept for a while. One verdict for the process.

use crate::sys::time;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// A yield that took this long (ns) let somebody else have all of a time slice.
const SLICE: u64 = 2_000_000;
/// How long (ns) a way is tried at a time: several time slices.
const TRIAL_TURN: u64 = 20_000_000;
/// A turn that took longer (ns) was none, and comes again: the process had nothing to do.
const LONGEST_TURN: u64 = 4 * TRIAL_TURN;
/// Turns of a trial, of sleeping and of looking.
const TURNS: u32 = 6;
/// A trial that takes longer (ns) is given up,
const LONGEST_TRIAL: u64 = 10_000_000_000;
/// and one with fewer transfers in all says nothing.
const FEWEST_TRANSFERS: u64 = 64;
/// How long (ns) a verdict holds; doubled each time that it is the same.
const FIRST_STAY: u64 = 640_000_000;
const LONGEST_STAY: u64 = 5_120_000_000;

/// States: threads look, and nobody counts; a turn of a trial; threads sleep; somebody changes the state.
const LOOKING: u32 = 0;
const TRYING: u32 = 1;
const SLEEPING: u32 = 2;
const CHANGING: u32 = 3;

#[link_section = "sanshim_words"]
static CONTENTION: Contention = Contention::new();

/// A transfer was made.
#[inline]
pub(in crate::switch) fn count_transfer() {
    CONTENTION.count_transfer();
}

/// True if a thread that would look had better sleep at once.
#[inline]
pub(super) fn sleeps() -> bool {
    CONTENTION.state.load(Relaxed) != LOOKING && CONTENTION.sleeps(time::now())
}

/// True if sleeping was found to be better: nobody is awake to serve from shared memory.
pub(in crate::switch) fn prefers_sleep() -> bool {
    sleeps() && CONTENTION.state.load(Relaxed) == SLEEPING
}

/// True while both ways are tried: what has to be woken now says nothing of later.
pub(in crate::switch) fn is_trying() -> bool {
    CONTENTION.state.load(Relaxed) == TRYING
}

/// A yield took so long (ns).
#[inline]
pub(super) fn note_yield(took: u64, now: u64) {
    if is_slice(took) {
        CONTENTION.try_both(now);
    }
}

/// True of how long (ns) a yield took.
#[inline]
pub(super) fn is_slice(took: u64) -> bool {
    took >= SLICE
}

/// In a fork child, which may have been made while another thread changed the state.
pub(in crate::switch) fn after_fork_in_child() {
    CONTENTION.until.store(0, Relaxed);
    CONTENTION.state.store(LOOKING, Relaxed);
}

/// What is known of it. First what every transfer looks at.
#[repr(C)]
struct Contention {
    state: AtomicU32,
    /// Clock (ns): when the trial and its turn began, and when the turn or the verdict ends.
    trial_began: AtomicU64,
    turn_began: AtomicU64,
    until: AtomicU64,
    /// Turns that were: in every second one threads look, in the others they sleep.
    turn: AtomicU32,
    /// In this turn.
    transfers: AtomicU64,
    /// Of sleeping and of looking: transfers, and how long (ns) it was tried.
    sums: [(AtomicU64, AtomicU64); 2],
    /// How long (ns) the last verdict was to hold, and what it was.
    stay: AtomicU64,
    verdict: AtomicU32,
}

impl Contention {
    const fn new() -> Self {
        Contention {
            state: AtomicU32::new(LOOKING),
            trial_began: AtomicU64::new(0),
            turn_began: AtomicU64::new(0),
            until: AtomicU64::new(0),
            turn: AtomicU32::new(0),
            transfers: AtomicU64::new(0),
            sums: [const { (AtomicU64::new(0), AtomicU64::new(0)) }; 2],
            stay: AtomicU64::new(0),
            verdict: AtomicU32::new(LOOKING),
        }
    }

    #[inline]
    fn count_transfer(&self) {
        if self.state.load(Relaxed) == TRYING {
            self.transfers.fetch_add(1, Relaxed);
        }
    }

    /// Begins a trial, unless the last one's verdict holds.
    fn try_both(&self, now: u64) {
        if now >= self.until.load(Relaxed) {
            self.change(LOOKING, || {
                for (transfers, time) in &self.sums {
                    transfers.store(0, Relaxed);
                    time.store(0, Relaxed);
                }
                self.turn.store(0, Relaxed);
                self.trial_began.store(now, Relaxed);
                self.begin_turn(now)
            });
        }
    }

    #[cold]
    fn sleeps(&self, now: u64) -> bool {
        let state = self.state.load(Acquire);
        if now >= self.until.load(Relaxed) {
            match state {
                SLEEPING => self.change(SLEEPING, || LOOKING),
                TRYING => self.change(TRYING, || self.end_turn(now)),
                _ => {}
            }
        }
        match self.state.load(Acquire) {
            TRYING => self.turn.load(Relaxed).is_multiple_of(2),
            state => state == SLEEPING,
        }
    }

    /// One thread alone changes the state; what belongs to it is published with it.
    fn change(&self, from: u32, to: impl FnOnce() -> u32) {
        if self.state.compare_exchange(from, CHANGING, Acquire, Relaxed).is_ok() {
            self.state.store(to(), Release);
        }
    }

    fn begin_turn(&self, now: u64) -> u32 {
        self.transfers.store(0, Relaxed);
        self.turn_began.store(now, Relaxed);
        self.until.store(now + TRIAL_TURN, Relaxed);
        TRYING
    }

    fn end_turn(&self, now: u64) -> u32 {
        // Another thread may have ended it meanwhile.
        let took = now.saturating_sub(self.turn_began.load(Relaxed));
        if now.saturating_sub(self.trial_began.load(Relaxed)) > LONGEST_TRIAL {
            return LOOKING;
        }
        if !(TRIAL_TURN..=LONGEST_TURN).contains(&took) {
            return self.begin_turn(now);
        }
        let turn = self.turn.load(Relaxed);
        let (transfers, time) = &self.sums[turn as usize % 2];
        transfers.fetch_add(self.transfers.load(Relaxed), Relaxed);
        time.fetch_add(took, Relaxed);
        self.turn.store(turn + 1, Relaxed);
        if turn + 1 < TURNS {
            return self.begin_turn(now);
        }
        self.judge(now)
    }

    fn judge(&self, now: u64) -> u32 {
        let sums = self.sums.each_ref().map(|(n, time)| (n.load(Relaxed), time.load(Relaxed)));
        let [(slept, sleeping), (looked, looking)] = sums;
        let rate = |transfers, time| u128::from(transfers) * 1_000_000_000 / u128::from(time);
        // Looking costs less processor time, at both ends; and who sleeps while others look gains at their cost.
        let is_better = rate(slept, sleeping) > rate(looked, looking) * 2;
        let is_known = slept + looked >= FEWEST_TRANSFERS;
        let verdict = if is_better && is_known { SLEEPING } else { LOOKING };
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

    /// A trial with so many transfers in each turn of sleeping and of looking; how long (ms) the verdict holds that
    /// threads sleep.
    fn sleeps_after_trial(contention: &Contention, now: &mut u64, transfers: [u64; 2]) -> u64 {
        contention.try_both(*now);
        for turn in 0..TURNS {
            assert_eq!(contention.sleeps(*now), turn % 2 == 0, "turn {turn}");
            (0..transfers[turn as usize % 2]).for_each(|_| contention.count_transfer());
            *now += TRIAL_TURN;
        }
        let since = *now;
        while contention.sleeps(*now) {
            *now += MILLISECOND;
        }
        (*now - since) / MILLISECOND
    }

    #[test]
    fn the_way_with_more_transfers_is_kept_and_longer_each_time() {
        let (contention, mut now) = (Contention::new(), 1);
        assert!(!contention.sleeps(now));
        let mut trial = |transfers| sleeps_after_trial(&contention, &mut now, transfers);
        assert_eq!(trial([190, 100]), 0, "hardly better");
        now += FIRST_STAY;
        let mut trial = |transfers| sleeps_after_trial(&contention, &mut now, transfers);
        assert_eq!(trial([210, 100]), 640);
        assert_eq!(trial([210, 100]), 1280);
        assert_eq!(trial([4, 0]), 0, "few transfers say nothing");
        // That verdict holds, too.
        contention.try_both(now);
        assert_eq!(contention.state.load(Relaxed), LOOKING);
        now += FIRST_STAY;
        assert_eq!(sleeps_after_trial(&contention, &mut now, [210, 100]), 640);
    }

    #[test]
    fn a_turn_in_which_the_process_had_nothing_to_do_comes_again() {
        let (contention, mut now) = (Contention::new(), 1);
        contention.try_both(now);
        for _ in 0..10 {
            now += LONGEST_TURN + 1;
            assert!(contention.sleeps(now));
        }
        assert_eq!(contention.turn.load(Relaxed), 0);
        now += LONGEST_TRIAL;
        assert!(!contention.sleeps(now), "given up");
        assert_eq!(contention.state.load(Relaxed), LOOKING);
    }
}
