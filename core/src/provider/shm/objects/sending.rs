//! The sending half of a queue pair: it begins requests in order, puts messages into the ring, and reports in order
//! what is over. All of this happens in a turn of the [`engine`](super::engine).

use super::channel::LocalChannel;
use super::layout::{self, MESSAGES, RECEIVES};
use super::pair::LocalPair;
use super::progress::PairProgress;
use super::ring::{record, HEADER, RING};
use super::work_queue::{PostedRequest, RequestedWork, Stage};
use crate::provider::interface::{Completion, Error, Flags, MemoryPiece, ProviderResult};
use std::sync::atomic::{fence, Ordering};

impl LocalPair {
    /// Begins requests in order, until one has to wait.
    pub(super) fn issue(&self, progress: &mut PairProgress, channel: &LocalChannel) {
        let end = self.requests.outstanding().end;
        let before = progress.sent;
        while progress.issued < end && !progress.broken && !self.ending.load(Ordering::SeqCst) {
            // SAFETY: begun in order, so it is outstanding; it is our turn.
            let (request, place) = unsafe { self.requests.at(progress.issued) };
            let Some(stage) = self.begin(progress, channel, &request.work, place) else { break };
            progress.broken = matches!(stage, Stage::Over(Err(_)));
            request.stage = stage;
            progress.issued += 1;
        }
        self.seen.issued.store(progress.issued, Ordering::Relaxed);
        if progress.sent != before {
            // After the fence in there it is seen what the peer posted and did before it could see these.
            channel.wake(MESSAGES);
        }
        let ripe = self.first(progress).and_then(|first| self.outcome(progress, channel, &first));
        self.seen.ripe.store(ripe.is_some(), Ordering::Relaxed);
    }

    /// `None`: later.
    fn begin(
        &self,
        progress: &mut PairProgress,
        channel: &LocalChannel,
        work: &RequestedWork,
        place: usize,
    ) -> Option<Stage> {
        match work {
            RequestedWork::Send(list) => self.send(progress, channel, list.segments()),
            RequestedWork::Inline(length) => {
                let position = match self.room(progress, channel, *length) {
                    Ok(position) => position?,
                    Err(error) => return Some(Stage::Over(Err(error))),
                };
                let from = self.inline.of(place);
                // SAFETY: so many bytes were put there when it was posted; there is room for them.
                unsafe { channel.outgoing().put(position, from, *length) };
                Some(self.publish(progress, channel, *length))
            }
            _ => self.begin_remote(channel, work),
        }
    }

    fn send(
        &self,
        progress: &mut PairProgress,
        channel: &LocalChannel,
        from: &[MemoryPiece],
    ) -> Option<Stage> {
        let failed = |error| Some(Stage::Over(Err(error)));
        let length = match self.memory.check(from) {
            Ok(length) => length,
            Err(error) => return failed(error),
        };
        let mut position = match self.room(progress, channel, length) {
            Ok(position) => position?,
            Err(error) => return failed(error),
        };
        let ring = channel.outgoing();
        let copied = self.memory.each(from, |at, bytes| {
            // SAFETY: registered, so mapped; the client changes it at its own risk meanwhile. There is
            // room for them all: the segments' lengths, a message's at most, do not change.
            unsafe { ring.put(position, at, bytes) };
            position += bytes as u64;
            Ok(())
        });
        if let Err(error) = copied {
            return failed(error);
        }
        // Once it is asked to end the client uses its buffers for something else. The fence orders the bytes
        // before the word.
        fence(Ordering::Acquire);
        (!self.ending.load(Ordering::SeqCst)).then(|| self.publish(progress, channel, length))
    }

    /// Where the bytes of the next message go; `None`: there is no room for it yet.
    fn room(
        &self,
        progress: &mut PairProgress,
        channel: &LocalChannel,
        length: usize,
    ) -> ProviderResult<Option<u64>> {
        let position = progress.written + HEADER as u64;
        let fits = |progress: &PairProgress| {
            progress.written - progress.acknowledged + record(length) <= RING as u64
        };
        if fits(&*progress) || (self.acknowledge(progress, channel).is_some() && fits(&*progress)) {
            return Ok(Some(position));
        }
        match channel.peer().sleeping.0.ended.load(Ordering::Acquire) {
            0 => Ok(None),
            _ => Err(Error::ConnectionReset),
        }
    }

    /// The next message is in the ring.
    fn publish(&self, progress: &mut PairProgress, channel: &LocalChannel, length: usize) -> Stage {
        channel.outgoing().put_length(progress.written, length);
        progress.written += record(length);
        let number = progress.sent;
        progress.sent += 1;
        channel.own().sending.0.published.store(progress.written, Ordering::Release);
        Stage::Sent { number, length, end: progress.written }
    }

    /// How many bytes the peer took; `None` if it says what cannot be.
    pub(super) fn acknowledge(
        &self,
        progress: &mut PairProgress,
        channel: &LocalChannel,
    ) -> Option<u64> {
        let consumed = channel.peer().receiving.0.consumed.load(Ordering::Acquire);
        if consumed < progress.acknowledged || consumed > progress.written {
            self.reject_peer(channel, "it says to have taken what was not sent");
            return None;
        }
        progress.acknowledged = consumed;
        self.seen.acknowledged.store(consumed, Ordering::Relaxed);
        Some(consumed)
    }

    /// The first request that is not over, if it was begun.
    pub(super) fn first(&self, progress: &PairProgress) -> Option<PostedRequest> {
        let outstanding = self.requests.outstanding();
        if outstanding.is_empty() || outstanding.start >= progress.issued {
            return None;
        }
        // SAFETY: outstanding; it is our turn, and the copy outlives the reference.
        Some(*unsafe { self.requests.at(outstanding.start) }.0)
    }

    /// How a request ended, if it has. A message has arrived when the peer took it, or when a buffer for it
    /// is posted there: it will be put into that one even if the connection ends.
    pub(super) fn outcome(
        &self,
        progress: &mut PairProgress,
        channel: &LocalChannel,
        request: &PostedRequest,
    ) -> Option<ProviderResult<()>> {
        let (number, length, end) = match request.stage {
            Stage::Waiting => return None,
            Stage::Over(result) => return Some(result),
            Stage::Sent { number, length, end } => (number, length, end),
        };
        if self.acknowledge(progress, channel)? >= end {
            return Some(Ok(()));
        }
        let peer = channel.peer();
        let ended = peer.sleeping.0.ended.load(Ordering::Acquire);
        if ended != 0 {
            // It took what it still took, or is about to.
            let has_arrived = self.acknowledge(progress, channel)? >= end;
            let why = match ended {
                layout::OVERFLOW => Error::BufferOverflow,
                _ => Error::ConnectionReset,
            };
            return Some(if has_arrived { Ok(()) } else { Err(why) });
        }
        let posted = peer.receiving.0.posted.load(Ordering::Acquire);
        self.seen.posted.store(posted, Ordering::Relaxed);
        let capacity = &peer.capacities[(number % RECEIVES as u64) as usize];
        let fits = number < posted && length <= capacity.load(Ordering::Relaxed) as usize;
        fits.then_some(Ok(()))
    }

    pub(super) fn tell(&self, request: &PostedRequest, result: ProviderResult<()>) {
        if result.is_err() || !request.flags.has(Flags::SILENT) {
            let (kind, context) = (request.kind(), self.attributes.context);
            let result = result.map(|()| 0);
            self.initiator.add(Completion::new(kind, request.request, context, result));
        }
    }

    /// Tells of the requests that are over, in order.
    pub(super) fn complete(&self, progress: &mut PairProgress, channel: &LocalChannel) {
        while let Some(first) = self.first(progress) {
            let Some(result) = self.outcome(progress, channel, &first) else { break };
            // Before it is told: there is room for another then.
            self.requests.end_first();
            self.tell(&first, result);
            if result.is_err() {
                self.stop(layout::ENDED);
                break;
            }
        }
        self.seen.ripe.store(false, Ordering::Relaxed);
    }
}
