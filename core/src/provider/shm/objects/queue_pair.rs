//! A queue pair as its client has it: checks, and posts on the [`Pair`].

use super::adapter::LIMITS;
use super::completion_queue::Queue;
use super::pair::{Pair, ENDED};
use super::shared_receive_queue::Shared;
use super::work_queue::{List, Receive, Work};
use crate::provider::interface::*;
use crate::provider::software::{Memory, Region};
use std::sync::Arc;

/// See the module.
pub struct QueuePair(pub(super) Arc<Pair>);

impl QueuePair {
    pub(super) fn new(
        wanted: &QueuePairAttributes,
        receive: &Arc<Queue>,
        initiator: &Arc<Queue>,
        shared: Option<&Arc<Shared>>,
        memory: &Arc<Memory>,
    ) -> Result<Self> {
        if wanted.receive_depth > LIMITS.max_receive_depth
            || wanted.initiator_depth == 0
            || wanted.initiator_depth > LIMITS.max_initiator_depth
            || wanted.segments == 0
            || wanted.segments > LIMITS.max_segments
            || wanted.inline_size > LIMITS.max_inline
        {
            return Err(Error::InvalidParameter);
        }
        Ok(QueuePair(Pair::new(wanted, receive, initiator, shared, memory)))
    }
}

impl implement::QueuePair for QueuePair {
    type MemoryRegion = Region;

    fn send(&self, request: u64, from: &[Segment], flags: Flags) -> Result<()> {
        let list = self.0.list(from, LIMITS.max_message)?;
        self.0.post(request, flags, |_| Ok(Work::Send(list)))
    }

    fn send_inline(&self, request: u64, bytes: &[u8], flags: Flags) -> Result<()> {
        if bytes.len() > self.0.inline.size() {
            return Err(Error::InvalidParameter);
        }
        self.0.post(request, flags, |place| {
            let to = self.0.inline.of(place);
            // SAFETY: they fit, and the place is ours until it is posted.
            unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            Ok(Work::Inline(bytes.len()))
        })
    }

    fn receive(&self, request: u64, into: &[Segment]) -> Result<()> {
        let pair = &self.0;
        if pair.shared.is_some() {
            return Err(Error::InvalidParameter);
        }
        if pair.phase() == ENDED {
            return Err(Error::Cancelled);
        }
        let list = List::of(into, pair.attributes.segments)?;
        let capacity = pair.memory.check(into)?;
        // Numbered and told in the same order: the peer counts on what it is told.
        pair.receives.post(
            |_| Ok(Receive { request, into: list }),
            |number| {
                if let Some(channel) = pair.channel.get() {
                    pair.announce(channel, number, capacity);
                }
            },
        )?;
        pair.receive_posted();
        if pair.phase() == ENDED {
            pair.kick_awaited();
        }
        Ok(())
    }

    fn read(&self, request: u64, into: &[Segment], from: RemoteMemory, flags: Flags) -> Result<()> {
        let list = self.0.list(into, LIMITS.max_transfer)?;
        self.0.post(request, flags, |_| Ok(Work::Read(list, from)))
    }

    fn write(&self, request: u64, from: &[Segment], to: RemoteMemory, flags: Flags) -> Result<()> {
        let list = self.0.list(from, LIMITS.max_transfer)?;
        self.0.post(request, flags, |_| Ok(Work::Write(list, to)))
    }

    fn bind(
        &self,
        request: u64,
        region: &Region,
        address: u64,
        length: u64,
        access: RemoteAccess,
        flags: Flags,
    ) -> Result<u32> {
        let end = address.checked_add(length).ok_or(Error::InvalidParameter)?;
        if self.0.channel.get().is_some_and(|channel| !channel.is_reached()) {
            // The kernel does not let the peer in: what it is given to access would end the connection.
            return Err(Error::NotSupported);
        }
        let token = self.0.reserve_window(region.token()?, &(address..end))?;
        let posted = self.0.post(request, flags, |_| Ok(Work::Bind(token, address, end, access)));
        if posted.is_err() {
            self.0.release_window(token);
        }
        posted.map(|()| token)
    }

    fn invalidate(&self, request: u64, token: u32, flags: Flags) -> Result<()> {
        self.0.post(request, flags, |_| {
            if self.0.abandon_window(token) {
                Ok(Work::Invalidate(token))
            } else {
                Err(Error::InvalidParameter)
            }
        })
    }

    fn flush(&self) -> Result<()> {
        self.0.end();
        Ok(())
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.0.close();
    }
}
