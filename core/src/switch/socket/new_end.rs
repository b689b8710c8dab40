//! An end of a session that no socket has yet: its segment and its endpoint. If none gets it, they go with it.

use crate::provider::shm::{Geometry, Role, Segment, SegmentError, State};
use crate::registry::Slot as Statistics;
use crate::switch::endpoint::memory::Memory;
use crate::switch::policy::Relation;
use crate::switch::socket::negotiation::Agreed;
use crate::switch::stream::Stream;
use crate::sys::{self, file};
use std::mem::ManuallyDrop;

/// See the module. Nobody else uses this process's mapping of the segment, or knows the endpoint.
pub(in crate::switch) struct NewEnd {
    segment: Segment,
    memory: Memory,
}

impl NewEnd {
    /// An end of a connection with another host. Both directions begin on the SAN.
    pub(in crate::switch) fn create_far(
        role: Role,
        geometry: Geometry,
    ) -> Result<Self, SegmentError> {
        let (segment, fd) = Segment::create(geometry)?;
        file::close(fd);
        segment.begin_turned();
        match Memory::create(role, segment.geometry(), Relation::ELSEWHERE) {
            Ok(memory) => Ok(Self { segment, memory }),
            Err(e) => {
                // SAFETY: nobody else knows it.
                unsafe { segment.unmap() };
                Err(SegmentError::System(e))
            }
        }
    }

    /// An end of the session that both have agreed on. If there is no memory the session is withdrawn.
    pub(in crate::switch) fn of_agreed(agreed: Agreed, role: Role) -> sys::Result<Self> {
        match Memory::create(role, agreed.segment.geometry(), agreed.peer) {
            Ok(memory) => Ok(Self { segment: agreed.segment, memory }),
            Err(e) => {
                agreed.end();
                Err(e)
            }
        }
    }

    /// As [`Segment::change`].
    pub(in crate::switch) fn change(&self, from: State, to: State) -> bool {
        self.segment.change(from, to)
    }

    /// As [`Segment::withdraw`].
    pub(in crate::switch) fn withdraw(&self) {
        self.segment.withdraw();
    }

    /// The end of the connection.
    pub(in crate::switch) fn stream<'a>(&'a self, statistics: &'a Statistics) -> Stream<'a> {
        // SAFETY: it is discarded with this.
        let endpoint = unsafe { &*self.memory.at };
        Stream::new(endpoint, &self.segment, statistics, None)
    }

    /// What a socket gets, which lets go of it from now on.
    pub(super) fn into_parts(self) -> (Segment, Memory) {
        let end = ManuallyDrop::new(self);
        (end.segment, end.memory)
    }
}

impl Drop for NewEnd {
    fn drop(&mut self) {
        // SAFETY: nobody else uses them.
        unsafe {
            self.memory.discard();
            self.segment.unmap();
        }
    }
}
