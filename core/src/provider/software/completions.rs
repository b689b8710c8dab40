//! A completion queue in memory.

use super::Outcomes;
use crate::provider::interface::{Completion, Error, ProviderResult, Reported, Started};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

/// No client asked to be notified.
const SILENT: u8 = 0;
/// A thread is just asking, or just telling.
const ASKING: u8 = 1;
/// The next entry is told.
const AWAITED: u8 = 2;

/// Entries, and at most one request for notification, which takes no lock: a signal handler may ask for it that
/// interrupted a thread which is adding or taking entries.
pub(crate) struct Completions {
    state: Mutex<State>,
    outcomes: Outcomes,
    notify: AtomicU8,
    /// The number of that request.
    request: AtomicU64,
}

struct State {
    entries: VecDeque<Completion>,
    depth: usize,
    /// Entries were lost for want of room: the queue is broken, as a device's would be.
    overrun: bool,
}

impl Completions {
    /// For `depth` entries.
    pub(crate) fn new(depth: u32) -> ProviderResult<Self> {
        if depth == 0 {
            return Err(Error::InvalidParameter);
        }
        let depth = depth as usize;
        let mut entries = VecDeque::new();
        entries.try_reserve_exact(depth).map_err(|_| Error::InsufficientResources)?;
        Ok(Completions {
            state: Mutex::new(State { entries, depth, overrun: false }),
            outcomes: Outcomes::new()?,
            notify: AtomicU8::new(SILENT),
            request: AtomicU64::new(0),
        })
    }

    /// Adds an entry and notifies if asked to.
    pub(crate) fn add(&self, completion: Completion) {
        let mut state = self.lock();
        if state.entries.len() == state.depth {
            state.overrun = true;
        } else {
            state.entries.push_back(completion);
        }
        // Done under the lock. A client that asked and then finds the queue empty is told, and one that takes this
        // entry and then asks is not told of it.
        self.settle(Ok(()));
    }

    /// Takes entries, oldest first.
    pub(crate) fn take(&self, into: &mut [Completion]) -> ProviderResult<usize> {
        let mut state = self.lock();
        let count = into.len().min(state.entries.len());
        if count == 0 && state.overrun {
            return Err(Error::InsufficientResources);
        }
        for (place, entry) in into.iter_mut().zip(state.entries.drain(..count)) {
            *place = entry;
        }
        Ok(count)
    }

    /// Takes away a queue pair's entries.
    pub(crate) fn forget(&self, queue_pair: u64) {
        self.lock().entries.retain(|entry| entry.queue_pair != queue_pair);
    }

    /// Asks for notification of the next entry. SeqCst.
    pub(crate) fn notify(&self, request: u64) -> ProviderResult<Started> {
        let asked =
            self.notify.compare_exchange(SILENT, ASKING, Ordering::SeqCst, Ordering::Relaxed);
        asked.map_err(|_| Error::InvalidParameter)?;
        self.request.store(request, Ordering::Relaxed);
        self.notify.store(AWAITED, Ordering::SeqCst);
        Ok(Started::Pending)
    }

    /// True if the next entry has to be told. SeqCst.
    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        self.notify.load(Ordering::SeqCst) == AWAITED
    }

    /// Withdraws the request for notification.
    pub(crate) fn cancel(&self) {
        self.settle(Err(Error::Cancelled));
    }

    fn settle(&self, result: ProviderResult<()>) {
        if !self.is_awaited() {
            return;
        }
        // No client asks anew before its number is read.
        let taken =
            self.notify.compare_exchange(AWAITED, ASKING, Ordering::SeqCst, Ordering::Relaxed);
        if taken.is_ok() {
            let request = self.request.load(Ordering::Relaxed);
            self.notify.store(SILENT, Ordering::SeqCst);
            self.outcomes.report(request, result);
        }
    }

    /// The result of a notification.
    pub(crate) fn next_result(&self) -> Option<Reported> {
        self.outcomes.fetch()
    }

    /// Readable while a notification waits.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.outcomes.descriptor()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
