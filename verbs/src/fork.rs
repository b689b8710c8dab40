//! Fork: what a child inherits is its parent's.
//!
//! A child opens devices of its own and never touches an object made before the fork. It closes the
//! descriptors that came with it: the kernel keeps connections and listeners for as long as anybody
//! has those, and they are to end with the process they belong to.

use rdma_sys::*;
use sanshim_core::sys::{file, Fd};
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Once;

/// A descriptor of rdma-core's.
struct Open {
    fd: Fd,
    /// Device and inode of the file it is for.
    identity: (u64, u64),
    /// Where rdma-core keeps it, if a child may come there.
    place: Option<NonNull<Fd>>,
}

struct Descriptors {
    busy: AtomicBool,
    open: UnsafeCell<Vec<Open>>,
}

// SAFETY: `open` is only reached while `busy` is held.
unsafe impl Sync for Descriptors {}

static DESCRIPTORS: Descriptors =
    Descriptors { busy: AtomicBool::new(false), open: UnsafeCell::new(Vec::new()) };

impl Descriptors {
    fn with<T>(&self, f: impl FnOnce(&mut Vec<Open>) -> T) -> T {
        while self.busy.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        // SAFETY: `busy` is held.
        let result = f(unsafe { &mut *self.open.get() });
        self.busy.store(false, Ordering::Release);
        result
    }
}

/// Before the first device is opened: has rdma-core keep its memory out of children where the kernel
/// does not copy pinned pages at a fork, and this module told of forks.
pub(crate) fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: no arguments; nothing of rdma-core's is in use yet. The handlers live as long as this
        // library, which is never unloaded.
        unsafe {
            if ibv_is_fork_initialized() != IBV_FORK_UNNEEDED && ibv_fork_init() != 0 {
                log::warn!("verbs: memory registered before a fork may not be safe afterwards");
            }
            libc::pthread_atfork(None, None, Some(in_child));
        }
    });
}

/// A descriptor that a child is to close.
pub(crate) fn note(fd: Fd) {
    note_open(fd, None);
}

/// As [`note`], of an object that rdma-core uses in a child as well: it finds no descriptor there.
///
/// # Safety
/// `place` is valid until [`forget`].
pub(crate) unsafe fn note_at(place: NonNull<Fd>) {
    // SAFETY: the caller's promise.
    note_open(unsafe { place.read() }, Some(place));
}

fn note_open(fd: Fd, place: Option<NonNull<Fd>>) {
    if let Ok(identity) = file::identity(fd) {
        DESCRIPTORS.with(|open| open.push(Open { fd, identity, place }));
    }
}

/// It is closed here.
pub(crate) fn forget(fd: Fd) {
    DESCRIPTORS.with(|open| open.retain(|other| other.fd != fd));
}

extern "C" fn in_child() {
    // SAFETY: the only thread of this process.
    let open = std::mem::take(unsafe { &mut *DESCRIPTORS.open.get() });
    if DESCRIPTORS.busy.swap(false, Ordering::Relaxed) {
        // A thread of the parent was changing it. (The library's own never are during a fork.)
        return std::mem::forget(open);
    }
    for Open { fd, identity, place } in open {
        // Not what the program has put at that number meanwhile.
        if file::identity(fd) == Ok(identity) {
            file::close(fd);
        }
        if let Some(place) = place {
            // SAFETY: the promise of `note_at`.
            unsafe { place.write(-1) };
        }
    }
}
