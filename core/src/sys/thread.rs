//! What the library keeps for the calling thread, in one place of its thread-local memory: its id, and notes of what it
//! holds.

use super::{call, process};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// So many things can be noted.
pub(crate) const MOST_NOTES: usize = 8;

/// A note of something that the thread holds.
pub(crate) struct ThreadNote {
    /// What it is about; null if there is none.
    pub(crate) about: Cell<*const ()>,
    /// The value that lies there while the thread holds it. Another value says that the thread does not hold it any more.
    pub token: Cell<*const ()>,
}

impl ThreadNote {
    const fn none() -> ThreadNote {
        ThreadNote { about: Cell::new(ptr::null()), token: Cell::new(ptr::null()) }
    }
}

struct Thread {
    id: Cell<u32>,
    notes: [ThreadNote; MOST_NOTES],
    /// The signal mask of the program, while signals are held back between naps.
    mask: Cell<Option<u64>>,
}

thread_local! {
    static THREAD: Thread =
        const { Thread { id: Cell::new(0), notes: [const { ThreadNote::none() }; MOST_NOTES], mask: Cell::new(None) } };
}

/// What the library keeps for the calling thread. It exists as long as the thread.
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

/// Bytes of stack that a thread of the library's has.
const STACK: usize = 256 << 10;

/// Bytes of the program's thread-local variables, and of its libraries', which lie on each thread's stack.
static THREAD_LOCAL: AtomicUsize = AtomicUsize::new(0);

/// To be called once at the start, with all libraries loaded that the program is linked with.
pub fn note_thread_locals() {
    /// Adds what one library has.
    unsafe extern "C" fn add(
        library: *mut libc::dl_phdr_info,
        _: libc::size_t,
        _: *mut c_void,
    ) -> c_int {
        // SAFETY: the linker's list of one library, which it keeps there meanwhile.
        let parts = unsafe {
            std::slice::from_raw_parts((*library).dlpi_phdr, (*library).dlpi_phnum.into())
        };
        for part in parts.iter().filter(|part| part.p_type == libc::PT_TLS) {
            THREAD_LOCAL.fetch_add((part.p_memsz + part.p_align) as usize, Relaxed);
        }
        0
    }
    THREAD_LOCAL.store(0, Relaxed);
    // SAFETY: the function stays there.
    unsafe { libc::dl_iterate_phdr(Some(add), ptr::null_mut()) };
}

/// Starts a thread of the library's own. libc takes the thread-local variables from the stack that one asks for.
pub(crate) fn builder() -> std::thread::Builder {
    let size = STACK + THREAD_LOCAL.load(Relaxed);
    std::thread::Builder::new().name("sanshim".into()).stack_size(size)
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
pub(crate) fn with_notes<T>(with: impl FnOnce(&[ThreadNote; MOST_NOTES]) -> T) -> T {
    // SAFETY: the thread is there.
    with(unsafe { &(*thread()).notes })
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static LARGE: Cell<[u8; 300 << 10]> = const { Cell::new([0; 300 << 10]) };
    }

    #[test]
    fn a_thread_has_its_stack_beside_large_thread_local_variables() {
        note_thread_locals();
        LARGE.with(|large| std::hint::black_box(large.as_ptr()));
        let use_stack = || {
            std::hint::black_box([1u8; 200 << 10])
                .iter()
                .map(|one| usize::from(*one))
                .sum::<usize>()
        };
        let used = builder().spawn(use_stack).expect("a thread").join();
        assert_eq!(used.expect("a sum"), 200 << 10);
    }
}
