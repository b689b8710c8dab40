//! A completion queue, and the queue pairs that make progress when it is asked for results.

use super::channel::Channel;
use super::pair::Pair;
use crate::provider::interface::{implement, Completion, Error, Reported, Result, Started};
use crate::provider::software::inherited::Descriptor;
use crate::provider::software::{Completions, Notifier};
use crate::sys::{poll, Fd};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

/// What the descriptor is readable for, beside queue pairs' doorbells.
const RESULT: u64 = 0;
const KICK: u64 = 1;
/// Doorbells heard at a time; the rest stays readable.
const BATCH: usize = 16;
/// Every so many looks without a result a client that never waits is told of peers that are gone.
const IDLE_LOOKS: u32 = 4096;

/// What queue pairs hold of it.
pub(super) struct Queue {
    completions: Completions,
    /// Somebody saw something that a sleeper is to look at.
    kick: Notifier,
    set: Descriptor,
    members: RwLock<Vec<Arc<Pair>>>,
    /// Somebody could not look at the members.
    missed: AtomicBool,
    idle: AtomicU32,
}

fn watch(set: &Descriptor, fd: Fd, key: u64) -> Result<()> {
    poll::epoll_ctl(set.get(), libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, key)
        .map_err(|_| Error::InsufficientResources)
}

impl Queue {
    /// The first key of a queue pair.
    pub(super) const FIRST_KEY: u64 = 2;

    fn new(depth: u32) -> Result<Self> {
        let (completions, kick) = (Completions::new(depth)?, Notifier::new()?);
        let made = poll::epoll_create().map_err(|_| Error::InsufficientResources)?;
        let queue = Queue {
            completions,
            kick,
            set: Descriptor::new(made),
            members: RwLock::default(),
            missed: AtomicBool::new(false),
            idle: AtomicU32::new(0),
        };
        watch(&queue.set, queue.completions.descriptor(), RESULT)?;
        watch(&queue.set, queue.kick.descriptor(), KICK)?;
        Ok(queue)
    }

    /// Adds a result.
    pub(super) fn add(&self, completion: Completion) {
        self.completions.add(completion);
    }

    /// Whether the next result is to be told. SeqCst.
    #[inline]
    pub(super) fn is_awaited(&self) -> bool {
        self.completions.is_awaited()
    }

    /// Has whoever waits look at all queue pairs.
    #[cold]
    pub(super) fn kick(&self) {
        self.kick.raise();
    }

    /// The queue pair makes progress when this queue is asked.
    pub(super) fn attach(&self, pair: &Arc<Pair>) {
        self.change(|members| members.push(pair.clone()));
    }

    /// It is connected: its doorbell wakes who waits.
    pub(super) fn watch(&self, pair: &Pair, channel: &Channel) -> Result<()> {
        watch(&self.set, channel.doorbell(), pair.key)?;
        if self.is_awaited() {
            // It was armed without this one.
            self.kick();
        }
        Ok(())
    }

    /// It is closed.
    pub(super) fn detach(&self, pair: &Pair) {
        if let Some(channel) = pair.channel.get() {
            self.unwatch(channel);
        }
        self.change(|members| members.retain(|one| !one.is_gone()));
    }

    fn unwatch(&self, channel: &Channel) {
        let _ = poll::epoll_ctl(self.set.get(), libc::EPOLL_CTL_DEL, channel.doorbell(), 0, 0);
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Pair>>)) {
        let mut members: RwLockWriteGuard<'_, _> =
            self.members.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut members);
        drop(members);
        if self.missed.swap(false, Ordering::SeqCst) {
            self.kick();
        }
    }

    /// The queue pairs, unless they are being changed: who changes them has somebody look then. Nobody is
    /// waited for, since a signal handler may ask while what it interrupted has them.
    fn members(&self) -> Option<RwLockReadGuard<'_, Vec<Arc<Pair>>>> {
        for last in [false, true] {
            match self.members.try_read() {
                Ok(members) => return Some(members),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if last => {}
                Err(TryLockError::WouldBlock) => self.missed.store(true, Ordering::SeqCst),
            }
        }
        None
    }

    /// Lets the queue pairs go on.
    #[inline]
    fn look(&self) {
        if let Some(members) = self.members() {
            members.iter().filter(|pair| pair.has_news()).for_each(|pair| pair.run());
        }
    }

    /// Has peers ring for what comes from now on where somebody waits for it; true if so: a look is to follow.
    fn arm(&self) -> bool {
        let Some(members) = self.members() else {
            self.kick();
            return true;
        };
        let mut any = false;
        for pair in members.iter().filter(|pair| pair.is_awaited()) {
            pair.arm();
            any = true;
        }
        any
    }

    /// Takes what was rung, and looks; arms again for whom nothing came of it: who waits here, or for another
    /// queue of the same queue pair, whose one doorbell this is.
    fn listen(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        let count = poll::epoll_wait(self.set.get(), &mut events, Some(0), None).unwrap_or(0);
        let mut heard = false;
        if let Some(members) = self.members() {
            for event in &events[..count.min(BATCH)] {
                let key = { event.u64 };
                if key == KICK {
                    heard |= self.kick.lower();
                } else if let Some(pair) = members.iter().find(|pair| pair.key == key) {
                    heard |= self.hear(pair);
                }
            }
        }
        if !heard {
            return;
        }
        self.look();
        if self.arm() {
            self.look();
        }
    }

    fn hear(&self, pair: &Pair) -> bool {
        let Some(channel) = pair.channel.get() else { return false };
        channel.hear();
        if channel.is_over() {
            // Readable for ever.
            self.unwatch(channel);
        }
        true
    }
}

/// See the module.
pub struct CompletionQueue(pub(super) Arc<Queue>);

impl CompletionQueue {
    /// For `depth` results.
    pub(super) fn new(depth: u32) -> Result<Self> {
        Ok(CompletionQueue(Arc::new(Queue::new(depth)?)))
    }
}

impl implement::Overlapped for CompletionQueue {
    fn descriptor(&self) -> RawFd {
        self.0.set.get()
    }

    fn next_result(&self) -> Option<Reported> {
        if let Some(reported) = self.0.completions.next_result() {
            return Some(reported);
        }
        self.0.listen();
        self.0.completions.next_result()
    }

    fn cancel(&self) {
        self.0.completions.cancel();
    }
}

impl implement::CompletionQueue for CompletionQueue {
    fn get_results(&self, into: &mut [Completion]) -> Result<usize> {
        let queue = &self.0;
        queue.look();
        let count = queue.completions.take(into)?;
        if count > 0 {
            return Ok(count);
        }
        // Only ever counted: one that is lost does no harm.
        let idle = queue.idle.load(Ordering::Relaxed).wrapping_add(1);
        queue.idle.store(idle, Ordering::Relaxed);
        if !idle.is_multiple_of(IDLE_LOOKS) {
            return Ok(0);
        }
        queue.listen();
        queue.completions.take(into)
    }

    fn notify(&self, request: u64) -> Result<Started> {
        let started = self.0.completions.notify(request)?;
        self.0.arm();
        Ok(started)
    }
}
