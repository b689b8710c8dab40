//! A queue pair as its client has it: checks, and posts on the [`LocalPair`].

use super::completion_queue::Queue;
use super::layout::ACKNOWLEDGEMENTS;
use super::limits::LIMITS;
use super::pair::{LocalPair, CONNECTED, ENDED};
use super::shared_receive_queue::SharedBuffers;
use super::work_queue::{List, PostedRequest, Receive, RequestedWork, Stage};
use crate::provider::interface::*;
use crate::provider::software::{AdapterMemory, Region};
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// See the module.
pub struct LocalQueuePair {
    pub(super) pair: Arc<LocalPair>,
    receive: Arc<Queue>,
    initiator: Arc<Queue>,
    shared: Option<Arc<SharedBuffers>>,
}

impl LocalQueuePair {
    pub(super) fn new(
        wanted: &QueuePairAttributes,
        receive: &Arc<Queue>,
        initiator: &Arc<Queue>,
        shared: Option<&Arc<SharedBuffers>>,
        memory: &Arc<AdapterMemory>,
    ) -> ProviderResult<Self> {
        if wanted.receive_depth > LIMITS.max_receive_depth
            || wanted.initiator_depth == 0
            || wanted.initiator_depth > LIMITS.max_initiator_depth
            || wanted.segments == 0
            || wanted.segments > LIMITS.max_segments
            || wanted.inline_size > LIMITS.max_inline
        {
            return Err(Error::InvalidParameter);
        }
        let receives = shared.map(|shared| &shared.receives);
        let pair = LocalPair::new(wanted, &receive.results, &initiator.results, receives, memory);
        let made = LocalQueuePair {
            pair: Arc::new(pair),
            receive: receive.clone(),
            initiator: initiator.clone(),
            shared: shared.cloned(),
        };
        made.queues().for_each(|queue| queue.attach(&made.pair));
        if let Some(shared) = shared {
            shared.attach(&made.pair);
        }
        Ok(made)
    }

    /// The queues of its completions: one or two.
    fn queues(&self) -> impl Iterator<Item = &Arc<Queue>> {
        let other = (!Arc::ptr_eq(&self.receive, &self.initiator)).then_some(&self.initiator);
        std::iter::once(&self.receive).chain(other)
    }

    /// Posts a request that `make` gives, which is told its place, and begins what can begin.
    fn post(
        &self,
        request: u64,
        flags: Flags,
        make: impl FnOnce(usize) -> ProviderResult<RequestedWork>,
    ) -> ProviderResult<()> {
        let pair = &self.pair;
        match pair.phase() {
            CONNECTED => {}
            ENDED => return Err(Error::Cancelled),
            _ => return Err(Error::NotConnected),
        }
        let make =
            |place| Ok(PostedRequest { request, flags, work: make(place)?, stage: Stage::Waiting });
        pair.requests.post(make, |number| {
            if !flags.has(Flags::SILENT) {
                pair.telling.store(number + 1, Ordering::SeqCst);
            }
        })?;
        pair.pump();
        if pair.phase() == ENDED {
            pair.kick_awaited();
        } else if pair.initiator.is_awaited() {
            if let Some(channel) = pair.channel.get().filter(|_| pair.wants_acknowledgements()) {
                channel.arm(ACKNOWLEDGEMENTS);
            }
            if pair.has_news() {
                pair.initiator.kick();
            }
        }
        Ok(())
    }

    /// The segments of a request, if they name at most `most` bytes of registered memory.
    fn list(&self, segments: &[MemoryPiece], most: u32) -> ProviderResult<List> {
        let list = List::of(segments, self.pair.attributes.segments)?;
        if self.pair.memory.check(segments)? > most as usize {
            return Err(Error::InvalidParameter);
        }
        Ok(list)
    }
}

impl implement::QueuePairObject for LocalQueuePair {
    type MemoryRegion = Region;

    fn send(&self, request: u64, from: &[MemoryPiece], flags: Flags) -> ProviderResult<()> {
        let list = self.list(from, LIMITS.max_message)?;
        self.post(request, flags, |_| Ok(RequestedWork::Send(list)))
    }

    fn send_inline(&self, request: u64, bytes: &[u8], flags: Flags) -> ProviderResult<()> {
        if bytes.len() > self.pair.inline.size() {
            return Err(Error::InvalidParameter);
        }
        self.post(request, flags, |place| {
            let to = self.pair.inline.of(place);
            // SAFETY: they fit, and the place is ours until it is posted.
            unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            Ok(RequestedWork::Inline(bytes.len()))
        })
    }

    fn receive(&self, request: u64, into: &[MemoryPiece]) -> ProviderResult<()> {
        let pair = &self.pair;
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

    fn read(
        &self,
        request: u64,
        into: &[MemoryPiece],
        from: RemoteMemory,
        flags: Flags,
    ) -> ProviderResult<()> {
        let list = self.list(into, LIMITS.max_transfer)?;
        self.post(request, flags, |_| Ok(RequestedWork::Read(list, from)))
    }

    fn write(
        &self,
        request: u64,
        from: &[MemoryPiece],
        to: RemoteMemory,
        flags: Flags,
    ) -> ProviderResult<()> {
        if flags.has(Flags::TELL) {
            return Err(Error::NotSupported);
        }
        let list = self.list(from, LIMITS.max_transfer)?;
        self.post(request, flags, |_| Ok(RequestedWork::Write(list, to)))
    }

    fn bind(
        &self,
        request: u64,
        region: &Region,
        address: u64,
        length: u64,
        access: RemoteAccess,
        flags: Flags,
    ) -> ProviderResult<u32> {
        let end = address.checked_add(length).ok_or(Error::InvalidParameter)?;
        if self.pair.channel.get().is_some_and(|channel| !channel.is_reached()) {
            // The kernel does not let the peer in: what it is given to access would end the connection.
            return Err(Error::NotSupported);
        }
        let token = self.pair.reserve_window(region.token()?, &(address..end))?;
        let posted =
            self.post(request, flags, |_| Ok(RequestedWork::Bind(token, address, end, access)));
        if posted.is_err() {
            self.pair.release_window(token);
        }
        posted.map(|()| token)
    }

    fn invalidate(&self, request: u64, token: u32, flags: Flags) -> ProviderResult<()> {
        if flags.has(Flags::AT_ONCE) {
            return self.pair.close_window(token);
        }
        self.post(request, flags, |_| {
            if self.pair.abandon_window(token) {
                Ok(RequestedWork::Invalidate(token))
            } else {
                Err(Error::InvalidParameter)
            }
        })
    }

    fn flush(&self) -> ProviderResult<()> {
        self.pair.end();
        Ok(())
    }
}

impl Drop for LocalQueuePair {
    /// No thread posts any more, and nothing more is told. A queue may keep the rest for a while, until the peer's last
    /// write has ended.
    fn drop(&mut self) {
        let pair = &self.pair;
        if pair.is_inherited() {
            return;
        }
        pair.end();
        pair.closed.store(true, Ordering::SeqCst);
        self.queues().for_each(|queue| queue.detach(pair));
        if let Some(shared) = &self.shared {
            shared.detach(pair.key);
        }
    }
}
