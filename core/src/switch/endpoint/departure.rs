//! A process of several leaves the end that they hold.
//!
//! The process that controls the link ends it once nobody holds the end. The last holder has something to say after it
//! has left, for it cannot know before that it is the last.

use crate::switch::endpoint::Endpoint;
use std::sync::atomic::Ordering::SeqCst;

/// One process leaves. While this lives, others take the end for used.
pub(in crate::switch) struct Departure<'a> {
    endpoint: &'a Endpoint,
    /// Others hold the end.
    pub(in crate::switch) is_shared: bool,
}

impl Endpoint {
    /// This process leaves. It may have left before, and does not count twice then.
    pub(in crate::switch) fn depart(&self, has_left: bool) -> Departure<'_> {
        self.departing.fetch_add(1, SeqCst);
        let is_shared = has_left || self.holders.fetch_sub(1, SeqCst) > 1;
        Departure { endpoint: self, is_shared }
    }

    /// True while a process holds the end, or has not said all.
    pub(in crate::switch) fn is_used(&self) -> bool {
        // In this order: a holder that leaves is among those that leave before it is none.
        self.holders.load(SeqCst) > 0 || self.departing.load(SeqCst) > 0
    }
}

impl Drop for Departure<'_> {
    fn drop(&mut self) {
        self.endpoint.departing.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::shm::{Geometry, Role};
    use crate::switch::endpoint::memory::Memory;

    #[test]
    fn an_end_is_used_until_the_last_holder_has_said_all() {
        let geometry = Geometry {
            buffers: 4,
            message_size: 256,
            send_buffer: 1 << 16,
            largest_message: 256,
            largest_send_buffer: 1 << 16,
        };
        let memory = Memory::create_far(Role::Connector, geometry).unwrap();
        // SAFETY: mapped until it is discarded.
        let endpoint = unsafe { &*memory.at };
        endpoint.holders.fetch_add(1, SeqCst);

        let first = endpoint.depart(false);
        assert!(first.is_shared);
        drop(first);
        assert!(endpoint.depart(true).is_shared, "it left before");
        assert!(endpoint.is_used());

        let last = endpoint.depart(false);
        assert!(!last.is_shared);
        assert!(endpoint.is_used());
        drop(last);
        assert!(!endpoint.is_used());
        // SAFETY: not used afterwards.
        unsafe { memory.discard() };
    }
}
