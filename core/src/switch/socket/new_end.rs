//! An end of a session that no socket has yet: its segment and its endpoint. If no socket gets them, they go with it.

use crate::fabric::Link;
use crate::provider::shm::{Role, Segment};
use crate::session::Agreement;
use crate::switch::endpoint::memory::Memory;
use crate::switch::socket::negotiation::Agreed;
use crate::sys;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// See the module. Nobody else uses this process's mapping of the segment, or knows the endpoint.
pub(in crate::switch) struct NewEnd {
    segment: Segment,
    memory: Memory,
    /// Where the peer is on another host: it has the segment.
    link: Option<Arc<Link>>,
}

impl NewEnd {
    /// An end of the session that both have agreed on. If there is no memory the session is withdrawn.
    pub(in crate::switch) fn of_agreed(agreed: Agreed, role: Role) -> sys::Result<Self> {
        match Memory::create(role, agreed.segment.geometry(), agreed.peer) {
            Ok(memory) => Ok(Self { segment: agreed.segment, memory, link: agreed.link }),
            Err(e) => {
                agreed.end();
                Err(e)
            }
        }
    }

    /// Whether the ends use the session.
    pub(in crate::switch) fn agreement(&self) -> &Agreement {
        self.segment.agreement()
    }

    /// What a socket gets, which lets go of it from now on.
    pub(super) fn into_parts(self) -> (Segment, Memory, Option<Arc<Link>>) {
        let mut end = ManuallyDrop::new(self);
        (end.segment, end.memory, end.link.take())
    }
}

impl Drop for NewEnd {
    fn drop(&mut self) {
        // SAFETY: no other thread knows it.
        unsafe { self.memory.discard() };
        Agreed::dismiss(self.segment, self.link.take());
    }
}
