//! How many processes have a connection that is on TCP: one that several have does not go to the SAN, because each of
//! them may be in the middle of a system call on it.
//!
//! Counted in memory that a fork shares, from the first fork on. Where nobody can count (a program without the library,
//! a message, a process that was killed) it stays above one, and the connection on TCP.

use crate::switch::socket::{phase, Socket};
use crate::sys::{file, PAGE};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::Relaxed, Ordering::SeqCst};

/// Counts in a piece of memory; the first word says how many are in use.
const COUNTS: u32 = (PAGE / size_of::<AtomicU32>()) as u32;

/// Where the next count is taken from. A fork child goes on with its parent's, whose first word they share.
static PIECE: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// A new count, which is never used again. Structure lock.
fn allocate() -> Option<&'static AtomicU32> {
    loop {
        let piece = PIECE.load(Relaxed);
        if !piece.is_null() {
            // SAFETY: a page of counts, which is never unmapped.
            let next = unsafe { (*piece).fetch_add(1, SeqCst) } + 1;
            if next < COUNTS {
                // SAFETY: within the page.
                return Some(unsafe { &*piece.add(next as usize) });
            }
        }
        PIECE.store(file::map_shared(None, PAGE).ok()?.cast(), Relaxed);
    }
}

/// The count of a socket, where there is one.
pub(in crate::switch) fn count(socket: &Socket) -> Option<&'static AtomicU32> {
    // SAFETY: counts are never unmapped.
    unsafe { socket.holders.load(Relaxed).as_ref() }
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
        None => match allocate() {
            Some(count) => {
                count.store(2, SeqCst);
                socket.holders.store(std::ptr::from_ref(count).cast_mut(), Relaxed);
            }
            None => socket.set_phase(phase::NATIVE),
        },
    }
}

/// True if processes that have it are counted: there are, or were, several.
pub(in crate::switch) fn is_counted(socket: &Socket) -> bool {
    !socket.holders.load(Relaxed).is_null()
}

/// This process has it no longer.
pub(in crate::switch) fn remove_holder(socket: &Socket) {
    if !is_counted(socket) {
        return;
    }
    // SAFETY: counts are never unmapped.
    if let Some(count) = unsafe { socket.holders.swap(std::ptr::null_mut(), Relaxed).as_ref() } {
        count.fetch_sub(1, SeqCst);
    }
}

/// True if other processes have it, or may have.
pub(in crate::switch) fn has_others(socket: &Socket) -> bool {
    count(socket).is_some_and(|count| count.load(SeqCst) > 1)
}
