//! How many processes have a connection that is on TCP: one that several have does not go to the SAN, because each of
//! them may be in the middle of a system call on it.
//!
//! Counted in memory that a fork shares, from the first fork on. Where nobody can count (a program without the library,
//! a message, a process that was killed) it stays above one, and the connection on TCP.

use crate::switch::socket::{phase, Socket};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// The count of a socket, where there is one.
pub(in crate::switch) fn count(socket: &Socket) -> Option<&'static AtomicU32> {
    socket.holders.get()
}

/// A process is about to be forked, or somebody nobody will hear of again gets a descriptor. Structure lock.
pub(in crate::switch) fn add_holder(socket: &Socket) {
    if !matches!(socket.phase(), phase::FRESH | phase::TCP) {
        return;
    }
    match count(socket) {
        Some(count) => {
            count.fetch_add(1, SeqCst);
        }
        None if socket.holders.begin_with(2) => {}
        None => socket.set_phase(phase::NATIVE),
    }
}

/// The process that [`add_holder`] was for does not exist. Where its phase is another one since, the count stays: who has it may be on TCP.
pub(in crate::switch) fn remove_added(socket: &Socket) {
    if let Some(count) =
        count(socket).filter(|_| matches!(socket.phase(), phase::FRESH | phase::TCP))
    {
        take_one(count);
    }
}

/// One less, but not none: it may have been made since.
pub(in crate::switch) fn take_one(count: &AtomicU32) {
    let _ = count.fetch_update(SeqCst, SeqCst, |count| (count > 1).then(|| count - 1));
}

/// True if processes that have it are counted: there are, or were, several.
pub(in crate::switch) fn is_counted(socket: &Socket) -> bool {
    socket.holders.is_there()
}

/// This process has it no longer.
pub(in crate::switch) fn remove_holder(socket: &Socket) {
    if !is_counted(socket) {
        return;
    }
    if let Some(count) = socket.holders.take() {
        count.fetch_sub(1, SeqCst);
    }
}

/// True if other processes have it, or may have.
pub(in crate::switch) fn has_others(socket: &Socket) -> bool {
    count(socket).is_some_and(|count| count.load(SeqCst) > 1)
}
