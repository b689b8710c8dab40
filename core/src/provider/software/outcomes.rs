//! The base of asynchronous operations (N4): results wait here until the client fetches them.

use super::notifier::Notifier;
use crate::provider::interface::{ProviderResult, Reported};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Mutex, PoisonError};

/// Results of operations that were pending.
pub(crate) struct Outcomes {
    waiting: Mutex<VecDeque<Reported>>,
    notifier: Notifier,
}

impl Outcomes {
    /// None yet.
    pub(crate) fn new() -> ProviderResult<Self> {
        Ok(Outcomes { waiting: Mutex::default(), notifier: Notifier::new()? })
    }

    /// An operation has ended.
    pub(crate) fn report(&self, request: u64, result: ProviderResult<()>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push_back(Reported { request, result });
        self.notifier.raise();
    }

    /// Reports what was pending, if anything was.
    pub(crate) fn settle(&self, pending: &mut Option<u64>, result: ProviderResult<()>) {
        if let Some(request) = pending.take() {
            self.report(request, result);
        }
    }

    /// The oldest result.
    pub(crate) fn fetch(&self) -> Option<Reported> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let next = waiting.pop_front()?;
        if waiting.is_empty() {
            self.notifier.lower();
        }
        Some(next)
    }

    /// Readable while a result waits.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.notifier.descriptor()
    }
}
