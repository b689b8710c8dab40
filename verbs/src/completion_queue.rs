//! A completion queue and its channel.

use crate::device::Device;
use crate::error::{check, last, of_completion};
use rdma_sys::*;
use sanshim_core::provider::interface::{
    implement, Completion, Error, ProviderResult, Reported, RequestKind, Started,
};
use sanshim_core::provider::software::{inherited, Waiting};
use sanshim_core::sys::file;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// So many results are taken from the device at a time.
const BATCH: usize = 16;

#[derive(Clone)]
pub(crate) struct CompletionQueue(Arc<Inner>);

struct Inner {
    device: Arc<Device>,
    queue: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
    waiting: Option<Waiting>,
    notify: Mutex<Option<u64>>,
    /// The client's context of each queue pair, by the queue pair's number.
    contexts: RwLock<HashMap<u32, u64>>,
}

// SAFETY: rdma-core's objects may be used by any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl CompletionQueue {
    pub(crate) fn new(device: &Arc<Device>, depth: u32) -> ProviderResult<Self> {
        if depth == 0 || depth > device.limits.max_completion_depth {
            return Err(Error::InvalidParameter);
        }
        let context = device.context.as_ptr();
        // SAFETY: a live context.
        let channel = NonNull::new(unsafe { ibv_create_comp_channel(context) }).ok_or_else(last)?;
        // As `events::Channel`.
        // SAFETY: a live channel, whose descriptor nothing but the channel knows yet.
        unsafe { (*channel.as_ptr()).fd = file::move_high(channel.as_ref().fd) };
        // SAFETY: a live context and channel.
        let queue =
            unsafe { ibv_create_cq(context, depth as i32, ptr::null_mut(), channel.as_ptr(), 0) };
        let Some(queue) = NonNull::new(queue) else {
            let error = last();
            // SAFETY: made above and unused.
            unsafe { ibv_destroy_comp_channel(channel.as_ptr()) };
            return Err(error);
        };
        let mut inner = Inner {
            device: device.clone(),
            queue,
            channel,
            waiting: None,
            notify: Mutex::new(None),
            contexts: RwLock::default(),
        };
        // SAFETY: a live channel.
        inherited::note(unsafe { channel.as_ref() }.fd);
        // SAFETY: as above.
        inner.waiting = Some(Waiting::over(unsafe { channel.as_ref() }.fd)?);
        Ok(CompletionQueue(Arc::new(inner)))
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_cq {
        self.0.queue.as_ptr()
    }

    pub(crate) fn name(&self, number: u32, context: u64) {
        self.0.contexts.write().unwrap_or_else(PoisonError::into_inner).insert(number, context);
    }

    pub(crate) fn forget(&self, number: u32) {
        self.0.contexts.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }

    fn waiting(&self) -> &Waiting {
        self.0.waiting.as_ref().expect("set when it was made")
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, Option<u64>> {
        self.0.notify.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn translate(&self, work: &ibv_wc) -> Option<Completion> {
        let contexts = self.0.contexts.read().unwrap_or_else(PoisonError::into_inner);
        // A result of a closed queue pair has no client any more.
        let context = *contexts.get(&work.qp_num)?;
        let completion = match of_completion(work.status) {
            Ok(()) => {
                let (kind, length) = match work.opcode {
                    ibv_wc_opcode::IBV_WC_SEND => (RequestKind::Send, 0),
                    ibv_wc_opcode::IBV_WC_RDMA_WRITE => (RequestKind::Write, 0),
                    ibv_wc_opcode::IBV_WC_RDMA_READ => (RequestKind::Read, 0),
                    ibv_wc_opcode::IBV_WC_BIND_MW => (RequestKind::Bind, 0),
                    ibv_wc_opcode::IBV_WC_LOCAL_INV => (RequestKind::Invalidate, 0),
                    ibv_wc_opcode::IBV_WC_RECV => (RequestKind::Receive, work.byte_len),
                    ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM => {
                        // SAFETY: such a completion has that part of the union.
                        let length = unsafe { work.imm_data_invalidated_rkey_union.imm_data };
                        (RequestKind::Told, u32::from_be(length))
                    }
                    _ => (RequestKind::Unknown, 0),
                };
                Completion::new(kind, work.wr_id, context, Ok(length))
            }
            // Of a failed request the device does not tell the opcode.
            Err(error) => Completion::new(RequestKind::Unknown, work.wr_id, context, Err(error)),
        };
        Some(completion)
    }
}

impl implement::OverlappedObject for CompletionQueue {
    fn descriptor(&self) -> RawFd {
        self.waiting().descriptor()
    }

    fn next_result(&self) -> Option<Reported> {
        let mut pending = self.pending();
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: a live channel that does not block; places for what it tells.
        while unsafe { ibv_get_cq_event(self.0.channel.as_ptr(), &mut queue, &mut context) } == 0 {
            // SAFETY: the event just taken is of this queue, the channel's only one.
            unsafe { ibv_ack_cq_events(queue, 1) };
            // If the request that armed it was withdrawn, nothing is pending.
            if let Some(request) = pending.take() {
                return Some(Reported { request, result: Ok(()) });
            }
        }
        self.waiting().fetch()
    }

    fn cancel(&self) {
        self.waiting().settle(&mut self.pending(), Err(Error::Cancelled));
    }
}

impl implement::CompletionQueueObject for CompletionQueue {
    fn get_results(&self, into: &mut [Completion]) -> ProviderResult<usize> {
        let mut count = 0;
        while count < into.len() {
            let wanted = BATCH.min(into.len() - count);
            let mut works = [const { MaybeUninit::<ibv_wc>::zeroed() }; BATCH];
            // SAFETY: a live queue and that many places.
            let got =
                unsafe { ibv_poll_cq(self.as_ptr(), wanted as i32, works.as_mut_ptr().cast()) };
            let got = usize::try_from(got).map_err(|_| Error::DeviceRemoved)?;
            for work in &works[..got.min(wanted)] {
                // SAFETY: written by the device, and plain data.
                if let Some(completion) = self.translate(unsafe { work.assume_init_ref() }) {
                    into[count] = completion;
                    count += 1;
                }
            }
            if got < wanted {
                break;
            }
        }
        Ok(count)
    }

    fn notify(&self, request: u64) -> ProviderResult<Started> {
        let mut pending = self.pending();
        if pending.is_some() {
            return Err(Error::InvalidParameter);
        }
        // SAFETY: a live queue.
        check(unsafe { ibv_req_notify_cq(self.as_ptr(), 0) })?;
        *pending = Some(request);
        Ok(Started::Pending)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        debug_assert!(Arc::strong_count(&self.device) > 0);
        self.waiting = None;
        // SAFETY: live until it is destroyed below.
        inherited::forget(unsafe { self.channel.as_ref() }.fd);
        // SAFETY: its queue pairs hold it, so they are gone; every event taken was acknowledged.
        unsafe {
            ibv_destroy_cq(self.queue.as_ptr());
            ibv_destroy_comp_channel(self.channel.as_ptr());
        }
    }
}
