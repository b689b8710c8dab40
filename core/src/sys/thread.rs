//! What is kept for the calling thread, in one place of its thread-local memory: its id, and notes of what it holds.

use super::{call, process};
use std::cell::Cell;
use std::ops::Range;
use std::ptr;

/// So many things can be noted.
pub(crate) const MOST_NOTES: usize = 8;

/// A note of something that the thread holds.
pub(crate) struct Note {
    /// What it is about; null if there is none.
    pub(crate) about: Cell<*const ()>,
    /// What is found there while the thread holds it. If it is not found, that is gone.
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

/// What is kept for the calling thread. It exists as long as the thread.
#[inline(always)]
fn thread() -> *const Thread {
    THREAD.with(ptr::from_ref)
}

/// The calling thread's id, cached. A fork child calls [`forget_tid`].
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

/// The stack that the program set up for signal handlers, if the thread runs on it.
pub(crate) fn alternate_stack() -> Option<Range<usize>> {
    // SAFETY: plain data.
    let mut stack: libc::stack_t = unsafe { std::mem::zeroed() };
    call!(sigaltstack, 0, &mut stack as *mut libc::stack_t as usize).ok()?;
    let start = stack.ss_sp as usize;
    (stack.ss_flags & libc::SS_ONSTACK != 0).then(|| start..start.saturating_add(stack.ss_size))
}

/// To be called in a fork child, where the cached thread id is the parent's.
pub(crate) fn forget_tid() {
    THREAD.with(|thread| thread.id.set(0));
}

/// The signal mask to sleep with while signals are held back between naps, so that they come in the sleep.
pub(crate) fn nap_mask() -> Option<u64> {
    THREAD.with(|thread| thread.mask.get())
}

/// Sets [`nap_mask`], and gives the one before.
pub(crate) fn set_nap_mask(mask: Option<u64>) -> Option<u64> {
    THREAD.with(|thread| thread.mask.replace(mask))
}

/// Calls `with` with the thread's notes.
#[inline(always)]
pub(crate) fn with_notes<T>(with: impl FnOnce(&[Note; MOST_NOTES]) -> T) -> T {
    // SAFETY: the thread is there.
    with(unsafe { &(*thread()).notes })
}
