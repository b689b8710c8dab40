//! What is kept of the calling thread, in one place of its thread-local memory: its id, and notes of what it has hold
//! of.

use super::process;
use std::cell::Cell;
use std::ptr;

/// As many things can be noted.
pub const MOST_NOTES: usize = 8;

/// A note: what it is about; null if there is none.
pub type Note = Cell<*const ()>;

struct Thread {
    id: Cell<u32>,
    notes: [Note; MOST_NOTES],
}

thread_local! {
    static THREAD: Thread =
        const { Thread { id: Cell::new(0), notes: [const { Cell::new(ptr::null()) }; MOST_NOTES] } };
}

/// The calling thread's, which lives as long as it.
#[inline(always)]
fn thread() -> *const Thread {
    THREAD.with(ptr::from_ref)
}

/// The calling thread's id, cached. [`forget_tid`] after a fork.
#[inline(always)]
pub fn own_tid() -> u32 {
    // SAFETY: the thread is there.
    let cached = unsafe { (*thread()).id.get() };
    if cached != 0 {
        return cached;
    }
    note_tid()
}

#[cold]
fn note_tid() -> u32 {
    let tid = process::tid();
    THREAD.with(|thread| thread.id.set(tid));
    tid
}

/// Call in a fork child: the cached thread id is the parent's.
pub fn forget_tid() {
    THREAD.with(|thread| thread.id.set(0));
}

/// Calls `with` with the thread's notes.
#[inline(always)]
pub fn with_notes<T>(with: impl FnOnce(&[Note; MOST_NOTES]) -> T) -> T {
    // SAFETY: the thread is there.
    with(unsafe { &(*thread()).notes })
}
