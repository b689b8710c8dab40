//! What a queue pair consists of, what it tells its peer, and whether there is news for it.
//! [`queue_pair`](super::queue_pair) posts, and the [`engine`](super::engine) works off what was posted.
//!
//! Posting takes no lock but that of its own queue. It begins what can begin at once, and adds no completion. So a
//! signal handler may post while the interrupted thread takes completions, or the other way round. To end a queue pair
//! takes no lock at all.

use super::channel::LocalChannel;
use super::layout::{ACKNOWLEDGEMENTS, MESSAGES, RECEIVES};
use super::progress::{PairProgress, SeenProgress};
use super::results::Results;
use super::shared_receives::SharedReceives;
use super::window::WINDOWS;
use super::work_queue::{InlineBytes, PostedRequest, Receive, WorkQueue};
use crate::provider::interface::QueuePairAttributes;
use crate::provider::software::inherited;
use crate::provider::software::AdapterMemory;
use crate::sys::process;
use std::cell::UnsafeCell;
use std::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

/// No connection yet: what is sent now would be lost.
pub(super) const IDLE: u8 = 0;
/// Requests run.
pub(super) const CONNECTED: u8 = 1;
/// What is posted ends as cancelled.
pub(super) const ENDED: u8 = 2;

/// See the module.
pub(super) struct LocalPair {
    /// The number by which completion queues know it.
    pub(super) key: u64,
    generation: u32,
    pub(super) attributes: QueuePairAttributes,
    pub(super) receive: Arc<Results>,
    pub(super) initiator: Arc<Results>,
    pub(super) shared: Option<Arc<SharedReceives>>,
    pub(super) memory: Arc<AdapterMemory>,
    pub(super) channel: OnceLock<LocalChannel>,
    pub(super) phase: AtomicU8,
    /// Nothing begins any more. A thread that works on it has to end it.
    pub(super) ending: AtomicBool,
    /// The client has it no more.
    pub(super) closed: AtomicBool,
    pub(super) requests: WorkQueue<PostedRequest>,
    pub(super) inline: InlineBytes,
    pub(super) receives: WorkQueue<Receive>,
    /// One above the number of the last request that is not silent.
    pub(super) telling: AtomicU64,
    pub(super) seen: SeenProgress,
    /// Windows that are bound, or about to be: token, and below it the region's.
    pub(super) bound: [AtomicU64; WINDOWS],
    /// Begins anywhere: what is bound for one peer has no name for another.
    pub(super) serial: AtomicU32,
    pub(super) busy: AtomicBool,
    pub(super) again: AtomicBool,
    pub(super) progress: UnsafeCell<PairProgress>,
}

// SAFETY: a thread reaches `progress` only while it holds `busy`. Any thread may use all else.
unsafe impl Sync for LocalPair {}

impl LocalPair {
    pub(super) fn new(
        attributes: &QueuePairAttributes,
        receive: &Arc<Results>,
        initiator: &Arc<Results>,
        shared: Option<&Arc<SharedReceives>>,
        memory: &Arc<AdapterMemory>,
    ) -> Self {
        static KEY: AtomicU64 = AtomicU64::new(Results::FIRST_KEY);
        let own_receives = if shared.is_some() { 0 } else { attributes.receive_depth };
        let depth = attributes.initiator_depth;
        LocalPair {
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
            requests: WorkQueue::new(depth, PostedRequest::NONE),
            inline: InlineBytes::new(depth, attributes.inline_size),
            receives: WorkQueue::new(own_receives, Receive::NONE),
            telling: AtomicU64::new(0),
            seen: SeenProgress::default(),
            bound: [const { AtomicU64::new(0) }; WINDOWS],
            serial: AtomicU32::new(process::random()[0] as u32),
            busy: AtomicBool::new(false),
            again: AtomicBool::new(false),
            progress: UnsafeCell::new(PairProgress::default()),
        }
    }

    /// The queues of its completions: one or two.
    pub(super) fn queues(&self) -> impl Iterator<Item = &Arc<Results>> {
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

    /// No queue needs it any more.
    pub(super) fn is_gone(&self) -> bool {
        self.closed.load(Ordering::SeqCst) && !self.seen.stuck.load(Ordering::SeqCst)
    }

    /// Tells the peer how large a posted receive is.
    pub(super) fn announce(&self, channel: &LocalChannel, number: u64, capacity: usize) {
        let own = channel.own();
        let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
        own.capacities[(number % RECEIVES as u64) as usize].store(capacity, Ordering::Relaxed);
        // The thread that opens the connection may do the same: the number never goes back.
        own.receiving.0.posted.fetch_max(number + 1, Ordering::SeqCst);
    }

    /// Has the peer ring for what its completion queues, one of which is awaited, are awaited for. A look is to
    /// follow.
    pub(super) fn arm(&self) {
        if let Some(channel) = self.channel.get().filter(|_| self.phase() == CONNECTED) {
            let more = if self.wants_acknowledgements() { ACKNOWLEDGEMENTS } else { 0 };
            channel.arm(MESSAGES | more);
        }
    }

    /// True if a thread waits for one of its completion queues.
    pub(super) fn is_awaited(&self) -> bool {
        self.queues().any(|queue| queue.is_awaited())
    }

    /// True if the end of some request has to be told, or one has not begun.
    pub(super) fn wants_acknowledgements(&self) -> bool {
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

    /// Has the threads look that sleep until something completes.
    pub(super) fn kick_awaited(&self) {
        self.queues().filter(|queue| queue.is_awaited()).for_each(|queue| queue.kick());
    }

    /// A message waits for a buffer.
    pub(super) fn is_not_ready(&self) -> bool {
        self.seen.not_ready.load(Ordering::SeqCst)
    }

    /// A buffer was posted: takes a message that waits for it.
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
}
