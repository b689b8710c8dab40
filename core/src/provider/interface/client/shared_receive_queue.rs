//! A shared receive queue.

use super::super::abi;
use super::super::error::ProviderResult;
use super::super::types::MemoryPiece;
use super::owned::Owned;
use std::sync::Arc;

/// Buffers for the messages of several queue pairs, so that memory does not grow with
/// connections times buffers.
#[derive(Clone)]
pub struct SharedReceiveQueue {
    pub(super) object: Arc<Owned>,
}

impl SharedReceiveQueue {
    /// Posts a buffer.
    pub fn receive(&self, request: u64, into: &[MemoryPiece]) -> ProviderResult<()> {
        let table = self.object.table();
        // SAFETY: a live handle, a valid list.
        abi::done(unsafe {
            (table.receive_shared)(self.object.handle(), request, into.as_ptr(), into.len() as u32)
        })
    }
}
