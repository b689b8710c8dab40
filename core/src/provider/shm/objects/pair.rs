//! What a queue pair consists of, and how requests are posted on it. They are worked off by the
//! [`engine`](super::engine).
//!
//! Posting takes no lock but that of its own queue, begins what can begin at once, and adds no completion: a
//! signal handler may post while what it interrupted takes completions, or the other way round. To end a queue
//! pair takes no lock at all.

use super::channel::{Channel, Parts};
use super::completion_queue::Queue;
use super::engine::Engine;
use super::layout::{ACKNOWLEDGEMENTS, MESSAGES, RECEIVES};
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
    pub(super) not_ready: AtomicBool,
    /// The first request has ended.
    pub(super) ripe: AtomicBool,
    /// A window that is to be closed waits for a write of the peer's.
    pub(super) stuck: AtomicBool,
    /// What was left when it ended was told of.
    pub(super) settled: AtomicBool,
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
    /// Nothing begins any more, and whoever works is to end it.
    pub(super) ending: AtomicBool,
    /// The client has it no more.
    closed: AtomicBool,
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
        let pair = Arc::new(Pair {
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
            closed: AtomicBool::new(false),
            requests: WorkQueue::new(depth, Request::NONE),
            inline: InlineBytes::new(depth, attributes.inline_size),
            receives: WorkQueue::new(own_receives, Receive::NONE),
            telling: AtomicU64::new(0),
            seen: Seen {
                taken: AtomicU64::new(0),
                acknowledged: AtomicU64::new(0),
                posted: AtomicU64::new(0),
                issued: AtomicU64::new(0),
                not_ready: AtomicBool::new(false),
                ripe: AtomicBool::new(false),
                stuck: AtomicBool::new(false),
                settled: AtomicBool::new(false),
            },
            bound: [const { AtomicU64::new(0) }; WINDOWS],
            serial: AtomicU32::new(process::random()[0] as u32),
            busy: AtomicBool::new(false),
            again: AtomicBool::new(false),
            engine: UnsafeCell::new(Engine::default()),
        });
        pair.queues().for_each(|queue| queue.attach(&pair));
        if let Some(shared) = shared {
            shared.attach(&pair);
        }
        pair
    }

    /// The queues of its completions: one or two.
    fn queues(&self) -> impl Iterator<Item = &Arc<Queue>> {
        let other = (!Arc::ptr_eq(&self.receive, &self.initiator)).then_some(&self.initiator);
        std::iter::once(&self.receive).chain(other)
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
    pub(super) fn open(&self, parts: Parts) -> Result<()> {
        if self.phase() != IDLE || self.channel.set(Channel::new(parts)).is_err() {
            return Err(Error::InvalidParameter);
        }
        let channel = self.channel.get().ok_or(Error::Internal)?;
        channel.introduce();
        while !self.enter() {
            process::yield_now();
        }
        self.announce_all(channel);
        let connected =
            self.phase.compare_exchange(IDLE, CONNECTED, Ordering::SeqCst, Ordering::SeqCst);
        if self.leave() {
            self.pump();
        }
        // It was ended meanwhile.
        connected.map_err(|_| Error::Cancelled)?;
        self.queues().try_for_each(|queue| queue.watch(self, channel))
    }

    /// Ends it; nobody posts any more, and nothing more is told, unless a queue keeps it for a while: until the
    /// peer's last write has ended.
    pub(super) fn close(&self) {
        if self.is_inherited() {
            return;
        }
        self.end();
        self.closed.store(true, Ordering::SeqCst);
        self.queues().for_each(|queue| queue.detach(self));
        if let Some(shared) = &self.shared {
            shared.detach(self.key);
        }
    }

    /// No queue needs it any more.
    pub(super) fn is_gone(&self) -> bool {
        self.closed.load(Ordering::SeqCst) && !self.seen.stuck.load(Ordering::SeqCst)
    }

    /// Tells the peer how large a posted receive is.
    pub(super) fn announce(&self, channel: &Channel, number: u64, capacity: usize) {
        let own = channel.own();
        let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
        own.capacities[(number % RECEIVES as u64) as usize].store(capacity, Ordering::Relaxed);
        // Whoever opens the connection may be at it too: the number never goes back.
        own.receiving.0.posted.fetch_max(number + 1, Ordering::SeqCst);
    }

    /// Those that were posted before there was a connection. In our turn.
    fn announce_all(&self, channel: &Channel) {
        for number in self.receives.outstanding() {
            // SAFETY: outstanding, and we are in the engine.
            let (receive, _) = unsafe { self.receives.at(number) };
            let capacity = self.memory.check(receive.into.segments()).unwrap_or(0);
            self.announce(channel, number, capacity);
        }
    }

    /// Has the peer ring for what its completion queues, one of which is awaited, are awaited for. A look is to
    /// follow.
    pub(super) fn arm(&self) {
        if let Some(channel) = self.channel.get().filter(|_| self.phase() == CONNECTED) {
            let more = if self.wants_acknowledgements() { ACKNOWLEDGEMENTS } else { 0 };
            channel.arm(MESSAGES | more);
        }
    }

    /// Somebody waits for one of its completion queues.
    pub(super) fn is_awaited(&self) -> bool {
        self.queues().any(|queue| queue.is_awaited())
    }

    /// Some request's end is to be told, or there is one that has not begun.
    fn wants_acknowledgements(&self) -> bool {
        let outstanding = self.requests.outstanding();
        outstanding.start < self.telling.load(Ordering::SeqCst)
            || self.seen.issued.load(Ordering::Relaxed) < outstanding.end
    }

    /// True if a run of the engine would find something.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        let seen = &self.seen;
        let phase = self.phase();
        let is = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        if phase == ENDED {
            return !is(&seen.settled)
                || is(&seen.stuck)
                || !self.requests.outstanding().is_empty()
                || !self.receives.outstanding().is_empty();
        }
        let Some(channel) = self.channel.get().filter(|_| phase == CONNECTED) else { return false };
        let peer = channel.peer();
        let published = peer.sending.0.published.load(Ordering::Relaxed);
        (published != seen.taken.load(Ordering::Relaxed) && !is(&seen.not_ready))
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
        self.queues().filter(|queue| queue.is_awaited()).for_each(|queue| queue.kick());
    }

    /// A message waits for a buffer.
    pub(super) fn is_not_ready(&self) -> bool {
        self.seen.not_ready.load(Ordering::SeqCst)
    }

    /// A buffer was posted: a message that waits for it is to be taken.
    pub(super) fn receive_posted(&self) {
        self.seen.not_ready.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let Some(channel) = self.channel.get() else { return };
        let published = channel.peer().sending.0.published.load(Ordering::Relaxed);
        if published != self.seen.taken.load(Ordering::Relaxed) {
            if self.receive.is_awaited() {
                self.receive.kick();
            }
            if self.shared.is_none() {
                // Its send is over: the buffer is there.
                channel.wake(ACKNOWLEDGEMENTS);
            }
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
            if let Some(channel) = self.channel.get().filter(|_| self.wants_acknowledgements()) {
                channel.arm(ACKNOWLEDGEMENTS);
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
