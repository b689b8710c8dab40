//! Looking for an event without sleeping, as long as that pays.
//!
//! A thread never looks on one processor alone without yielding, never for long, and hardly at all where that did not
//! pay off lately: an idle program uses no processor time. New connections begin with what finished ones learnt: those
//! made for one request would never learn anything else.

mod shortage;
mod turn;

pub(in crate::switch) use turn::{begin_turn, give_way};

use crate::sys::{process, time};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Longest spin (ns). Set by [`initialize`]; the default is the configuration's.
static LIMIT: AtomicU64 = AtomicU64::new(0);
/// Most looks in a row without a yield here; zero with a single processor.
static LOOKS_BEFORE_YIELD: AtomicU32 = AtomicU32::new(0);

/// Looks without a yield while both ends have a processor of their own: some 10 µs.
const MOST_LOOKS: u32 = 1024;
/// As few when they share one.
const FEWEST_LOOKS: u32 = 8;
/// Above this score a thread uses the whole limit, and below it no thread yields.
const NEUTRAL_SCORE: i32 = 0;
const HIGHEST_SCORE: i32 = 8;
const LOWEST_SCORE: i32 = -16;
/// Share of the limit used while spinning does not pay: enough to notice when it would at once.
const PROBE_SHARE: u64 = 16;
/// One in so many of these tries uses the whole limit. Otherwise no thread would notice that a later event comes while
/// the limit lasts.
const LONG_PROBE_EVERY: u32 = 4;
/// The same where each of many places tries.
const LONG_PROBE_AMONG_MANY: u32 = 16;
/// A yield that took longer than this (ns) let another thread work.
const SHARED_YIELD: u64 = 1_000;
/// The rest of a longer one (ns) was the time of others, which this thread could not have used better.
const OWN_PART: u64 = 2_000;
/// Longest spin (ns) with what others do meanwhile: the kernel's own descriptors wait, too.
const LONGEST_IN_ALL: u64 = 1_000_000;

/// Sets the longest spin, in nanoseconds; zero switches spinning off.
pub(in crate::switch) fn initialize(limit: u64) {
    LIMIT.store(limit, Ordering::Relaxed);
    let looks = if process::processors_online() > 1 { MOST_LOOKS } else { 0 };
    LOOKS_BEFORE_YIELD.store(looks, Ordering::Relaxed);
}

/// False: no thread looks, so the kernel gives each thread its turn.
fn is_on() -> bool {
    LIMIT.load(Ordering::Relaxed) != 0
}

/// True with a single processor: no other thread gets on while this one looks.
pub(in crate::switch) fn is_alone() -> bool {
    LOOKS_BEFORE_YIELD.load(Ordering::Relaxed) == 0
}

/// What earlier spins at one place taught.
#[derive(Debug)]
pub(crate) struct History {
    /// Above zero: spinning pays.
    score: AtomicI32,
    /// Looks before the first yield.
    budget: AtomicU32,
    /// Tries while spinning did not pay.
    probes: AtomicU32,
}

impl History {
    /// Nothing learnt yet.
    pub(crate) const fn new() -> Self {
        Self::of(NEUTRAL_SCORE)
    }

    const fn of(score: i32) -> Self {
        Self {
            score: AtomicI32::new(score),
            budget: AtomicU32::new(MOST_LOOKS / 4),
            probes: AtomicU32::new(0),
        }
    }

    /// Nothing learnt yet, of a place where the event is expected at once.
    pub(crate) const fn hopeful() -> Self {
        Self::of(NEUTRAL_SCORE + 1)
    }

    /// A try while spinning does not pay: true if it is to use the whole limit, as one of `every` does.
    fn probes_long(&self, every: u32) -> bool {
        let probes = self.probes.load(Ordering::Relaxed).wrapping_add(1);
        self.probes.store(probes, Ordering::Relaxed);
        probes.is_multiple_of(every)
    }

    /// A connection begins, and knows what `others` learnt.
    pub(crate) fn begin_with(&self, others: &History) {
        self.score.store(NEUTRAL_SCORE, Ordering::Relaxed);
        let known =
            if others.pays() { others.budget.load(Ordering::Relaxed) } else { MOST_LOOKS / 4 };
        self.budget.store(known, Ordering::Relaxed);
    }

    fn pays(&self) -> bool {
        self.score.load(Ordering::Relaxed) > NEUTRAL_SCORE
    }

    /// One of many places, each with a history of its own, spun for the whole limit, and found its event or not.
    fn learn_from(&self, one: &History, found: bool) {
        let score = self.score.load(Ordering::Relaxed);
        let learnt = if found { score + 1 } else { score - 1 };
        self.score.store(learnt.clamp(NEUTRAL_SCORE, HIGHEST_SCORE), Ordering::Relaxed);
        if found {
            self.budget.store(one.budget.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// As [`spin`], at one of many places of a kind. Each is waited at too seldom to learn alone, so it also learns from `others`.
#[inline]
pub(in crate::switch) fn spin_among(
    history: &History,
    others: &History,
    budget: u64,
    ready: impl FnMut() -> bool,
) -> bool {
    let mut is_whole = history.pays();
    let tries_whole = || {
        is_whole = others.pays() || others.probes_long(LONG_PROBE_AMONG_MANY);
        is_whole
    };
    let found = spin_for(history, budget, ready, tries_whole);
    if is_whole {
        others.learn_from(history, found);
    }
    found
}

/// Looks until `ready`, at most the time that is worth it and at most `budget` nanoseconds.
#[inline]
pub(in crate::switch) fn spin(history: &History, budget: u64, ready: impl FnMut() -> bool) -> bool {
    spin_for(history, budget, ready, || history.probes_long(LONG_PROBE_EVERY))
}

/// `tries_whole`: while spinning does not pay, says whether this try uses the whole limit.
#[inline]
fn spin_for(
    history: &History,
    budget: u64,
    mut ready: impl FnMut() -> bool,
    tries_whole: impl FnOnce() -> bool,
) -> bool {
    let limit = LIMIT.load(Ordering::Relaxed).min(budget);
    let in_all = budget.min(LONGEST_IN_ALL.max(limit));
    if limit == 0 || shortage::look() {
        return ready();
    }
    let score = history.score.load(Ordering::Relaxed);
    if score < NEUTRAL_SCORE {
        // The thread does not look this time: a look in vain costs more than the ring that it would save.
        history.score.store(score + 1, Ordering::Relaxed);
        return ready();
    }
    let budget = history.budget.load(Ordering::Relaxed);
    let most = LOOKS_BEFORE_YIELD.load(Ordering::Relaxed);
    let looks = if score > NEUTRAL_SCORE { budget.min(most) } else { (budget / 4).min(most) };
    for _ in 0..looks {
        if ready() {
            if budget < MOST_LOOKS {
                history.budget.store(budget + 1, Ordering::Relaxed);
            }
            if score < HIGHEST_SCORE {
                history.score.store(improved(score), Ordering::Relaxed);
            }
            shortage::note_success();
            give_way();
            return true;
        }
        std::hint::spin_loop();
    }
    let own = if score > NEUTRAL_SCORE || tries_whole() { limit } else { limit / PROBE_SHARE };
    spin_yielding(history, Longest { own, in_all }, ready)
}

fn improved(score: i32) -> i32 {
    // Quick to believe in spinning again, slow to give it up.
    if score < NEUTRAL_SCORE {
        score / 2
    } else {
        (score + 1).min(HIGHEST_SCORE)
    }
}

/// How long (ns) a spin takes at most: of this thread's own time, and with what others do meanwhile.
struct Longest {
    own: u64,
    in_all: u64,
}

/// The slower half: lets others have the processor between looks.
fn spin_yielding(history: &History, longest: Longest, mut ready: impl FnMut() -> bool) -> bool {
    let score = history.score.load(Ordering::Relaxed);
    let start = time::now();
    let (mut before, mut own, mut waited_long) = (start, 0, false);
    loop {
        process::yield_now();
        let found = ready();
        let now = time::now();
        let took = now - before;
        waited_long |= shortage::note_yield(took, now);
        if found {
            if !waited_long {
                shortage::note_no_long_yield();
            }
            let budget = history.budget.load(Ordering::Relaxed);
            let learnt = if took > SHARED_YIELD {
                // It was the yield that let the peer work: yield sooner.
                (budget / 2).max(FEWEST_LOOKS)
            } else {
                (budget + budget / 4).min(MOST_LOOKS)
            };
            history.budget.store(learnt, Ordering::Relaxed);
            history.score.store(improved(score), Ordering::Relaxed);
            return true;
        }
        own += took.min(OWN_PART);
        if own >= longest.own || now - start >= longest.in_all {
            // Where it did not pay before either: not for a while.
            let learnt = if score == NEUTRAL_SCORE { LOWEST_SCORE } else { score - 1 };
            history.score.store(learnt, Ordering::Relaxed);
            return false;
        }
        before = now;
        for _ in 0..FEWEST_LOOKS.min(LOOKS_BEFORE_YIELD.load(Ordering::Relaxed)) {
            if ready() {
                history.score.store(improved(score), Ordering::Relaxed);
                return true;
            }
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_tries_use_the_whole_limit_and_the_first_does_not() {
        let history = History::new();
        let long: Vec<_> = (0..8).filter(|_| history.probes_long(4)).collect();
        assert_eq!(long, [3, 7]);
    }

    #[test]
    fn places_learn_from_each_other() {
        let (others, place) = (History::hopeful(), History::new());
        others.learn_from(&place, false);
        assert!(!others.pays(), "in vain at one, before it paid anywhere");
        for _ in 0..3 {
            others.learn_from(&place, true);
        }
        others.learn_from(&place, false);
        assert!(others.pays(), "in vain at one of many");
        while others.pays() {
            others.learn_from(&place, false);
        }
        assert!(others.score.load(Ordering::Relaxed) == NEUTRAL_SCORE);
    }
}
