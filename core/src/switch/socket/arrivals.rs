//! When connections last came to this process in a message. How they do is [`handing_on`](crate::switch::handing_on)'s.

use crate::sys::time;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Clock (ns) of the last arrival; zero: none.
static LAST: AtomicU64 = AtomicU64::new(0);

/// True if this process got a connection in a message: both ends of one may be its own, whoever made it.
pub(in crate::switch) fn has_any() -> bool {
    LAST.load(Relaxed) != 0
}

/// How long (ns) after an arrival a process that found the message in the queue as well may still be about to
/// bring its connections back to TCP .
const IN_DOUBT: u64 = 1_000_000_000;

/// How long (ns) to sleep meanwhile.
const SLICE: u64 = 10_000_000;

/// Longest sleep on a connection for now: where both ends are this process's, no doorbell tells a thread that
/// sleeps on the one that another process left the SAN there, and that it is the other end's turn.
pub(in crate::switch) fn slice() -> Option<u64> {
    let last = LAST.load(Relaxed);
    (last != 0 && time::now() - last < IN_DOUBT).then_some(SLICE)
}

/// One came now.
pub(in crate::switch) fn note() {
    LAST.store(time::now(), Relaxed);
}
