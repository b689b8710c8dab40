//! Looking for an event without sleeping, as long as that pays.
//!
//! Never on one processor alone without yielding, never for long, and hardly at all where it did
//! not pay off lately: an idle program uses no processor time.

use crate::sys::{process, time};
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

static LIMIT: AtomicU64 = AtomicU64::new(50_000);
static PROCESSORS: AtomicUsize = AtomicUsize::new(1);

/// Score above which the whole limit is used.
const PAYS: i32 = 0;
const BEST: i32 = 8;
const WORST: i32 = -16;
/// Share of the limit used while spinning does not pay: enough to notice when it would.
const PROBE: u64 = 16;
/// A yield that took longer than this (ns) let somebody else work.
const LONG_YIELD: u64 = 20_000;

/// Sets the longest spin, in nanoseconds; zero switches spinning off.
pub fn initialize(limit: u64) {
    LIMIT.store(limit, Ordering::Relaxed);
    PROCESSORS.store(process::processors(), Ordering::Relaxed);
}

/// Looks until `ready`, at most the time that is worth it and at most `budget` nanoseconds.
/// `score` remembers how it went.
#[inline]
pub fn spin(score: &AtomicI32, budget: u64, mut ready: impl FnMut() -> bool) -> bool {
    let limit = LIMIT.load(Ordering::Relaxed).min(budget);
    if limit == 0 {
        return ready();
    }
    let before = score.load(Ordering::Relaxed);
    let limit = if before > PAYS { limit } else { limit / PROBE };
    if PROCESSORS.load(Ordering::Relaxed) > 1 {
        for _ in 0..64 {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
    }
    let start = time::now();
    let mut before_yield = start;
    let found = loop {
        process::yield_now();
        if ready() {
            break true;
        }
        let now = time::now();
        if now - start >= limit || now - before_yield >= LONG_YIELD {
            break false;
        }
        before_yield = now;
        if PROCESSORS.load(Ordering::Relaxed) > 1 {
            for _ in 0..32 {
                if ready() {
                    score.store((before + 1).min(BEST), Ordering::Relaxed);
                    return true;
                }
                std::hint::spin_loop();
            }
        }
    };
    // Quick to believe in spinning again, slow to give it up.
    let after = match (found, before < 0) {
        (true, true) => before / 2,
        (true, false) => before + 1,
        (false, _) => before - 1,
    };
    score.store(after.clamp(WORST, BEST), Ordering::Relaxed);
    found
}
