//! A completion queue in memory.

use super::Outcomes;
use crate::provider::interface::{Completion, Error, Reported, Result, Started};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Mutex, PoisonError};

/// Entries, and at most one request for notification.
pub struct Completions {
    state: Mutex<State>,
    outcomes: Outcomes,
}

struct State {
    entries: VecDeque<Completion>,
    depth: usize,
    /// Entries were lost for want of room: the queue is broken, as a device's would be.
    overrun: bool,
    notify: Option<u64>,
}

impl Completions {
    /// For `depth` entries.
    pub fn new(depth: u32) -> Result<Self> {
        if depth == 0 {
            return Err(Error::InvalidParameter);
        }
        let depth = depth as usize;
        let entries = VecDeque::with_capacity(depth);
        let state = Mutex::new(State { entries, depth, overrun: false, notify: None });
        Ok(Completions { state, outcomes: Outcomes::new()? })
    }

    /// Adds an entry and notifies if asked to.
    pub fn add(&self, completion: Completion) {
        let mut state = self.lock();
        if state.entries.len() == state.depth {
            state.overrun = true;
        } else {
            state.entries.push_back(completion);
        }
        self.outcomes.settle(&mut state.notify, Ok(()));
    }

    /// Takes entries, oldest first.
    pub fn take(&self, into: &mut [Completion]) -> Result<usize> {
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

    /// Asks for notification of the next entry.
    pub fn notify(&self, request: u64) -> Result<Started> {
        let mut state = self.lock();
        if state.notify.is_some() {
            return Err(Error::InvalidParameter);
        }
        state.notify = Some(request);
        Ok(Started::Pending)
    }

    /// Withdraws the request for notification.
    pub fn cancel(&self) {
        self.outcomes.settle(&mut self.lock().notify, Err(Error::Cancelled));
    }

    /// The result of a notification.
    pub fn next_result(&self) -> Option<Reported> {
        self.outcomes.fetch()
    }

    /// Readable while a notification waits.
    pub fn descriptor(&self) -> RawFd {
        self.outcomes.descriptor()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
