//! The one registration that a socket on TCP has in an epoll set of the kernel's, noted in the socket itself. Most
//! connections end before anybody asks for it.
//!
//! A call takes no lock for that, so it need not hold signals back. Two calls may meet on one socket, and one of them
//! may be a handler's that never comes back. Then the library does not know any more what the kernel has, and the
//! socket stays on TCP.

use super::set::Set;
use crate::sys::{Fd, Result};
use std::ptr::{from_ref, null_mut};
use std::sync::atomic::{
    AtomicI32, AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Nothing is noted.
const EMPTY: u32 = 0;
/// One registration is.
const PRESENT: u32 = 1;
/// A call changes it at this moment.
const CHANGING: u32 = 2;
/// The library does not know what the kernel has.
const UNKNOWN: u32 = 3;

/// See the module.
pub(crate) struct KernelRegistration {
    state: AtomicU32,
    generation: AtomicU32,
    fd: AtomicI32,
    events: AtomicU32,
    data: AtomicU64,
    set: AtomicPtr<Set>,
}

/// What was noted.
pub(in crate::switch) struct NotedRegistration {
    pub(in crate::switch) set: &'static Set,
    pub(in crate::switch) fd: Fd,
    pub(in crate::switch) events: u32,
    pub(in crate::switch) data: u64,
}

/// An epoll_ctl that the kernel is about to do.
pub(in crate::switch) struct Change<'a> {
    registration: &'a KernelRegistration,
    /// The state afterwards, if it succeeds, and if it fails.
    then: [u32; 2],
    event: Option<(u32, u64)>,
}

impl KernelRegistration {
    pub(in crate::switch) const fn new() -> Self {
        KernelRegistration {
            state: AtomicU32::new(EMPTY),
            generation: AtomicU32::new(0),
            fd: AtomicI32::new(-1),
            events: AtomicU32::new(0),
            data: AtomicU64::new(0),
            set: AtomicPtr::new(null_mut()),
        }
    }

    /// Begins with a new socket, which no other call has.
    pub(in crate::switch) fn begin_anew(&self) {
        self.state.store(EMPTY, Relaxed);
    }

    /// True if no registration is noted, and none is being.
    pub(in crate::switch) fn is_empty(&self) -> bool {
        self.state.load(Relaxed) == EMPTY
    }

    /// The kernel has one that no books have.
    pub(in crate::switch) fn lose(&self) {
        self.state.store(UNKNOWN, Relaxed);
    }

    /// True if the socket has to stay on TCP.
    pub(in crate::switch) fn is_unknown(&self) -> bool {
        self.state.load(Relaxed) == UNKNOWN
    }

    /// Makes the state CHANGING, and gives the one before; UNKNOWN if that cannot be.
    fn claim(&self) -> u32 {
        let next = |state| match state {
            EMPTY | PRESENT => Some(CHANGING),
            _ => Some(UNKNOWN),
        };
        match self.state.fetch_update(AcqRel, Acquire, next) {
            Ok(before @ (EMPTY | PRESENT)) => before,
            _ => UNKNOWN,
        }
    }

    /// Ends that, unless another call came between.
    fn release(&self, state: u32) {
        let _ = self.state.compare_exchange(CHANGING, state, Release, Relaxed);
    }

    /// Before the kernel changes a registration; `None`: it is not the one that is noted, or would be a second one.
    pub(in crate::switch) fn change(
        &self,
        set: &'static Set,
        operation: i32,
        fd: Fd,
        event: Option<(u32, u64)>,
    ) -> Option<Change<'_>> {
        let before = self.claim();
        let is_it = || {
            before == PRESENT
                && self.fd.load(Relaxed) == fd
                && std::ptr::eq(self.set.load(Relaxed), set)
                && self.generation.load(Relaxed) == set.generation()
        };
        let then = match (operation, event) {
            _ if before == UNKNOWN => [UNKNOWN; 2],
            (libc::EPOLL_CTL_ADD, Some(_)) if before == EMPTY => {
                self.set.store(from_ref(set).cast_mut(), Relaxed);
                self.generation.store(set.generation(), Relaxed);
                self.fd.store(fd, Relaxed);
                [PRESENT, EMPTY]
            }
            (libc::EPOLL_CTL_MOD, Some(_)) if is_it() => [PRESENT; 2],
            (libc::EPOLL_CTL_DEL, _) if is_it() => [EMPTY, PRESENT],
            _ => {
                self.release(before);
                return None;
            }
        };
        Some(Change { registration: self, then, event })
    }

    /// Takes the note out, for the books of the set. `Err`: it is not known. Structure lock, under which no set ends.
    pub(in crate::switch) fn take(&self) -> std::result::Result<Option<NotedRegistration>, ()> {
        let entry = match self.claim() {
            UNKNOWN => return Err(()),
            // SAFETY: sets are never freed.
            PRESENT => unsafe { self.set.load(Relaxed).as_ref() }.map(|set| NotedRegistration {
                set,
                fd: self.fd.load(Relaxed),
                events: self.events.load(Relaxed),
                data: self.data.load(Relaxed),
            }),
            _ => None,
        };
        // If the set was closed since, the kernel has none.
        let entry = entry.filter(|entry| entry.set.generation() == self.generation.load(Relaxed));
        self.release(EMPTY);
        Ok(entry)
    }
}

impl Change<'_> {
    /// The kernel has done so.
    pub(in crate::switch) fn end(self, done: &Result<()>) {
        let Change { registration, then: [done_state, failed_state], event } = self;
        if done_state == UNKNOWN {
            return;
        }
        if done.is_err() {
            return registration.release(failed_state);
        }
        if let (PRESENT, Some((events, data))) = (done_state, event) {
            registration.events.store(events, Relaxed);
            registration.data.store(data, Relaxed);
        }
        registration.release(done_state);
    }
}
