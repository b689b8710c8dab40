//! A completion queue.

use super::super::abi;
use super::super::error::ProviderResult;
use super::super::types::{Completion, Started};
use super::owned::Owned;
use std::sync::Arc;

/// Where requests end. Its pending operation is the request for notification.
#[derive(Clone)]
pub struct CompletionQueue {
    pub(super) object: Arc<Owned>,
}

super::overlapped::overlapped!(CompletionQueue, completion_queue);

impl CompletionQueue {
    /// Takes results, oldest first, and tells how many. Never blocks.
    pub fn get_results(&self, into: &mut [Completion]) -> ProviderResult<usize> {
        let room = u32::try_from(into.len()).unwrap_or(u32::MAX);
        // SAFETY: a live handle; the slice has `room` entries.
        let count = abi::count(unsafe {
            (self.object.table().get_results)(self.object.handle(), into.as_mut_ptr(), room)
        })?;
        Ok(count.min(into.len()))
    }

    /// Asks to be told of the next result that is added. Look at the queue once more before
    /// waiting: what was added before is not told.
    pub fn notify(&self, request: u64) -> ProviderResult<Started> {
        // SAFETY: a live handle.
        abi::started(unsafe { (self.object.table().notify)(self.object.handle(), request) })
    }
}
