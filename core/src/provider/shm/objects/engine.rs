//! Working off what was posted on a queue pair: one thread at a time, and nobody waits for it.
//!
//! Who finds another at it leaves a note, and that one looks once more. Who posts only begins requests
//! ([`Pair::pump`]); completions and messages are the business of who asks a completion queue
//! ([`Pair::run`]).

use super::channel::Channel;
use super::layout::{self, MESSAGES, RECEIVES, SENDS};
use super::queue_pair::{Pair, CONNECTED, ENDED, IDLE};
use super::ring::{record, HEADER, RING};
use super::work_queue::{Receive, Request, Stage, Work};
use crate::provider::interface::{Completion, Error, Flags, RequestKind, Result, Segment};
use crate::sys::process;
use std::sync::atomic::{fence, Ordering};

/// Largest message in bytes: at least three fit into a ring.
pub(super) const MAX_MESSAGE: u32 = 64 << 10;
/// How long, in yields, who ends a queue pair waits for its turn.
const ATTEMPTS: u32 = 100_000;

/// How far a queue pair has come. Positions count bytes, numbers messages and requests, from zero.
#[derive(Default)]
pub(super) struct Engine {
    /// Bytes put into the ring.
    written: u64,
    /// Of them, those that the peer took.
    acknowledged: u64,
    /// Messages put there.
    sent: u64,
    /// Bytes taken out of the peer's ring.
    taken: u64,
    /// Requests that were begun.
    issued: u64,
    /// One of them failed: those after it are not begun.
    broken: bool,
}

impl Pair {
    /// Gets a turn at the engine; false: another has it, and will look once more.
    pub(super) fn enter(&self) -> bool {
        if self.busy.swap(true, Ordering::SeqCst) {
            self.again.store(true, Ordering::SeqCst);
            // Once more: it may just have finished.
            if self.busy.swap(true, Ordering::SeqCst) {
                return false;
            }
        }
        // What was noted before, we are about to see.
        if self.again.load(Ordering::SeqCst) {
            self.again.store(false, Ordering::SeqCst);
        }
        true
    }

    /// Ends the turn; true if somebody came meanwhile.
    pub(super) fn leave(&self) -> bool {
        self.busy.store(false, Ordering::SeqCst);
        self.again.load(Ordering::SeqCst)
    }

    /// Begins requests.
    pub(super) fn pump(&self) {
        let mut came = false;
        while self.enter() {
            // SAFETY: it is our turn.
            let engine = unsafe { &mut *self.engine.get() };
            if let Some(channel) = self.channel.get().filter(|_| self.phase() == CONNECTED) {
                self.issue(engine, channel);
            }
            if !self.leave() {
                break;
            }
            came = true;
        }
        if came {
            // It may have been somebody who looked before going to sleep.
            self.kick_awaited();
        }
    }

    /// Takes messages, begins requests, and tells of those that are over.
    pub(super) fn run(&self) {
        while self.enter() {
            // SAFETY: it is our turn.
            self.work(unsafe { &mut *self.engine.get() });
            if !self.leave() {
                break;
            }
        }
    }

    fn work(&self, engine: &mut Engine) {
        match (self.phase(), self.channel.get()) {
            (CONNECTED, Some(channel)) => {
                self.take_messages(engine, channel);
                self.issue(engine, channel);
                self.complete(engine, channel);
                if channel.is_over() || self.ending.load(Ordering::SeqCst) {
                    self.fail(engine, channel, layout::ENDED, true);
                }
            }
            (ENDED, _) => self.cancel_all(engine),
            _ => {}
        }
    }

    /// Ends the queue pair: every request, and what the peer can reach (M2). What the peer sent before
    /// still arrives where a buffer is posted.
    pub(super) fn end(&self) {
        if self.is_inherited() {
            return;
        }
        for _ in 0..ATTEMPTS {
            if !self.enter() {
                process::yield_now();
                continue;
            }
            // SAFETY: it is our turn.
            let engine = unsafe { &mut *self.engine.get() };
            match (self.phase(), self.channel.get()) {
                (CONNECTED, Some(channel)) => self.fail(engine, channel, layout::ENDED, true),
                _ => {
                    self.phase.store(ENDED, Ordering::SeqCst);
                    self.cancel_all(engine);
                }
            }
            if self.leave() {
                self.run();
            }
            return;
        }
        // Interrupted, and we are the signal handler.
        self.ending.store(true, Ordering::SeqCst);
        self.kick_awaited();
    }

    /// The peer did what it must not.
    #[cold]
    fn reject_peer(&self, channel: &Channel, what: &str) {
        if !self.ending.swap(true, Ordering::SeqCst) {
            log::warn!("shm: a connection is ended: {what}");
            channel.hang_up();
            self.kick_awaited();
        }
    }

    /// Begins requests in order, until one has to wait.
    fn issue(&self, engine: &mut Engine, channel: &Channel) {
        let end = self.requests.outstanding().end;
        let before = engine.sent;
        while engine.issued < end && !engine.broken {
            // SAFETY: begun in order, so it is outstanding; it is our turn.
            let (request, place) = unsafe { self.requests.at(engine.issued) };
            let Some(stage) = self.begin(engine, channel, &request.work, place) else { break };
            engine.broken = matches!(stage, Stage::Over(Err(_)));
            request.stage = stage;
            engine.issued += 1;
        }
        self.seen.issued.store(engine.issued, Ordering::Relaxed);
        if engine.sent != before {
            // After the fence in there it is seen what the peer posted and did before it could see these.
            channel.wake(MESSAGES);
        }
        let ripe = self.first(engine).and_then(|first| self.outcome(engine, channel, &first));
        self.seen.ripe.store(ripe.is_some(), Ordering::Relaxed);
    }

    /// `None`: later.
    fn begin(
        &self,
        engine: &mut Engine,
        channel: &Channel,
        work: &Work,
        place: usize,
    ) -> Option<Stage> {
        match work {
            Work::Send(list) => self.send(engine, channel, list.segments()),
            Work::Inline(length) => {
                let position = match self.room(engine, channel, *length) {
                    Ok(position) => position?,
                    Err(error) => return Some(Stage::Over(Err(error))),
                };
                let from = self.inline.of(place);
                // SAFETY: so many bytes were put there when it was posted; there is room for them.
                unsafe { channel.outgoing().put(position, from, *length) };
                Some(self.publish(engine, channel, *length))
            }
            _ => self.begin_remote(channel, work),
        }
    }

    fn send(&self, engine: &mut Engine, channel: &Channel, from: &[Segment]) -> Option<Stage> {
        let failed = |error| Some(Stage::Over(Err(error)));
        let length = match self.memory.check(from) {
            Ok(length) => length.min(MAX_MESSAGE as usize),
            Err(error) => return failed(error),
        };
        let mut position = match self.room(engine, channel, length) {
            Ok(position) => position?,
            Err(error) => return failed(error),
        };
        let ring = channel.outgoing();
        let mut left = length;
        let copied = self.memory.each(from, |at, bytes| {
            let bytes = bytes.min(left);
            // SAFETY: registered, so mapped; the client changes it at its own risk meanwhile. There is
            // room for them all.
            unsafe { ring.put(position, at, bytes) };
            position += bytes as u64;
            left -= bytes;
            Ok(())
        });
        match copied {
            Ok(()) => Some(self.publish(engine, channel, length)),
            Err(error) => failed(error),
        }
    }

    /// Where the bytes of the next message go; `None`: there is no room for it yet.
    fn room(&self, engine: &mut Engine, channel: &Channel, length: usize) -> Result<Option<u64>> {
        let position = engine.written + HEADER as u64;
        let fits =
            |engine: &Engine| engine.written - engine.acknowledged + record(length) <= RING as u64;
        if fits(&*engine) || (self.acknowledge(engine, channel).is_some() && fits(&*engine)) {
            return Ok(Some(position));
        }
        match channel.peer().sleeping.0.ended.load(Ordering::Acquire) {
            0 => Ok(None),
            _ => Err(Error::ConnectionReset),
        }
    }

    /// The next message is in the ring.
    fn publish(&self, engine: &mut Engine, channel: &Channel, length: usize) -> Stage {
        channel.outgoing().put_length(engine.written, length);
        engine.written += record(length);
        let number = engine.sent;
        engine.sent += 1;
        channel.own().sending.0.published.store(engine.written, Ordering::Release);
        Stage::Sent { number, length, end: engine.written }
    }

    /// How many bytes the peer took; `None` if it says what cannot be.
    fn acknowledge(&self, engine: &mut Engine, channel: &Channel) -> Option<u64> {
        let consumed = channel.peer().receiving.0.consumed.load(Ordering::Acquire);
        if consumed < engine.acknowledged || consumed > engine.written {
            self.reject_peer(channel, "it says to have taken what was not sent");
            return None;
        }
        engine.acknowledged = consumed;
        self.seen.acknowledged.store(consumed, Ordering::Relaxed);
        Some(consumed)
    }

    /// The first request that is not over, if it was begun.
    fn first(&self, engine: &Engine) -> Option<Request> {
        let outstanding = self.requests.outstanding();
        if outstanding.is_empty() || outstanding.start >= engine.issued {
            return None;
        }
        // SAFETY: outstanding; it is our turn, and the copy outlives the reference.
        Some(*unsafe { self.requests.at(outstanding.start) }.0)
    }

    /// How a request ended, if it has. A message has arrived when the peer took it, or when a buffer for it
    /// is posted there: it will be put into that one even if the connection ends.
    fn outcome(
        &self,
        engine: &mut Engine,
        channel: &Channel,
        request: &Request,
    ) -> Option<Result<()>> {
        let (number, length, end) = match request.stage {
            Stage::Waiting => return None,
            Stage::Over(result) => return Some(result),
            Stage::Sent { number, length, end } => (number, length, end),
        };
        if self.acknowledge(engine, channel)? >= end {
            return Some(Ok(()));
        }
        let peer = channel.peer();
        let ended = peer.sleeping.0.ended.load(Ordering::Acquire);
        if ended != 0 {
            // It took what it still took, or is about to.
            return Some(match self.acknowledge(engine, channel)? >= end {
                true => Ok(()),
                false if ended == layout::OVERFLOW => Err(Error::BufferOverflow),
                false => Err(Error::ConnectionReset),
            });
        }
        let posted = peer.receiving.0.posted.load(Ordering::Acquire);
        self.seen.posted.store(posted, Ordering::Relaxed);
        let capacity = &peer.capacities[(number % RECEIVES as u64) as usize];
        let fits = number < posted && length <= capacity.load(Ordering::Relaxed) as usize;
        fits.then_some(Ok(()))
    }

    fn tell(&self, request: &Request, result: Result<()>) {
        if result.is_err() || !request.flags.has(Flags::SILENT) {
            let (kind, context) = (request.kind(), self.attributes.context);
            let result = result.map(|()| 0);
            self.initiator.add(Completion::new(kind, request.request, context, result));
        }
    }

    fn tell_received(&self, receive: &Receive, result: Result<u32>) {
        let context = self.attributes.context;
        let kind = RequestKind::Receive;
        self.receive.add(Completion::new(kind, receive.request, context, result));
    }

    /// Tells of the requests that are over, in order.
    fn complete(&self, engine: &mut Engine, channel: &Channel) {
        while let Some(first) = self.first(engine) {
            let Some(result) = self.outcome(engine, channel, &first) else { break };
            // Before it is told: there is room for another then.
            self.requests.end_first();
            self.tell(&first, result);
            if result.is_err() {
                return self.fail(engine, channel, layout::ENDED, true);
            }
        }
        self.seen.ripe.store(false, Ordering::Relaxed);
    }

    fn next_receive(&self) -> Option<Receive> {
        if let Some(shared) = &self.shared {
            return shared.take();
        }
        let outstanding = self.receives.outstanding();
        if outstanding.is_empty() {
            return None;
        }
        // SAFETY: outstanding; it is our turn, and the copy outlives the reference.
        let receive = *unsafe { self.receives.at(outstanding.start) }.0;
        self.receives.end_first();
        Some(receive)
    }

    /// A buffer for a message that is there; without one, who posts the next one has it taken.
    fn receive_or_starve(&self) -> Option<Receive> {
        if let Some(receive) = self.next_receive() {
            return Some(receive);
        }
        self.seen.starved.store(true, Ordering::SeqCst);
        if let Some(shared) = &self.shared {
            shared.starve();
        }
        // Posted before that could be seen.
        let receive = self.next_receive()?;
        self.seen.starved.store(false, Ordering::SeqCst);
        Some(receive)
    }

    /// Takes what the peer sent, as far as there are buffers.
    fn take_messages(&self, engine: &mut Engine, channel: &Channel) {
        let before = engine.taken;
        loop {
            let published = channel.peer().sending.0.published.load(Ordering::Acquire);
            let available = published.wrapping_sub(engine.taken);
            if available == 0 {
                break;
            }
            // Read once, and not taken for granted.
            let length = channel.incoming().length(engine.taken);
            let is_whole = available <= RING as u64
                && length <= MAX_MESSAGE.into()
                && record(length as usize) <= available;
            if !is_whole {
                self.reject_peer(channel, "its messages are nonsense");
                break;
            }
            let Some(receive) = self.receive_or_starve() else { break };
            if let Err(error) = self.take_message(engine, channel, &receive, length as usize) {
                self.tell_received(&receive, Err(error));
                let overflow = error == Error::BufferOverflow;
                let code = if overflow { layout::OVERFLOW } else { layout::ENDED };
                self.fail(engine, channel, code, false);
                break;
            }
            self.tell_received(&receive, Ok(length as u32));
        }
        if engine.taken != before {
            channel.wake(SENDS);
        }
    }

    fn take_message(
        &self,
        engine: &mut Engine,
        channel: &Channel,
        receive: &Receive,
        length: usize,
    ) -> Result<()> {
        let into = receive.into.segments();
        if self.memory.check(into)? < length {
            return Err(Error::BufferOverflow);
        }
        let ring = channel.incoming();
        let (mut position, mut left) = (engine.taken + HEADER as u64, length);
        self.memory.each(into, |at, bytes| {
            let bytes = bytes.min(left);
            // SAFETY: registered, so mapped and ours to write; a message is shorter than the ring.
            unsafe { ring.get(position, at, bytes) };
            position += bytes as u64;
            left -= bytes;
            Ok(())
        })?;
        engine.taken += record(length);
        self.seen.taken.store(engine.taken, Ordering::Relaxed);
        channel.own().receiving.0.consumed.store(engine.taken, Ordering::Release);
        Ok(())
    }

    /// Ends the queue pair; `code` is what the peer is told. `takes`: what it sent before still arrives.
    fn fail(&self, engine: &mut Engine, channel: &Channel, code: u32, takes: bool) {
        if self.phase.swap(ENDED, Ordering::SeqCst) == ENDED {
            return;
        }
        channel.own().sleeping.0.ended.store(code, Ordering::SeqCst);
        // A peer that has not seen this counts on the buffers that are posted: its messages are seen below.
        fence(Ordering::SeqCst);
        self.close_windows();
        if takes {
            self.take_messages(engine, channel);
        }
        while let Some(first) = self.first(engine) {
            let Some(Ok(())) = self.outcome(engine, channel, &first) else { break };
            self.requests.end_first();
            self.tell(&first, Ok(()));
        }
        self.cancel_all(engine);
        channel.wake(MESSAGES | SENDS);
    }

    /// Cancels what is left, and what was posted since.
    fn cancel_all(&self, engine: &mut Engine) {
        debug_assert_ne!(self.phase(), IDLE);
        loop {
            let outstanding = self.requests.outstanding();
            if outstanding.is_empty() {
                break;
            }
            // SAFETY: outstanding; it is our turn, and the copy outlives the reference.
            let request = *unsafe { self.requests.at(outstanding.start) }.0;
            self.requests.end_first();
            self.tell(&request, Err(Error::Cancelled));
        }
        engine.issued = self.requests.outstanding().start;
        self.seen.issued.store(engine.issued, Ordering::Relaxed);
        if self.shared.is_none() {
            while let Some(receive) = self.next_receive() {
                self.tell_received(&receive, Err(Error::Cancelled));
            }
        }
        self.close_windows();
    }
}
