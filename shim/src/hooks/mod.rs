//! The hooks, by area.

mod addresses;
mod asynchronous;
mod batches;
mod commands;
mod descriptor;
mod file_actions;
mod fortified;
pub(crate) mod jumps;
mod kernel_waits;
mod libraries;
pub(crate) mod lookups;
mod message;
mod namespaces;
mod options;
mod process;
mod readiness;
mod rings;
mod setup;
mod signals;
mod stdio;
mod submitted;
mod syscall;
mod transfer;
mod users;

use sanshim_core::switch::Outcome;
use sanshim_core::sys::{errno, user, Errno, Result};

/// A result of the core as libc returns it.
#[inline]
pub(crate) fn returned(result: Result<usize>) -> isize {
    match result {
        Ok(n) => n as isize,
        Err(Errno(e)) => {
            errno::set(e);
            -1
        }
    }
}

/// What libc returned, as a result of the core's kind.
#[inline]
pub(crate) fn as_result(n: isize) -> Result<usize> {
    usize::try_from(n).map_err(|_| Errno(errno::get()))
}

/// The result of the core as libc returns it. If the core passed, libc's own.
#[inline]
pub(crate) fn or_real(outcome: Outcome, real: impl FnOnce() -> isize) -> isize {
    match outcome {
        Outcome::Pass => real(),
        Outcome::Done(result) => returned(result),
    }
}

/// A time-out in milliseconds as nanoseconds. `None`, for a negative one, waits for ever.
pub(crate) fn milliseconds(timeout: i32) -> Option<u64> {
    u64::try_from(timeout).ok().map(|ms| ms * 1_000_000)
}

/// A timespec as nanoseconds. `None`, for null, waits for ever. `Err` if the time is not valid, or cannot be read.
pub(crate) fn timespec(at: *const libc::timespec) -> Result<Option<u64>> {
    if at.is_null() {
        return Ok(None);
    }
    let t = user::read(at)?;
    if t.tv_sec < 0 || !(0..1_000_000_000).contains(&t.tv_nsec) {
        return Err(Errno(libc::EINVAL));
    }
    Ok(Some((t.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_nsec as u64)))
}
