//! When this process last did something through the kernel that makes a descriptor of another process ready: an
//! *action*. Peers learn of it with what the process sends next over the SAN (`switch::stream::order`), so that they
//! see the action first.
//!
//! Times are ticks of the clock, which all processes of a host have in common. The process notes nothing before its
//! first connection comes to the SAN.

use super::time;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The last action of the program's. Zero: no connection has come to the SAN.
#[link_section = "sanshim_words"]
static ACTED: AtomicU64 = AtomicU64::new(0);
/// The last ring of a peer's bell.
#[link_section = "sanshim_words"]
static RANG: AtomicU64 = AtomicU64::new(0);

/// The times (ticks) of a process's last action, and of its last ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) acted: u64,
    pub(crate) rang: u64,
}

impl Times {
    /// Behind all others.
    pub(crate) const MAX: Times = Times { acted: u64::MAX, rang: u64::MAX };
}

/// A connection comes to the SAN: the process notes actions from now on. Earlier actions count as done now.
pub(crate) fn begin() {
    ACTED.fetch_max(time::ticks(), Relaxed);
}

/// Notes an action that has been done.
#[inline(always)]
pub fn note() {
    if ACTED.load(Relaxed) != 0 {
        note_now();
    }
}

#[inline(never)]
#[link_section = "sanshim_path"]
fn note_now() {
    ACTED.fetch_max(time::ticks(), Relaxed);
}

/// Notes that a call with this result was an action.
#[inline(always)]
pub fn done<T>(result: T) -> T {
    note();
    result
}

/// A peer's bell has been rung.
pub(crate) fn note_ring() {
    RANG.fetch_max(time::ticks(), Relaxed);
}

/// The last ones of this process.
#[inline(always)]
pub(crate) fn last() -> Times {
    Times { acted: ACTED.load(Relaxed), rang: RANG.load(Relaxed) }
}
