//! The memory of an end of a connection: made, and used again.
//!
//! A fork shares it, and nobody else has it. To map a page and to end the mapping costs more than most of a
//! connection's other system calls. So the process uses memory again that no other process has mapped.

use crate::fabric::Controller;
use crate::provider::shm::{Geometry, Role};
use crate::switch::endpoint::Endpoint;
use crate::switch::policy::Relation;
use crate::sys::{self, file, PAGE};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

const _: () = assert!(size_of::<Endpoint>() <= PAGE);

/// An endpoint's memory, mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// The endpoint.
    pub(in crate::switch) at: *mut Endpoint,
}

/// Memories to use again; null: none.
static SPARES: [AtomicPtr<Endpoint>; 32] = [const { AtomicPtr::new(null_mut()) }; 32];
/// Changes before and after each fork: memory from before another value is shared for good.
static FORKS: AtomicU32 = AtomicU32::new(0);

impl Memory {
    /// A new endpoint in memory that forks share.
    pub(in crate::switch) fn create(
        role: Role,
        geometry: Geometry,
        peer: Relation,
    ) -> sys::Result<Memory> {
        let forks = FORKS.load(Ordering::SeqCst);
        let memory = match SPARES.iter().find_map(take) {
            Some(spare) => spare,
            None => Memory { at: file::map_shared(None, PAGE)?.cast() },
        };
        // SAFETY: blank, and nobody else has it.
        unsafe { Endpoint::begin(memory.at, role, geometry, peer, forks) };
        Ok(memory)
    }

    /// An endpoint of a connection with another host.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn create_far(role: Role, geometry: Geometry) -> sys::Result<Memory> {
        Self::create(role, geometry, Relation::ELSEWHERE)
    }

    /// The word by which its processes find out which of them controls its link.
    ///
    /// # Safety
    ///
    /// The memory is not discarded as long as the result is used.
    pub(crate) unsafe fn controller<'a>(self) -> &'a Controller {
        // SAFETY: the caller's promise.
        unsafe { &(*self.at).controller }
    }

    /// The endpoint.
    ///
    /// # Safety
    /// It is not discarded as long as the result is used.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) unsafe fn endpoint<'a>(self) -> &'a Endpoint {
        // SAFETY: the caller's promise.
        unsafe { &*self.at }
    }

    /// Ends the endpoint.
    ///
    /// # Safety
    /// Nothing in this process uses the endpoint afterwards.
    pub(crate) unsafe fn discard(self) {
        // SAFETY: the caller's promise.
        unsafe {
            if (*self.at).forks.load(Ordering::Relaxed) == FORKS.load(Ordering::SeqCst) {
                self.at.cast::<u8>().write_bytes(0, size_of::<Endpoint>());
                if SPARES.iter().any(|spare| self.put(spare)) {
                    return;
                }
            }
            self.release();
        }
    }

    /// [`discard`](Self::discard), not to be used again.
    ///
    /// # Safety
    /// As there.
    unsafe fn release(self) {
        // SAFETY: the caller's promise.
        unsafe { file::unmap(self.at.cast(), PAGE) };
    }

    /// Makes it a spare there; false if there is another one.
    fn put(self, spare: &AtomicPtr<Endpoint>) -> bool {
        spare.compare_exchange(null_mut(), self.at, Ordering::Release, Ordering::Relaxed).is_ok()
    }
}

fn take(spare: &AtomicPtr<Endpoint>) -> Option<Memory> {
    if spare.load(Ordering::Relaxed).is_null() {
        return None;
    }
    let at = spare.swap(null_mut(), Ordering::Acquire);
    (!at.is_null()).then_some(Memory { at })
}

/// Before a fork, and after it on both sides: an endpoint that existed in between is the relatives'
/// as well.
pub(in crate::switch) fn note_fork() {
    FORKS.fetch_add(1, Ordering::SeqCst);
}

/// In a fork child: the spare ones are the parent's.
pub(in crate::switch) fn forget_spares() {
    for memory in SPARES.iter().filter_map(take) {
        // SAFETY: a spare is in no use.
        unsafe { memory.release() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::endpoint::flag;

    const GEOMETRY: Geometry = Geometry {
        buffers: 4,
        message_size: 256,
        send_buffer: 1 << 16,
        largest_message: 256,
        largest_send_buffer: 1 << 16,
    };

    fn create(role: Role) -> &'static Endpoint {
        let memory = Memory::create(role, GEOMETRY, Relation::ELSEWHERE).unwrap();
        // SAFETY: mapped until it is discarded.
        unsafe { &*memory.at }
    }

    fn discard(endpoint: &'static Endpoint) {
        let memory = Memory { at: std::ptr::from_ref(endpoint).cast_mut() };
        // SAFETY: not used afterwards.
        unsafe { memory.discard() };
    }

    #[test]
    fn an_endpoint_is_used_again_blank_unless_it_lived_at_a_fork() {
        // Other tests of this process take spare ones as well.
        const TRIES: usize = 100;
        let is_spare = |one: &'static Endpoint| {
            SPARES.iter().any(|spare| std::ptr::eq(spare.load(Ordering::Relaxed), one))
        };
        let again = (0..TRIES).find_map(|_| {
            let second = used_again()?;
            note_fork();
            discard(second);
            (!is_spare(second)).then_some(())
        });
        assert_eq!(again, Some(()));
    }

    /// An endpoint that is used again, if no other test was quicker.
    fn used_again() -> Option<&'static Endpoint> {
        let first = create(Role::Connector);
        first.set(flag::RESET);
        first.holders.store(7, Ordering::Relaxed);
        first.send.tail.store(9, Ordering::Relaxed);
        discard(first);
        let second = create(Role::Acceptor);
        if !std::ptr::eq(first, second) {
            discard(second);
            return None;
        }
        assert!(second.state().is_on_san_with(0));
        assert_eq!(second.role(), Role::Acceptor);
        assert_eq!(second.holders.load(Ordering::Relaxed), 1);
        assert_eq!(second.send.tail.load(Ordering::Relaxed), 0);
        Some(second)
    }
}
