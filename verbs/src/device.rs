//! A device, opened by one of its addresses, and what it can do.
//!
//! The context is this process's own. rdma_cm has one too, but in a fork child that is its parent's.

use crate::error::{self, check, check_last, last};
use crate::events::Channel;
use crate::shared_context::{self, Shared};
use rdma_sys::*;
use sanshim_core::provider::interface::abi;
use sanshim_core::provider::interface::{Error, Limits, ProviderResult};
use sanshim_core::provider::software::inherited;
use sanshim_core::sys::Fd;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// From so many bytes on RDMA is worth a registration (A2). See docs/providers.md.
const RDMA_THRESHOLD: u32 = 4096;
/// Bytes that InfiniBand leaves for private data in a connection request (REQ) of the TCP port space.
const PRIVATE_DATA: u32 = 56;
/// The vendor number that the kernel's rdma_rxe reports.
const SOFT_ROCE: u32 = 0xff_ffff;
/// The largest inline size that is tried.
const LARGEST_INLINE: u32 = 1024;

/// A device's context and protection domain. Everything made of it holds it.
pub(crate) struct Device {
    /// Dropped before `anchor`, because the context may go with that.
    shared: Shared,
    /// The identifier that is bound to `local`.
    anchor: Anchor,
    pub(crate) context: NonNull<ibv_context>,
    pub(crate) domain: NonNull<ibv_pd>,
    pub(crate) local: SocketAddr,
    pub(crate) limits: Limits,
}

// SAFETY: rdma-core's objects may be used by any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// An rdma_cm identifier and its channel.
struct Anchor(NonNull<rdma_cm_id>, #[allow(dead_code, reason = "the identifier uses it")] Channel);

impl Drop for Anchor {
    fn drop(&mut self) {
        // SAFETY: this object's own; no event of it is unacknowledged.
        unsafe { rdma_destroy_id(self.0.as_ptr()) };
    }
}

fn anchor(local: SocketAddr) -> ProviderResult<Anchor> {
    let channel = Channel::new()?;
    let mut id = ptr::null_mut();
    let space = rdma_port_space::RDMA_PS_TCP;
    // SAFETY: a live channel and a place for the identifier.
    let made = unsafe { rdma_create_id(channel.as_ptr(), &mut id, ptr::null_mut(), space) };
    check_last(made)?;
    let anchor = Anchor(NonNull::new(id).ok_or(Error::Internal)?, channel);
    let mut address = abi::to_c(SocketAddr::new(local.ip(), 0));
    // SAFETY: a live identifier and a valid address.
    check_last(unsafe { rdma_bind_addr(anchor.0.as_ptr(), (&raw mut address).cast()) })?;
    Ok(anchor)
}

/// True if some device serves this local address. Only the kernel knows that, so it is asked by binding.
pub(crate) fn serves(local: SocketAddr) -> bool {
    !local.ip().is_loopback()
        && anchor(local).is_ok_and(|anchor| {
            let shared = anchor.shared();
            shared.is_some()
        })
}

impl Anchor {
    /// rdma_cm's context of the device that it is bound to, if it is bound to one.
    fn shared(&self) -> Option<Shared> {
        // SAFETY: a live identifier; `verbs` is null as long as no device is bound.
        NonNull::new(unsafe { self.0.as_ref() }.verbs).map(Shared::of)
    }
}

impl Device {
    pub(crate) fn open(local: SocketAddr) -> ProviderResult<Arc<Device>> {
        if local.ip().is_loopback() || local.ip().is_unspecified() {
            return Err(Error::AddressNotAvailable);
        }
        let anchor = anchor(local).map_err(|error| match error {
            // With some kernels this error says that no device has the address.
            Error::DeviceRemoved => Error::AddressNotAvailable,
            error => error,
        })?;
        let shared = anchor.shared().ok_or(Error::AddressNotAvailable)?;
        // SAFETY: a live context, also in a fork child, where it is only looked at.
        let opened = unsafe { ibv_open_device(shared.context().as_ref().device) };
        let context = NonNull::new(opened).ok_or_else(last)?;
        // SAFETY: a live context, which nobody else knows.
        unsafe { shared_context::move_high(context) };
        // SAFETY: a live context.
        let Some(domain) = NonNull::new(unsafe { ibv_alloc_pd(context.as_ptr()) }) else {
            let error = last();
            // SAFETY: opened above and unused.
            unsafe { ibv_close_device(context.as_ptr()) };
            return Err(error);
        };
        for fd in descriptors(context) {
            inherited::note(fd);
        }
        let mut device = Device {
            anchor,
            context,
            domain,
            local: SocketAddr::new(local.ip(), 0),
            limits: Limits::default(),
            shared,
        };
        device.limits = device.ask()?;
        Ok(Arc::new(device))
    }

    /// The port of the device that has the address.
    fn port(&self) -> u8 {
        // SAFETY: a live identifier.
        unsafe { self.anchor.0.as_ref() }.port_num
    }

    fn ask(&self) -> ProviderResult<Limits> {
        let mut device = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: a live context and a place for the answer.
        check(unsafe { ibv_query_device(self.context.as_ptr(), device.as_mut_ptr()) })?;
        // SAFETY: plain data, zeroed and then written.
        let device = unsafe { device.assume_init() };
        let mut port = MaybeUninit::<ibv_port_attr>::zeroed();
        // SAFETY: as above.
        check(unsafe { ___ibv_query_port(self.context.as_ptr(), self.port(), port.as_mut_ptr()) })?;
        // SAFETY: as above.
        let port = unsafe { port.assume_init() };

        let natural = |value: i32| u32::try_from(value).unwrap_or(0);
        let has = |capability: ibv_device_cap_flags| {
            device.device_cap_flags & capability.0 == capability.0
        };
        let windows = device.max_mw > 0
            && (has(ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A)
                || has(ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B));
        // SAFETY: no arguments. Without copy-on-fork in the kernel, a fork could move pinned pages
        // of the application away under the device.
        let fork_safe = unsafe { ibv_is_fork_initialized() } == IBV_FORK_UNNEEDED;
        let mut flags = 0;
        if windows {
            flags |= Limits::BIND | Limits::TELLS;
        }
        if fork_safe {
            flags |= Limits::APPLICATION_MEMORY;
        }
        if device.vendor_id == SOFT_ROCE {
            flags |= Limits::BIND_ALONE;
        }
        if self.opens_pairs_itself() {
            flags |= Limits::UNHELD;
        }
        Ok(Limits {
            max_registration: device.max_mr_size,
            max_message: port.max_msg_sz,
            max_transfer: if windows { port.max_msg_sz } else { 0 },
            max_inline: self.largest_inline()?,
            max_segments: natural(device.max_sge),
            max_receive_depth: natural(device.max_qp_wr),
            max_initiator_depth: natural(device.max_qp_wr),
            max_shared_receive_depth: natural(device.max_srq_wr),
            max_completion_depth: natural(device.max_cqe),
            max_inbound_reads: natural(device.max_qp_rd_atom).min(255),
            max_outbound_reads: natural(device.max_qp_init_rd_atom).min(255),
            max_private_data: PRIVATE_DATA,
            rdma_threshold: RDMA_THRESHOLD,
            flags,
            reserved: 0,
        })
    }

    /// No query tells this, so queue pairs are tried.
    fn largest_inline(&self) -> ProviderResult<u32> {
        // SAFETY: a live context.
        let queue = NonNull::new(unsafe {
            ibv_create_cq(self.context.as_ptr(), 1, ptr::null_mut(), ptr::null_mut(), 0)
        })
        .ok_or_else(last)?;
        let mut inline = LARGEST_INLINE;
        while inline > 0 {
            let capacity = ibv_qp_cap {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: inline,
            };
            if let Ok(pair) =
                self.create_pair(queue.as_ptr(), queue.as_ptr(), ptr::null_mut(), capacity)
            {
                // SAFETY: made above.
                unsafe { ibv_destroy_qp(pair.as_ptr()) };
                break;
            }
            inline /= 2;
        }
        // SAFETY: made above, and its queue pairs are gone.
        unsafe { ibv_destroy_cq(queue.as_ptr()) };
        Ok(inline)
    }

    /// A reliable queue pair, in the state RESET.
    pub(crate) fn create_pair(
        &self,
        receive: *mut ibv_cq,
        initiator: *mut ibv_cq,
        shared: *mut ibv_srq,
        cap: ibv_qp_cap,
    ) -> ProviderResult<NonNull<ibv_qp>> {
        let mut attributes = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: initiator,
            recv_cq: receive,
            srq: shared,
            cap,
            qp_type: ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: live objects of this device.
        let pair = unsafe { ibv_create_qp(self.domain.as_ptr(), &mut attributes) };
        NonNull::new(pair).ok_or_else(error::last)
    }

    /// rdma-core's own object of the device, which is the same for everyone who opens it.
    pub(crate) fn device(&self) -> *mut ibv_device {
        // SAFETY: a live context.
        unsafe { self.context.as_ref() }.device
    }

    /// True for iWARP: the kernel opens a queue pair with its connection. rdma_cm tells the connecting end that the
    /// connection stands, where other devices tell of the answer.
    pub(crate) fn opens_pairs_itself(&self) -> bool {
        // SAFETY: a live device.
        let transport = unsafe { (*self.device()).transport_type };
        transport == ibv_transport_type::IBV_TRANSPORT_IWARP
    }

    /// The device was removed.
    pub(crate) fn is_removed(&self) {
        self.shared.is_removed();
    }

    /// The identifier that is bound to the device's address.
    pub(crate) fn anchor(&self) -> *mut rdma_cm_id {
        self.anchor.0.as_ptr()
    }
}

/// The descriptors of a context, for commands and for events.
fn descriptors(context: NonNull<ibv_context>) -> [Fd; 2] {
    // SAFETY: a live context.
    let context = unsafe { context.as_ref() };
    [context.cmd_fd, context.async_fd]
}

impl Drop for Device {
    fn drop(&mut self) {
        for fd in descriptors(self.context) {
            inherited::forget(fd);
        }
        // SAFETY: whatever is made of the device holds it, so all of it is gone.
        unsafe {
            ibv_dealloc_pd(self.domain.as_ptr());
            ibv_close_device(self.context.as_ptr());
        }
    }
}
