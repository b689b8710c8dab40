//! A shared receive queue, and the queue pairs whose messages go to its buffers.

use super::pair::LocalPair;
use super::shared_receives::SharedReceives;
use crate::provider::interface::{implement, MemoryPiece, ProviderResult};
use crate::provider::software::AdapterMemory;
use std::sync::{Arc, PoisonError, RwLock};

/// The queue, with those that a buffer may be for.
pub(super) struct SharedBuffers {
    /// What its queue pairs hold of it.
    pub(super) receives: Arc<SharedReceives>,
    members: RwLock<Vec<Arc<LocalPair>>>,
}

impl SharedBuffers {
    pub(super) fn attach(&self, pair: &Arc<LocalPair>) {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        members.push(pair.clone());
    }

    pub(super) fn detach(&self, key: u64) {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        members.retain(|pair| pair.key != key);
    }
}

/// See the module.
pub struct LocalSharedReceiveQueue(pub(super) Arc<SharedBuffers>);

impl LocalSharedReceiveQueue {
    /// For `depth` buffers at a time.
    ///
    /// # Errors
    /// Without memory.
    pub(super) fn new(memory: &Arc<AdapterMemory>, depth: u32) -> ProviderResult<Self> {
        let receives = Arc::new(SharedReceives::new(memory, depth)?);
        Ok(LocalSharedReceiveQueue(Arc::new(SharedBuffers {
            receives,
            members: RwLock::default(),
        })))
    }
}

impl implement::SharedReceiveQueueObject for LocalSharedReceiveQueue {
    fn receive(&self, request: u64, into: &[MemoryPiece]) -> ProviderResult<()> {
        if self.0.receives.post(request, into)? {
            let members = self.0.members.read().unwrap_or_else(PoisonError::into_inner);
            for pair in members.iter().filter(|pair| pair.is_not_ready()) {
                pair.receive_posted();
            }
        }
        Ok(())
    }
}
