//! A completion queue, and its queue pairs. They make progress when a client asks the queue for results.

use super::pair::LocalPair;
use super::results::{Results, KICK};
use crate::provider::interface::{implement, Completion, ProviderResult, Reported, Started};
use crate::sys::poll;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

/// Doorbells heard at a time; the rest stays readable.
const BATCH: usize = 16;
/// After so many looks without a result, a client that never waits learns of peers that are gone.
const IDLE_LOOKS: u32 = 4096;

/// The queue, with those that make progress in its calls.
pub(super) struct Queue {
    /// What its queue pairs hold of it.
    pub(super) results: Arc<Results>,
    members: RwLock<Vec<Arc<LocalPair>>>,
    /// A thread could not look at the members.
    missed: AtomicBool,
    idle: AtomicU32,
}

impl Queue {
    fn new(depth: u32) -> ProviderResult<Self> {
        Ok(Queue {
            results: Arc::new(Results::new(depth)?),
            members: RwLock::default(),
            missed: AtomicBool::new(false),
            idle: AtomicU32::new(0),
        })
    }

    /// The queue pair makes progress when this queue is asked.
    pub(super) fn attach(&self, pair: &Arc<LocalPair>) {
        self.change(|members| members.push(pair.clone()));
    }

    /// It is closed.
    pub(super) fn detach(&self, pair: &LocalPair) {
        if let Some(channel) = pair.channel.get() {
            self.results.unwatch(channel);
        }
        self.change(|members| members.retain(|one| !one.is_gone()));
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<LocalPair>>)) {
        let mut members: RwLockWriteGuard<'_, _> =
            self.members.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut members);
        drop(members);
        if self.missed.swap(false, Ordering::SeqCst) {
            self.results.kick();
        }
    }

    /// The queue pairs, unless a thread is changing them: that thread then has them looked at. This waits for nobody,
    /// since a signal handler may ask while the thread that it interrupted has them.
    fn members(&self) -> Option<RwLockReadGuard<'_, Vec<Arc<LocalPair>>>> {
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

    /// Has peers ring for what comes from now on, where a thread waits for that. True if so: a look has to follow.
    fn arm(&self) -> bool {
        let Some(members) = self.members() else {
            self.results.kick();
            return true;
        };
        let mut any = false;
        for pair in members.iter().filter(|pair| pair.is_awaited()) {
            pair.arm();
            any = true;
        }
        any
    }

    /// Takes the rings, and looks. It arms again where nothing came of a ring: another thread may wait here, or for
    /// another queue of the same queue pair, which has one doorbell for both.
    fn listen(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        let count =
            poll::epoll_wait(self.results.set.get(), &mut events, Some(0), None).unwrap_or(0);
        let mut heard = false;
        if let Some(members) = self.members() {
            for event in &events[..count.min(BATCH)] {
                let key = { event.u64 };
                if key == KICK {
                    heard |= self.results.kick.lower();
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

    fn hear(&self, pair: &LocalPair) -> bool {
        let Some(channel) = pair.channel.get() else { return false };
        channel.hear();
        if channel.is_over() {
            // Readable for ever.
            self.results.unwatch(channel);
        }
        true
    }
}

/// See the module.
pub struct LocalCompletionQueue(pub(super) Arc<Queue>);

impl LocalCompletionQueue {
    /// For `depth` results.
    pub(super) fn new(depth: u32) -> ProviderResult<Self> {
        Ok(LocalCompletionQueue(Arc::new(Queue::new(depth)?)))
    }
}

impl implement::OverlappedObject for LocalCompletionQueue {
    fn descriptor(&self) -> RawFd {
        self.0.results.set.get()
    }

    fn next_result(&self) -> Option<Reported> {
        if let Some(reported) = self.0.results.completions.next_result() {
            return Some(reported);
        }
        self.0.listen();
        self.0.results.completions.next_result()
    }

    fn cancel(&self) {
        self.0.results.completions.cancel();
    }
}

impl implement::CompletionQueueObject for LocalCompletionQueue {
    fn get_results(&self, into: &mut [Completion]) -> ProviderResult<usize> {
        let queue = &self.0;
        queue.look();
        let count = queue.results.completions.take(into)?;
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
        queue.results.completions.take(into)
    }

    fn notify(&self, request: u64) -> ProviderResult<Started> {
        let started = self.0.results.completions.notify(request)?;
        self.0.arm();
        Ok(started)
    }
}
