//! What is kept of the calling thread, in one place of its thread-local memory: its id, and notes of what it has hold
//! of.

use super::process;
use std::cell::Cell;
use std::ptr;

/// As many things can be noted.
pub(crate) const MOST_NOTES: usize = 8;

/// A note.
pub(crate) struct Note {
    /// What it is about; null if there is none.
    pub(crate) about: Cell<*const ()>,
    /// Something that is to be found there: else that is gone.
    pub token: Cell<*const ()>,
}

impl Note {
    const fn none() -> Note {
        Note { about: Cell::new(ptr::null()), token: Cell::new(ptr::null()) }
    }
}

struct Thread {
    id: Cell<u32>,
    notes: [Note; MOST_NOTES],
    /// The signal mask of the program, while signals are held back between naps.
    mask: Cell<Option<u64>>,
}

thread_local! {
    static THREAD: Thread =
        const { Thread { id: Cell::new(0), notes: [const { Note::none() }; MOST_NOTES], mask: Cell::new(None) } };
}

/// The calling thread's, which lives as long as it.
#[inline(always)]
fn thread() -> *const Thread {
    THREAD.with(ptr::from_ref)
}

/// The calling thread's id, cached. [`forget_tid`] after a fork.
#[inline(always)]
pub(crate) fn own_tid() -> u32 {
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
pub(crate) fn forget_tid() {
    THREAD.with(|thread| thread.id.set(0));
}

/// The signal mask to sleep with where signals are held back between naps: they come in the sleep.
pub(crate) fn nap_mask() -> Option<u64> {
    THREAD.with(|thread| thread.mask.get())
}

/// Notes it; gives the one before.
pub(crate) fn set_nap_mask(mask: Option<u64>) -> Option<u64> {
    THREAD.with(|thread| thread.mask.replace(mask))
}

/// Calls `with` with the thread's notes.
#[inline(always)]
pub(crate) fn with_notes<T>(with: impl FnOnce(&[Note; MOST_NOTES]) -> T) -> T {
    // SAFETY: the thread is there.
    with(unsafe { &(*thread()).notes })
}
