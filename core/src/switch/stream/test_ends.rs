//! Two ends of one connection in one process, for tests and for what is fuzzed.

use super::Stream;
use crate::provider::shm::{Geometry, Role, Segment};
use crate::registry;
#[cfg(test)]
use crate::session::transfer::Abilities;
use crate::session::Kind;
use crate::switch::endpoint::flag;
use crate::switch::endpoint::memory::Memory;
use crate::sys::file;
#[cfg(test)]
use crate::sys::lender::Lender;

pub(super) const GEOMETRY: Geometry = Geometry {
    buffers: 16,
    message_size: 1536,
    send_buffer: 1 << 16,
    largest_message: 16384,
    largest_send_buffer: 1 << 16,
};
/// Both ends; their memory is never given back, unless by [`Ends::discard`].
pub(super) struct Ends {
    pub(super) left: Stream<'static>,
    pub(super) right: Stream<'static>,
}

impl Ends {
    /// A session both ends use, with nothing under way, as two processes of one host have it.
    pub(super) fn new() -> Ends {
        Ends::of(GEOMETRY)
    }

    /// The same with RDMA, as two ends in one process have it.
    #[cfg(test)]
    pub(super) fn with(abilities: Abilities) -> Ends {
        let ends = Ends::new();
        for end in [ends.left, ends.right] {
            end.endpoint.offer(abilities);
            end.endpoint.use_memory_of(Lender::own());
            end.endpoint.set(flag::ONE_PROCESS);
        }
        ends
    }

    pub(super) fn of(geometry: Geometry) -> Ends {
        let (segment, fd) = Segment::create(geometry).unwrap();
        file::close(fd);
        let segment: &'static Segment = Box::leak(Box::new(segment));
        let end = |role| {
            let memory = Memory::create_far(role, segment.geometry()).unwrap();
            // SAFETY: never discarded.
            let endpoint = unsafe { memory.endpoint() };
            Stream::new(endpoint, segment, registry::spare(), None)
        };
        let ends = Ends { left: end(Role::Connector), right: end(Role::Acceptor) };
        ends.left.open(Kind::SessionRequest);
        ends.right.open(Kind::SessionAccept);
        for end in [ends.left, ends.right] {
            end.endpoint.set(flag::PEER_IN_SIGHT);
            let _held = end.lock_receive().unwrap();
            end.absorb().unwrap();
        }
        for end in [ends.left, ends.right] {
            // A new endpoint's reader may sleep already.
            end.signal_read();
            end.ring_by(|| ());
        }
        ends
    }

    /// Gives their memory back.
    ///
    /// # Safety
    /// Nobody uses them, or copies of them, afterwards.
    pub(super) unsafe fn discard(self) {
        for end in [self.left, self.right] {
            let memory = Memory { at: std::ptr::from_ref(end.endpoint).cast_mut() };
            // SAFETY: the caller's promise; it was made by `Memory::create_far`.
            unsafe { memory.discard() };
        }
        // SAFETY: as above; both ends have the same, which was leaked from a box.
        unsafe {
            self.left.segment.unmap();
            drop(Box::from_raw(std::ptr::from_ref(self.left.segment).cast_mut()));
        }
    }
}
