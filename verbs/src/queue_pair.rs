//! A reliable queue pair.

use crate::completion_queue::CompletionQueue;
use crate::device::Device;
use crate::error::{check, check_last};
use crate::region::Region;
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::windows::Windows;
use rdma_sys::*;
use sanshim_core::provider::interface::*;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The code for 0.64 ms: how long the peer waits before it sends again what found no receive posted (A1).
const RECEIVER_NOT_READY: u8 = 12;

/// There is no connection yet. A message that is sent now would be lost.
const IDLE: u8 = 0;
/// Requests may be posted. After an error of the queue pair the device ends them.
const OPEN: u8 = 1;
/// All requests were ended. Not every device would end what is posted now.
const ENDED: u8 = 2;

#[derive(Clone)]
pub(crate) struct QueuePair(Arc<Inner>);

struct Inner {
    device: Arc<Device>,
    pair: NonNull<ibv_qp>,
    receive: CompletionQueue,
    initiator: CompletionQueue,
    shared: Option<SharedReceiveQueue>,
    segments: u32,
    inline_size: u32,
    state: AtomicU8,
    windows: Mutex<Windows>,
}

// SAFETY: rdma-core's objects may be used by any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// Calls with the segments as the device's scatter-gather elements, which have the same form.
pub(crate) fn with_elements<T>(
    segments: &[MemoryPiece],
    limit: u32,
    post: impl FnOnce(*mut ibv_sge, i32) -> ProviderResult<T>,
) -> ProviderResult<T> {
    const { assert!(size_of::<MemoryPiece>() == size_of::<ibv_sge>()) };
    const { assert!(std::mem::offset_of!(MemoryPiece, token) == std::mem::offset_of!(ibv_sge, lkey)) };
    if segments.len() > limit as usize {
        return Err(Error::InvalidParameter);
    }
    post(segments.as_ptr().cast_mut().cast(), segments.len() as i32)
}

/// A request without anything in it.
fn work(request: u64, opcode: ibv_wr_opcode::Type, flags: Flags) -> ibv_send_wr {
    // SAFETY: plain data, for which zeroes are valid.
    let mut work = unsafe { MaybeUninit::<ibv_send_wr>::zeroed().assume_init() };
    work.wr_id = request;
    work.opcode = opcode;
    if !flags.has(Flags::SILENT) {
        work.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
    }
    if flags.has(Flags::READ_FENCE) {
        work.send_flags |= ibv_send_flags::IBV_SEND_FENCE.0;
    }
    work
}

impl QueuePair {
    pub(crate) fn new(
        device: &Arc<Device>,
        wanted: &QueuePairAttributes,
        receive: &CompletionQueue,
        initiator: &CompletionQueue,
        shared: Option<&SharedReceiveQueue>,
    ) -> ProviderResult<Self> {
        let limits = &device.limits;
        if wanted.receive_depth > limits.max_receive_depth
            || wanted.initiator_depth == 0
            || wanted.initiator_depth > limits.max_initiator_depth
            || wanted.segments == 0
            || wanted.segments > limits.max_segments
            || wanted.inline_size > limits.max_inline
        {
            return Err(Error::InvalidParameter);
        }
        let capacity = ibv_qp_cap {
            max_send_wr: wanted.initiator_depth,
            max_recv_wr: if shared.is_some() { 0 } else { wanted.receive_depth },
            max_send_sge: wanted.segments,
            max_recv_sge: if shared.is_some() { 0 } else { wanted.segments },
            max_inline_data: wanted.inline_size,
        };
        let queue = shared.map_or(ptr::null_mut(), SharedReceiveQueue::as_ptr);
        let pair = device.create_pair(receive.as_ptr(), initiator.as_ptr(), queue, capacity)?;
        let made = QueuePair(Arc::new(Inner {
            device: device.clone(),
            pair,
            receive: receive.clone(),
            initiator: initiator.clone(),
            shared: shared.cloned(),
            segments: wanted.segments,
            inline_size: wanted.inline_size,
            state: AtomicU8::new(IDLE),
            windows: Mutex::default(),
        }));
        receive.name(made.number(), wanted.context);
        initiator.name(made.number(), wanted.context);
        // Receives may be posted from this state on.
        made.enter(ibv_qp_state::IBV_QPS_INIT, device.anchor(), |attributes, mask| {
            let remote = ibv_access_flags::IBV_ACCESS_REMOTE_READ
                | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
            attributes.qp_access_flags = remote.0;
            *mask |= ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS.0 as i32;
        })?;
        Ok(made)
    }

    /// The number by which the peer knows it.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: a live queue pair.
        unsafe { (*self.0.pair.as_ptr()).qp_num }
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.0.shared.is_some()
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.0.device
    }

    /// Moves to a state with the attributes that rdma_cm has for the connection, after `adjust` has changed them.
    fn enter(
        &self,
        state: ibv_qp_state::Type,
        id: *mut rdma_cm_id,
        adjust: impl FnOnce(&mut ibv_qp_attr, &mut i32),
    ) -> ProviderResult<()> {
        // SAFETY: plain data, for which zeroes are valid.
        let mut attributes = unsafe { MaybeUninit::<ibv_qp_attr>::zeroed().assume_init() };
        attributes.qp_state = state;
        let mut mask = 0;
        // SAFETY: a live identifier, and places for the answer.
        check_last(unsafe { rdma_init_qp_attr(id, &mut attributes, &mut mask) })?;
        adjust(&mut attributes, &mut mask);
        // SAFETY: a live queue pair.
        check(unsafe { ibv_modify_qp(self.0.pair.as_ptr(), &mut attributes, mask) })
    }

    /// Makes the queue pair ready to receive and to send over the connection of `id`.
    pub(crate) fn open(
        &self,
        id: *mut rdma_cm_id,
        inbound: u8,
        outbound: u8,
    ) -> ProviderResult<()> {
        if self.0.device.opens_pairs_itself() {
            return Ok(());
        }
        self.enter(ibv_qp_state::IBV_QPS_RTR, id, |attributes, _| {
            attributes.min_rnr_timer = RECEIVER_NOT_READY;
            attributes.max_dest_rd_atomic = inbound;
        })?;
        self.enter(ibv_qp_state::IBV_QPS_RTS, id, |attributes, _| {
            attributes.max_rd_atomic = outbound;
        })?;
        self.note_opened();
        Ok(())
    }

    /// It was opened.
    pub(crate) fn note_opened(&self) {
        self.0.state.store(OPEN, Ordering::Release);
    }

    /// Ends every request.
    pub(crate) fn end(&self) -> ProviderResult<()> {
        self.0.state.store(ENDED, Ordering::Release);
        // SAFETY: plain data, for which zeroes are valid.
        let mut attributes = unsafe { MaybeUninit::<ibv_qp_attr>::zeroed().assume_init() };
        attributes.qp_state = ibv_qp_state::IBV_QPS_ERR;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 as i32;
        // SAFETY: a live queue pair.
        check(unsafe { ibv_modify_qp(self.0.pair.as_ptr(), &mut attributes, mask) })
    }

    fn post(&self, work: &mut ibv_send_wr) -> ProviderResult<()> {
        match self.0.state.load(Ordering::Acquire) {
            OPEN => {}
            ENDED => return Err(Error::Cancelled),
            _ => return Err(Error::NotConnected),
        }
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair; the request and its list are valid for the call.
        check(unsafe { ibv_post_send(self.0.pair.as_ptr(), work, &mut bad) })
    }

    fn post_segments(&self, mut work: ibv_send_wr, segments: &[MemoryPiece]) -> ProviderResult<()> {
        with_elements(segments, self.0.segments, |elements, count| {
            work.sg_list = elements;
            work.num_sge = count;
            self.post(&mut work)
        })
    }

    fn windows(&self) -> MutexGuard<'_, Windows> {
        self.0.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl implement::QueuePairObject for QueuePair {
    type MemoryRegion = Region;

    fn send(&self, request: u64, from: &[MemoryPiece], flags: Flags) -> ProviderResult<()> {
        self.post_segments(work(request, ibv_wr_opcode::IBV_WR_SEND, flags), from)
    }

    fn send_inline(&self, request: u64, bytes: &[u8], flags: Flags) -> ProviderResult<()> {
        if bytes.len() > self.0.inline_size as usize {
            return Err(Error::InvalidParameter);
        }
        let mut work = work(request, ibv_wr_opcode::IBV_WR_SEND, flags);
        work.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
        let mut element =
            ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 };
        work.sg_list = &mut element;
        work.num_sge = 1;
        self.post(&mut work)
    }

    fn receive(&self, request: u64, into: &[MemoryPiece]) -> ProviderResult<()> {
        if self.is_shared() {
            return Err(Error::InvalidParameter);
        }
        if self.0.state.load(Ordering::Acquire) == ENDED {
            return Err(Error::Cancelled);
        }
        with_elements(into, self.0.segments, |elements, count| {
            let mut work = ibv_recv_wr {
                wr_id: request,
                next: ptr::null_mut(),
                sg_list: elements,
                num_sge: count,
            };
            let mut bad = ptr::null_mut();
            // SAFETY: a live queue pair; the list is valid for the call.
            check(unsafe { ibv_post_recv(self.0.pair.as_ptr(), &mut work, &mut bad) })
        })
    }

    fn read(
        &self,
        request: u64,
        into: &[MemoryPiece],
        from: RemoteMemory,
        flags: Flags,
    ) -> ProviderResult<()> {
        let mut work = work(request, ibv_wr_opcode::IBV_WR_RDMA_READ, flags);
        work.wr.rdma = rdma_t { remote_addr: from.address, rkey: from.token };
        self.post_segments(work, into)
    }

    fn write(
        &self,
        request: u64,
        from: &[MemoryPiece],
        to: RemoteMemory,
        flags: Flags,
    ) -> ProviderResult<()> {
        let tells = flags.has(Flags::TELL);
        let opcode = match tells {
            true => ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
            false => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        };
        let mut work = work(request, opcode, flags);
        if tells {
            // Devices do not agree on the length that the receive's completion has.
            let length = from.iter().fold(0u32, |sum, one| sum.saturating_add(one.length));
            work.imm_data_invalidated_rkey_union.imm_data = length.to_be();
        }
        work.wr.rdma = rdma_t { remote_addr: to.address, rkey: to.token };
        self.post_segments(work, from)
    }

    fn bind(
        &self,
        request: u64,
        region: &Region,
        address: u64,
        length: u64,
        access: RemoteAccess,
        flags: Flags,
    ) -> ProviderResult<u32> {
        if self.0.device.limits.flags & Limits::BIND == 0 {
            return Err(Error::NotSupported);
        }
        let end = address.checked_add(length).ok_or(Error::InvalidParameter)?;
        let memory = region.covering(&(address..end))?;
        let remote = match access {
            RemoteAccess::Read => ibv_access_flags::IBV_ACCESS_REMOTE_READ,
            RemoteAccess::Write => ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
        };
        let mut work = work(request, ibv_wr_opcode::IBV_WR_BIND_MW, flags);
        // Held while the request is posted, so that requests are in the order in which windows are taken and given
        // back.
        let mut windows = self.windows();
        let (window, token) = windows.take(&self.0.device)?;
        work.bind_mw_tso_union.bind_mw = bind_mw_t {
            mw: window.as_ptr(),
            rkey: token,
            bind_info: ibv_mw_bind_info {
                mr: memory,
                addr: address,
                length,
                mw_access_flags: remote.0,
            },
        };
        match self.post(&mut work) {
            Ok(()) => {
                windows.bound(window, token);
                Ok(token)
            }
            Err(error) => {
                windows.give_back(window);
                Err(error)
            }
        }
    }

    fn invalidate(&self, request: u64, token: u32, flags: Flags) -> ProviderResult<()> {
        let mut windows = self.windows();
        if flags.has(Flags::AT_ONCE) {
            return windows.end(token);
        }
        if !windows.is_bound(token) {
            return Err(Error::InvalidParameter);
        }
        let mut work = work(request, ibv_wr_opcode::IBV_WR_LOCAL_INV, flags);
        work.imm_data_invalidated_rkey_union.invalidated_rkey = token;
        self.post(&mut work)?;
        windows.invalidated(token)
    }

    fn flush(&self) -> ProviderResult<()> {
        self.end()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: a live queue pair; nothing posts any more.
        let number = unsafe { (*self.pair.as_ptr()).qp_num };
        // The windows go first, because one that is bound keeps its queue pair in use.
        self.windows.get_mut().unwrap_or_else(PoisonError::into_inner).close();
        // Before the device may give the number to another one.
        self.receive.forget(number);
        self.initiator.forget(number);
        // SAFETY: as above.
        unsafe { ibv_destroy_qp(self.pair.as_ptr()) };
    }
}
