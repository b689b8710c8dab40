//! A shared receive queue: buffers for the messages of several queue pairs.
//!
//! Who posts and who takes share a lock: a signal handler does neither while what it interrupted may be at it,
//! which is the client's to see to.

use super::pair::Pair;
use super::work_queue::{List, Receive, SEGMENTS};
use crate::provider::interface::{implement, Error, Result, Segment};
use crate::provider::software::Memory;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// What queue pairs hold of it.
pub(super) struct Shared {
    memory: Arc<Memory>,
    depth: usize,
    posted: Mutex<VecDeque<Receive>>,
    /// Some queue pair has a message and found no buffer.
    not_ready: AtomicBool,
    members: RwLock<Vec<Arc<Pair>>>,
}

impl Shared {
    fn posted(&self) -> MutexGuard<'_, VecDeque<Receive>> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The oldest buffer.
    pub(super) fn take(&self) -> Option<Receive> {
        self.posted().pop_front()
    }

    /// A queue pair, which has noted so, found none: it looks once more.
    pub(super) fn await_receive(&self) {
        self.not_ready.store(true, Ordering::SeqCst);
    }

    pub(super) fn attach(&self, pair: &Arc<Pair>) {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        members.push(pair.clone());
    }

    pub(super) fn detach(&self, key: u64) {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        members.retain(|pair| pair.key != key);
    }
}

/// See the module.
pub struct SharedReceiveQueue(pub(super) Arc<Shared>);

impl SharedReceiveQueue {
    /// For `depth` buffers at a time.
    ///
    /// # Errors
    /// Without memory.
    pub(super) fn new(memory: &Arc<Memory>, depth: u32) -> Result<Self> {
        let (depth, mut posted) = (depth as usize, VecDeque::new());
        posted.try_reserve_exact(depth).map_err(|_| Error::InsufficientResources)?;
        Ok(SharedReceiveQueue(Arc::new(Shared {
            memory: memory.clone(),
            depth,
            posted: Mutex::new(posted),
            not_ready: AtomicBool::new(false),
            members: RwLock::default(),
        })))
    }
}

impl implement::SharedReceiveQueue for SharedReceiveQueue {
    fn receive(&self, request: u64, into: &[Segment]) -> Result<()> {
        let shared = &self.0;
        let into = List::of(into, SEGMENTS as u32)?;
        shared.memory.check(into.segments())?;
        {
            let mut posted = shared.posted();
            if posted.len() >= shared.depth {
                return Err(Error::InsufficientResources);
            }
            posted.push_back(Receive { request, into });
        }
        if shared.not_ready.swap(false, Ordering::SeqCst) {
            let members = shared.members.read().unwrap_or_else(PoisonError::into_inner);
            for pair in members.iter().filter(|pair| pair.is_not_ready()) {
                pair.receive_posted();
            }
        }
        Ok(())
    }
}
