//! Fork: the descriptors that a child inherits are its parent's.
//!
//! A child makes objects of its own, and never touches one from before the fork. It closes what it inherited: the
//! kernel keeps connections and listeners for as long as anybody has their descriptors, and they are to end with the
//! process that they belong to. A client starts no fork while a call of its own is inside a provider.
//!
//! There is another danger: a program puts a file of its own at such a number (dup2), or closes all that it does not
//! know. See [`crate::sys::hidden`]. A provider in a library of its own has a table of its own there, which the hooks
//! do not know.

use crate::sys::{errno, file, hidden, Fd};
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Once;

/// What is known of a descriptor.
struct Noted {
    /// Device and inode of the file it is for; `None`: it is hidden, which says more (all eventfds and epoll
    /// sets have one inode).
    identity: Option<(u64, u64)>,
    /// Where the object has it, if a child may come there.
    place: Option<NonNull<Fd>>,
}

type Open = BTreeMap<Fd, Noted>;

struct Descriptors {
    busy: AtomicBool,
    open: UnsafeCell<Open>,
}

// SAFETY: `open` is only reached while `busy` is held.
unsafe impl Sync for Descriptors {}

static DESCRIPTORS: Descriptors =
    Descriptors { busy: AtomicBool::new(false), open: UnsafeCell::new(BTreeMap::new()) };
/// Changes in every fork child.
static GENERATION: AtomicU32 = AtomicU32::new(0);

impl Descriptors {
    fn with<T>(&self, f: impl FnOnce(&mut Open) -> T) -> T {
        while self.busy.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        // SAFETY: `busy` is held.
        let result = f(unsafe { &mut *self.open.get() });
        self.busy.store(false, Ordering::Release);
        result
    }
}

/// The number of this process in its family. An object whose maker had another number is the parent's.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Notes a descriptor that a child is to close.
pub fn note(fd: Fd) {
    if let Ok(identity) = file::identity(fd) {
        note_open(fd, Some(identity), None);
    }
}

/// As [`note`], where a child uses the object as well: it finds no descriptor there (-1).
///
/// # Safety
/// `place` is valid until [`forget`].
pub unsafe fn note_at(place: NonNull<Fd>) {
    // SAFETY: the caller's promise.
    let fd = unsafe { place.read() };
    if let Ok(identity) = file::identity(fd) {
        note_open(fd, Some(identity), Some(place));
    }
}

fn note_open(fd: Fd, identity: Option<(u64, u64)>, place: Option<NonNull<Fd>>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler lives as long as the library it is in, with which it is removed.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    DESCRIPTORS.with(|open| open.insert(fd, Noted { identity, place }));
}

/// The caller is about to close it. False if it is not this process's to close: it was the parent's.
pub fn forget(fd: Fd) -> bool {
    DESCRIPTORS.with(|open| open.remove(&fd)).is_some()
}

extern "C" fn in_child() {
    errno::kept(close_inherited);
}

fn close_inherited() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the only thread of this process.
    let open = std::mem::take(unsafe { &mut *DESCRIPTORS.open.get() });
    if DESCRIPTORS.busy.swap(false, Ordering::Relaxed) {
        // A thread of the parent was changing it. (The library's own never are during a fork.)
        return std::mem::forget(open);
    }
    for (fd, Noted { identity, place }) in open {
        // It leaves alone what the program has put at that number meanwhile.
        match identity {
            None => hidden::close(fd),
            Some(identity) if file::identity(fd) == Ok(identity) => file::close(fd),
            Some(_) => {}
        }
        if let Some(place) = place {
            // SAFETY: the promise of `note_at`.
            unsafe { place.write(-1) };
        }
    }
}

/// A descriptor of an object's own: high, close-on-exec, hidden, closed with the object, and in fork children.
pub(crate) struct Descriptor(Fd);

impl Descriptor {
    /// Takes `fd` over, under another number.
    pub(crate) fn new(fd: Fd) -> Self {
        let fd = hidden::keep(fd);
        note_open(fd, None, None);
        Descriptor(fd)
    }

    /// Its number; -1, with which every system call fails, once the program has taken that over.
    #[inline]
    pub(crate) fn get(&self) -> Fd {
        hidden::kept(self.0)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if forget(self.0) {
            hidden::close(self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_the_program_took_over_is_left_alone() {
        let ours = Descriptor::new(file::eventfd(0).unwrap());
        let number = ours.get();
        assert!(hidden::is_hidden(number));
        // As dup2 does: what is there now is the program's.
        hidden::forget(number);
        assert_eq!(ours.get(), -1);
        drop(ours);
        assert!(file::check_open(number).is_ok());
        file::close(number);
    }
}
