//! What a queue pair consists of, and how requests are posted on it. They are worked off by the
//! [`engine`](super::engine).
//!
//! Posting takes no lock but that of its own queue, begins what can begin at once, and adds no completion: a
//! signal handler may post while what it interrupted takes completions, or the other way round.

use super::channel::{Channel, Parts};
use super::completion_queue::Queue;
use super::engine::Engine;
use super::layout::{MESSAGES, RECEIVES, SENDS};
use super::shared_receive_queue::Shared;
use super::window::WINDOWS;
use super::work_queue::{InlineBytes, List, Receive, Request, Stage, Work, WorkQueue};
use crate::provider::interface::*;
use crate::provider::software::inherited;
use crate::provider::software::Memory;
use crate::sys::process;
use std::cell::UnsafeCell;
use std::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

/// No connection yet: what is sent now would be lost.
pub(super) const IDLE: u8 = 0;
/// Requests run.
pub(super) const CONNECTED: u8 = 1;
/// What is posted is cancelled.
pub(super) const ENDED: u8 = 2;

/// What the engine saw last, for others to tell whether it would find something. Relaxed: whoever asks after
/// a turn of the engine, which ends with a store in SeqCst, sees what it left.
pub(super) struct Seen {
    /// Bytes taken from the peer.
    pub(super) taken: AtomicU64,
    /// Bytes that the peer took.
    pub(super) acknowledged: AtomicU64,
    /// Receives that the peer posted.
    pub(super) posted: AtomicU64,
    /// Requests that were begun.
    pub(super) issued: AtomicU64,
    /// A message waits for a buffer.
    pub(super) starved: AtomicBool,
    /// The first request has ended.
    pub(super) ripe: AtomicBool,
    /// An invalidation waits for a write of the peer's.
    pub(super) stuck: AtomicBool,
}

/// See the module.
pub(super) struct Pair {
    /// What completion queues know it by.
    pub(super) key: u64,
    generation: u32,
    pub(super) attributes: QueuePairAttributes,
    pub(super) receive: Arc<Queue>,
    pub(super) initiator: Arc<Queue>,
    pub(super) shared: Option<Arc<Shared>>,
    pub(super) memory: Arc<Memory>,
    pub(super) channel: OnceLock<Channel>,
    pub(super) phase: AtomicU8,
    /// Whoever works is to end it.
    pub(super) ending: AtomicBool,
    pub(super) requests: WorkQueue<Request>,
    pub(super) inline: InlineBytes,
    pub(super) receives: WorkQueue<Receive>,
    /// One above the number of the last request that is not silent.
    telling: AtomicU64,
    pub(super) seen: Seen,
    /// Windows that are bound, or about to be: token, and below it the region's.
    pub(super) bound: [AtomicU64; WINDOWS],
    /// Begins anywhere: what is bound for one peer has no name for another.
    pub(super) serial: AtomicU32,
    pub(super) busy: AtomicBool,
    pub(super) again: AtomicBool,
    pub(super) engine: UnsafeCell<Engine>,
}

// SAFETY: `engine` is only reached while `busy` is held; all else may be used by any thread.
unsafe impl Sync for Pair {}

impl Pair {
    pub(super) fn new(
        attributes: &QueuePairAttributes,
        receive: &Arc<Queue>,
        initiator: &Arc<Queue>,
        shared: Option<&Arc<Shared>>,
        memory: &Arc<Memory>,
    ) -> Arc<Self> {
        static KEY: AtomicU64 = AtomicU64::new(Queue::FIRST_KEY);
        let own_receives = if shared.is_some() { 0 } else { attributes.receive_depth };
        let depth = attributes.initiator_depth;
        Arc::new(Pair {
            key: KEY.fetch_add(1, Ordering::Relaxed),
            generation: inherited::generation(),
            attributes: *attributes,
            receive: receive.clone(),
            initiator: initiator.clone(),
            shared: shared.cloned(),
            memory: memory.clone(),
            channel: OnceLock::new(),
            phase: AtomicU8::new(IDLE),
            ending: AtomicBool::new(false),
            requests: WorkQueue::new(depth, Request::NONE),
            inline: InlineBytes::new(depth, attributes.inline_size),
            receives: WorkQueue::new(own_receives, Receive::NONE),
            telling: AtomicU64::new(0),
            seen: Seen {
                taken: AtomicU64::new(0),
                acknowledged: AtomicU64::new(0),
                posted: AtomicU64::new(0),
                issued: AtomicU64::new(0),
                starved: AtomicBool::new(false),
                ripe: AtomicBool::new(false),
                stuck: AtomicBool::new(false),
            },
            bound: [const { AtomicU64::new(0) }; WINDOWS],
            serial: AtomicU32::new(process::random()[0] as u32),
            busy: AtomicBool::new(false),
            again: AtomicBool::new(false),
            engine: UnsafeCell::new(Engine::default()),
        })
    }

    /// True in a fork child: it is the parent's, and left alone.
    pub(super) fn is_inherited(&self) -> bool {
        self.generation != inherited::generation()
    }

    #[inline]
    pub(super) fn phase(&self) -> u8 {
        self.phase.load(Ordering::SeqCst)
    }

    /// The connection is there.
    pub(super) fn open(self: &Arc<Self>, parts: Parts) -> Result<()> {
        if self.phase() != IDLE || self.channel.set(Channel::new(parts)).is_err() {
            return Err(Error::InvalidParameter);
        }
        let channel = self.channel.get().ok_or(Error::Internal)?;
        self.announce_all(channel);
        self.phase.store(CONNECTED, Ordering::SeqCst);
        if let Some(shared) = &self.shared {
            shared.attach(self);
        }
        self.receive.attach(self, channel)?;
        if !Arc::ptr_eq(&self.receive, &self.initiator) {
            self.initiator.attach(self, channel)?;
        }
        Ok(())
    }

    /// Ends it; nobody posts any more.
    pub(super) fn close(&self) {
        if self.is_inherited() {
            return;
        }
        self.end();
        self.receive.detach(self);
        self.initiator.detach(self);
        if let Some(shared) = &self.shared {
            shared.detach(self.key);
        }
    }

    /// Tells the peer how large a posted receive is.
    pub(super) fn announce(&self, channel: &Channel, number: u64, capacity: usize) {
        let own = channel.own();
        let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
        own.capacities[(number % RECEIVES as u64) as usize].store(capacity, Ordering::Relaxed);
        // Whoever opens the connection may be at it too: the number never goes back.
        own.receiving.0.posted.fetch_max(number + 1, Ordering::SeqCst);
    }

    /// Those that were posted before there was a connection.
    fn announce_all(&self, channel: &Channel) {
        while !self.enter() {
            process::yield_now();
        }
        for number in self.receives.outstanding() {
            // SAFETY: outstanding, and we are in the engine.
            let (receive, _) = unsafe { self.receives.at(number) };
            let capacity = self.memory.check(receive.into.segments()).unwrap_or(0);
            self.announce(channel, number, capacity);
        }
        self.leave();
    }

    /// Has the peer ring for what the completion queues are awaited for. A look is to follow.
    pub(super) fn arm(&self) {
        if let Some(channel) = self.channel.get().filter(|_| self.phase() == CONNECTED) {
            let sends = if self.wants_sends() { SENDS } else { 0 };
            channel.arm(MESSAGES | sends);
        }
    }

    /// Some request's end is to be told, or there is one that has not begun.
    fn wants_sends(&self) -> bool {
        let outstanding = self.requests.outstanding();
        outstanding.start < self.telling.load(Ordering::SeqCst)
            || self.seen.issued.load(Ordering::Relaxed) < outstanding.end
    }

    /// True if a run of the engine would find something.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        let seen = &self.seen;
        let phase = self.phase();
        if phase == ENDED {
            return !self.requests.outstanding().is_empty()
                || !self.receives.outstanding().is_empty();
        }
        let Some(channel) = self.channel.get().filter(|_| phase == CONNECTED) else { return false };
        let peer = channel.peer();
        let published = peer.sending.0.published.load(Ordering::Relaxed);
        let is = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        (published != seen.taken.load(Ordering::Relaxed) && !is(&seen.starved))
            || is(&seen.ripe)
            || is(&self.ending)
            || channel.is_over()
            || (!self.requests.outstanding().is_empty()
                && (peer.receiving.0.consumed.load(Ordering::Relaxed)
                    != seen.acknowledged.load(Ordering::Relaxed)
                    || peer.receiving.0.posted.load(Ordering::Relaxed)
                        != seen.posted.load(Ordering::Relaxed)
                    || peer.sleeping.0.ended.load(Ordering::Relaxed) != 0
                    || is(&seen.stuck)))
    }

    /// Has those look who sleep until something completes.
    pub(super) fn kick_awaited(&self) {
        for queue in [&self.receive, &self.initiator] {
            if queue.is_awaited() {
                queue.kick();
            }
        }
    }

    /// A message waits for a buffer.
    pub(super) fn is_starved(&self) -> bool {
        self.seen.starved.load(Ordering::SeqCst)
    }

    /// A buffer was posted: a message that waits for it is to be taken.
    pub(super) fn feed(&self) {
        self.seen.starved.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let Some(channel) = self.channel.get() else { return };
        let published = channel.peer().sending.0.published.load(Ordering::Relaxed);
        if published != self.seen.taken.load(Ordering::Relaxed) {
            if self.receive.is_awaited() {
                self.receive.kick();
            }
            channel.wake(SENDS);
        }
    }

    pub(super) fn post(
        &self,
        request: u64,
        flags: Flags,
        make: impl FnOnce(usize) -> Result<Work>,
    ) -> Result<()> {
        match self.phase() {
            CONNECTED => {}
            ENDED => return Err(Error::Cancelled),
            _ => return Err(Error::NotConnected),
        }
        let make =
            |place| Ok(Request { request, flags, work: make(place)?, stage: Stage::Waiting });
        self.requests.post(make, |number| {
            if !flags.has(Flags::SILENT) {
                self.telling.store(number + 1, Ordering::SeqCst);
            }
        })?;
        self.pump();
        if self.phase() == ENDED {
            self.kick_awaited();
        } else if self.initiator.is_awaited() {
            if let Some(channel) = self.channel.get().filter(|_| self.wants_sends()) {
                channel.arm_also(SENDS);
            }
            if self.has_news() {
                self.initiator.kick();
            }
        }
        Ok(())
    }

    /// The segments of a request, if they name at most `most` bytes of registered memory.
    pub(super) fn list(&self, segments: &[Segment], most: u32) -> Result<List> {
        let list = List::of(segments, self.attributes.segments)?;
        if self.memory.check(segments)? > most as usize {
            return Err(Error::InvalidParameter);
        }
        Ok(list)
    }
}
