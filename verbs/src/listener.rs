//! A listener over rdma_cm.

use crate::connector::{self, Connector};
use crate::device::Device;
use crate::error::check_last;
use crate::events::Channel;
use rdma_sys::*;
use sanshim_core::provider::interface::{abi, implement, Error, ProviderResult, Reported, Started};
use sanshim_core::provider::software::Waiting;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) struct Listener {
    device: Arc<Device>,
    id: NonNull<rdma_cm_id>,
    /// The client's request that is under way, and the connector that gets the connection.
    pending: Mutex<Option<(u64, Arc<connector::Inner>)>>,
    waiting: Waiting,
    channel: Channel,
}

// SAFETY: rdma-core's objects may be used by any thread.
unsafe impl Send for Listener {}
// SAFETY: as above.
unsafe impl Sync for Listener {}

impl Listener {
    pub(crate) fn new(device: &Arc<Device>) -> ProviderResult<Self> {
        let channel = Channel::new()?;
        let waiting = Waiting::over(channel.fd())?;
        let mut id = ptr::null_mut();
        let space = rdma_port_space::RDMA_PS_TCP;
        // SAFETY: a live channel and a place for the identifier.
        let made = unsafe { rdma_create_id(channel.as_ptr(), &mut id, ptr::null_mut(), space) };
        check_last(made)?;
        let id = NonNull::new(id).ok_or(Error::Internal)?;
        let pending = Mutex::new(None);
        Ok(Listener { device: device.clone(), id, pending, waiting, channel })
    }

    fn pending(&self) -> MutexGuard<'_, Option<(u64, Arc<connector::Inner>)>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl implement::OverlappedObject for Listener {
    fn descriptor(&self) -> RawFd {
        self.waiting.descriptor()
    }

    fn next_result(&self) -> Option<Reported> {
        let mut pending = self.pending();
        // While there is no connector for it, a connection request stays in the kernel's backlog.
        while let Some((request, connector)) = pending.take() {
            let Some(event) = self.channel.next() else {
                *pending = Some((request, connector));
                break;
            };
            let result = match event.kind {
                rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST => connector.adopt(event),
                rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL => Err(Error::DeviceRemoved),
                _ => {
                    *pending = Some((request, connector));
                    continue;
                }
            };
            self.waiting.settle(&mut Some(request), result);
        }
        drop(pending);
        self.waiting.fetch()
    }

    fn cancel(&self) {
        if let Some((request, _)) = self.pending().take() {
            self.waiting.settle(&mut Some(request), Err(Error::Cancelled));
        }
    }
}

impl implement::ListenerObject for Listener {
    type Connector = Connector;

    fn bind(&self, local: SocketAddr) -> ProviderResult<()> {
        if local.ip() != self.device.local.ip() {
            return Err(Error::AddressNotAvailable);
        }
        let mut address = abi::to_c(local);
        // SAFETY: a live identifier and a valid address.
        check_last(unsafe { rdma_bind_addr(self.id.as_ptr(), (&raw mut address).cast()) })
    }

    fn listen(&self, backlog: u32) -> ProviderResult<()> {
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX).max(1);
        // SAFETY: a live identifier.
        check_last(unsafe { rdma_listen(self.id.as_ptr(), backlog) })
    }

    fn local_address(&self) -> ProviderResult<SocketAddr> {
        // SAFETY: a live identifier; its address begins with the family.
        abi::from_c(unsafe { &self.id.as_ref().route.addr.src_addr_union.src_storage })
    }

    fn get_connection_request(
        &self,
        connector: &Connector,
        request: u64,
    ) -> ProviderResult<Started> {
        let mut pending = self.pending();
        if pending.is_some() || !connector.inner().is_unused() {
            return Err(Error::InvalidParameter);
        }
        *pending = Some((request, connector.inner().clone()));
        Ok(Started::Pending)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // SAFETY: this object's own; every event of it was acknowledged. The kernel refuses a
        // peer that still waits.
        unsafe { rdma_destroy_id(self.id.as_ptr()) };
    }
}
