//! The part of a shared receive queue that its queue pairs hold: the buffers. This part does not know the queue pairs.
//!
//! A thread that posts and a thread that takes share a lock. A signal handler may do neither while the interrupted
//! thread may do one of them: the client sees to that.

use super::work_queue::{List, Receive, SEGMENTS};
use crate::provider::interface::{Error, MemoryPiece, ProviderResult};
use crate::provider::software::AdapterMemory;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the module.
pub(super) struct SharedReceives {
    memory: Arc<AdapterMemory>,
    depth: usize,
    posted: Mutex<VecDeque<Receive>>,
    /// Some queue pair has a message and found no buffer.
    not_ready: AtomicBool,
}

impl SharedReceives {
    /// For `depth` buffers at a time.
    ///
    /// # Errors
    /// Without memory.
    pub(super) fn new(memory: &Arc<AdapterMemory>, depth: u32) -> ProviderResult<Self> {
        let (depth, mut posted) = (depth as usize, VecDeque::new());
        posted.try_reserve_exact(depth).map_err(|_| Error::InsufficientResources)?;
        Ok(SharedReceives {
            memory: memory.clone(),
            depth,
            posted: Mutex::new(posted),
            not_ready: AtomicBool::new(false),
        })
    }

    fn posted(&self) -> MutexGuard<'_, VecDeque<Receive>> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a buffer; true: some queue pair may wait for it.
    ///
    /// # Errors
    /// It is not registered memory, or there are as many as agreed.
    pub(super) fn post(&self, request: u64, into: &[MemoryPiece]) -> ProviderResult<bool> {
        let into = List::of(into, SEGMENTS as u32)?;
        self.memory.check(into.segments())?;
        {
            let mut posted = self.posted();
            if posted.len() >= self.depth {
                return Err(Error::InsufficientResources);
            }
            posted.push_back(Receive { request, into });
        }
        Ok(self.not_ready.swap(false, Ordering::SeqCst))
    }

    /// The oldest buffer.
    pub(super) fn take(&self) -> Option<Receive> {
        self.posted().pop_front()
    }

    /// A queue pair, which has noted so, found none: it looks once more.
    pub(super) fn await_receive(&self) {
        self.not_ready.store(true, Ordering::SeqCst);
    }
}
