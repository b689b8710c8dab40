//! Descriptors of our own in the program's table: high numbers, close-on-exec, and known, so that
//! a program that closes everything it does not know leaves them alone.

use super::{file, Fd};
use std::sync::atomic::{AtomicU64, Ordering};

const LIMIT: usize = 1 << 16;
static KEPT: [AtomicU64; LIMIT / 64] = [const { AtomicU64::new(0) }; LIMIT / 64];

fn bit(fd: Fd) -> Option<(&'static AtomicU64, u64)> {
    let at = usize::try_from(fd).ok().filter(|at| *at < LIMIT)?;
    Some((&KEPT[at / 64], 1 << (at % 64)))
}

/// Moves a descriptor out of the program's way and remembers it.
pub fn keep(fd: Fd) -> Fd {
    let fd = file::move_high(fd);
    if let Some((word, bit)) = bit(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
    fd
}

/// True if `fd` is one of ours.
#[inline]
pub fn is_hidden(fd: Fd) -> bool {
    bit(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// The program took the number over (dup2): it is not ours any more.
pub fn forget(fd: Fd) {
    if let Some((word, bit)) = bit(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Closes one of ours, unless the program took its number over.
pub fn close(fd: Fd) {
    if is_hidden(fd) || bit(fd).is_none() {
        forget(fd);
        file::close(fd);
    }
}

/// Closes a descriptor that was received and perhaps kept.
pub fn close_any(fd: Fd) {
    forget(fd);
    file::close(fd);
}
