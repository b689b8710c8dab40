//! Futexes, shared between processes.

use super::{call, time, Result};
use std::sync::atomic::AtomicU32;

/// Sleeps while `word` is `value`, at most `nanoseconds`.
pub(crate) fn wait(word: &AtomicU32, value: u32, nanoseconds: u64) -> Result<()> {
    let t = time::timespec(nanoseconds);
    call!(futex, word.as_ptr() as usize, libc::FUTEX_WAIT, value, &t as *const _ as usize, 0, 0)
        .map(drop)
}

/// Wakes up to `count` sleepers on `word`.
pub(crate) fn wake(word: &AtomicU32, count: u32) {
    let _ = call!(futex, word.as_ptr() as usize, libc::FUTEX_WAKE, count, 0, 0, 0);
}
