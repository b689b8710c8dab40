//! A shared receive queue.

use crate::device::Device;
use crate::error::{check, last};
use crate::queue_pair::with_elements;
use rdma_sys::*;
use sanshim_core::provider::interface::{implement, Error, MemoryPiece, ProviderResult};
use std::ptr::{self, NonNull};
use std::sync::Arc;

#[derive(Clone)]
pub(crate) struct SharedReceiveQueue(Arc<Inner>);

struct Inner {
    device: Arc<Device>,
    queue: NonNull<ibv_srq>,
    segments: u32,
}

// SAFETY: rdma-core's objects may be used by any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl SharedReceiveQueue {
    pub(crate) fn new(device: &Arc<Device>, depth: u32) -> ProviderResult<Self> {
        if depth == 0 || depth > device.limits.max_shared_receive_depth {
            return Err(Error::InvalidParameter);
        }
        // Two segments, for a header and what follows it.
        let segments = device.limits.max_segments.min(2);
        let attr = ibv_srq_attr { max_wr: depth, max_sge: segments, srq_limit: 0 };
        let mut attributes = ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
        // SAFETY: a live domain.
        let queue = unsafe { ibv_create_srq(device.domain.as_ptr(), &mut attributes) };
        let queue = NonNull::new(queue).ok_or_else(last)?;
        Ok(SharedReceiveQueue(Arc::new(Inner { device: device.clone(), queue, segments })))
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_srq {
        self.0.queue.as_ptr()
    }
}

impl implement::SharedReceiveQueueObject for SharedReceiveQueue {
    fn receive(&self, request: u64, into: &[MemoryPiece]) -> ProviderResult<()> {
        with_elements(into, self.0.segments, |elements, count| {
            let mut work = ibv_recv_wr {
                wr_id: request,
                next: ptr::null_mut(),
                sg_list: elements,
                num_sge: count,
            };
            let mut bad = ptr::null_mut();
            // SAFETY: a live queue; the list is valid for the call.
            check(unsafe { ibv_post_srq_recv(self.as_ptr(), &mut work, &mut bad) })
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        debug_assert!(Arc::strong_count(&self.device) > 0);
        // SAFETY: its queue pairs hold it, so they are gone.
        unsafe { ibv_destroy_srq(self.queue.as_ptr()) };
    }
}
