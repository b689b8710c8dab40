//! A connector over rdma_cm. It has no thread. `next_result` takes the steps of a connection when their events have
//! come.

use crate::device::Device;
use crate::error::{check_last, of_connecting};
use crate::events::{Channel, Event};
use crate::queue_pair::QueuePair;
use rdma_sys::*;
use sanshim_core::provider::interface::{abi, implement, Error, ProviderResult, Reported, Started};
use sanshim_core::provider::software::Waiting;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Milliseconds that the address has to be found, and again the route.
const RESOLVING: i32 = 2000;
/// A request that is not acknowledged is sent again so many times. On some devices in software seven means for ever.
const RETRIES: u8 = 6;
/// A message that finds no receive posted is sent again for ever, which this number means (A1).
const RECEIVER_NOT_READY_RETRIES: u8 = 7;
/// So many RDMA reads may be under way in each direction, if the devices can do so many.
const READS: u32 = 16;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Asking,
    Agreed,
    Asked,
    Accepted,
    Connected,
    Ended(Option<Error>),
}

pub(crate) struct Connector(Arc<Inner>);

pub(crate) struct Inner {
    device: Arc<Device>,
    state: Mutex<State>,
    waiting: Waiting,
    // Dropped after `state`, whose identifier uses it.
    channel: Channel,
}

struct State {
    id: *mut rdma_cm_id,
    phase: Phase,
    pair: Option<QueuePair>,
    private_data: Vec<u8>,
    inbound: u8,
    outbound: u8,
    connecting: Option<u64>,
    awaiting_end: Option<u64>,
}

// SAFETY: rdma-core's objects may be used by any thread.
unsafe impl Send for State {}

impl Connector {
    pub(crate) fn new(device: &Arc<Device>) -> ProviderResult<Self> {
        let channel = Channel::new()?;
        let reads = |limit: u32| limit.min(READS) as u8;
        let state = State {
            id: ptr::null_mut(),
            phase: Phase::Idle,
            pair: None,
            private_data: Vec::new(),
            inbound: reads(device.limits.max_inbound_reads),
            outbound: reads(device.limits.max_outbound_reads),
            connecting: None,
            awaiting_end: None,
        };
        Ok(Connector(Arc::new(Inner {
            device: device.clone(),
            state: Mutex::new(state),
            waiting: Waiting::over(channel.fd())?,
            channel,
        })))
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if it could take a connection request.
    pub(crate) fn is_unused(&self) -> bool {
        let state = self.lock();
        state.phase == Phase::Idle && state.id.is_null()
    }

    /// Takes a connection request over from a listener.
    pub(crate) fn adopt(&self, event: Event) -> ProviderResult<()> {
        let mut state = self.lock();
        // SAFETY: the request's new identifier, all of whose events are acknowledged.
        let moved = check_last(unsafe { rdma_migrate_id(event.id, self.channel.as_ptr()) });
        if moved.is_err() || !state.id.is_null() {
            // SAFETY: as above; nobody else has it.
            unsafe { rdma_destroy_id(event.id) };
            return moved.and(Err(Error::InvalidParameter));
        }
        state.id = event.id;
        state.phase = Phase::Asked;
        state.private_data = event.private_data;
        state.inbound = state.inbound.min(event.inbound);
        state.outbound = state.outbound.min(event.outbound);
        Ok(())
    }

    /// Makes the identifier and binds it to an address of the device.
    fn bind(&self, state: &mut State, local: SocketAddr) -> ProviderResult<()> {
        if local.ip() != self.device.local.ip() {
            return Err(Error::AddressNotAvailable);
        }
        if state.phase != Phase::Idle || !state.id.is_null() {
            return Err(Error::InvalidParameter);
        }
        let (channel, space) = (self.channel.as_ptr(), rdma_port_space::RDMA_PS_TCP);
        // SAFETY: a live channel and a place for the identifier.
        check_last(unsafe { rdma_create_id(channel, &mut state.id, ptr::null_mut(), space) })?;
        let mut address = abi::to_c(local);
        // SAFETY: a live identifier and a valid address.
        let bound = check_last(unsafe { rdma_bind_addr(state.id, (&raw mut address).cast()) });
        if bound.is_err() {
            self.destroy_id(state);
        }
        bound
    }

    fn parameters(
        &self,
        state: &State,
        pair: &QueuePair,
        data: &[u8],
    ) -> ProviderResult<rdma_conn_param> {
        if data.len() > self.device.limits.max_private_data as usize {
            return Err(Error::InvalidParameter);
        }
        Ok(rdma_conn_param {
            private_data: data.as_ptr().cast(),
            private_data_len: data.len() as u8,
            responder_resources: state.inbound,
            initiator_depth: state.outbound,
            flow_control: 1,
            retry_count: RETRIES,
            rnr_retry_count: RECEIVER_NOT_READY_RETRIES,
            srq: pair.is_shared().into(),
            qp_num: pair.number(),
        })
    }

    /// Takes the step that an event allows.
    fn advance(&self, state: &mut State, event: Event) {
        use rdma_cm_event_type::*;
        match (event.kind, state.phase) {
            (RDMA_CM_EVENT_ADDR_RESOLVED, Phase::Asking) => {
                // SAFETY: a live identifier.
                let begun = check_last(unsafe { rdma_resolve_route(state.id, RESOLVING) });
                if let Err(error) = begun {
                    self.end(state, Some(error));
                }
            }
            (RDMA_CM_EVENT_ROUTE_RESOLVED, Phase::Asking) => {
                if let Err(error) = self.ask(state) {
                    self.end(state, Some(error));
                }
            }
            (RDMA_CM_EVENT_CONNECT_RESPONSE | RDMA_CM_EVENT_ESTABLISHED, Phase::Asking) => {
                state.phase = Phase::Agreed;
                state.private_data = event.private_data;
                state.inbound = state.inbound.min(event.inbound);
                state.outbound = state.outbound.min(event.outbound);
                self.waiting.settle(&mut state.connecting, Ok(()));
            }
            (RDMA_CM_EVENT_ESTABLISHED, Phase::Accepted) => {
                state.phase = Phase::Connected;
                let opened = state.pair.iter().filter(|_| self.device.opens_pairs_itself());
                opened.for_each(QueuePair::note_opened);
                self.waiting.settle(&mut state.connecting, Ok(()));
            }
            (RDMA_CM_EVENT_DISCONNECTED, _) => {
                // The peer waits for an answer.
                // SAFETY: a live identifier.
                unsafe { rdma_disconnect(state.id) };
                self.end(state, None);
            }
            (RDMA_CM_EVENT_DEVICE_REMOVAL, _) => {
                self.device.is_removed();
                self.end(state, Some(Error::DeviceRemoved));
            }
            (RDMA_CM_EVENT_ADDR_ERROR, Phase::Asking)
            | (RDMA_CM_EVENT_ROUTE_ERROR, Phase::Asking)
            | (RDMA_CM_EVENT_CONNECT_ERROR, Phase::Asking | Phase::Agreed | Phase::Accepted)
            | (RDMA_CM_EVENT_UNREACHABLE, Phase::Asking | Phase::Accepted)
            | (RDMA_CM_EVENT_REJECTED, Phase::Asking | Phase::Accepted) => {
                state.private_data = event.private_data;
                self.end(state, Some(of_connecting(event.kind, event.status)));
            }
            // Other events tell nothing new, or are about a connection that has ended.
            _ => {}
        }
    }

    fn ask(&self, state: &mut State) -> ProviderResult<()> {
        let pair = state.pair.clone().ok_or(Error::InvalidParameter)?;
        self.is_over_its_device(state)?;
        let data = std::mem::take(&mut state.private_data);
        let mut parameters = self.parameters(state, &pair, &data)?;
        // SAFETY: a live identifier; the data is valid for the call.
        check_last(unsafe { rdma_connect(state.id, &mut parameters) })
    }

    /// An error where the connection is over another device than the queue pair: the address moved there.
    fn is_over_its_device(&self, state: &State) -> ProviderResult<()> {
        // SAFETY: a live identifier; its context is of the device that it was bound to, or came over.
        let device = unsafe { (*state.id).verbs.as_ref() }.map(|context| context.device);
        match device == Some(self.device.device()) {
            true => Ok(()),
            false => Err(Error::HostUnreachable),
        }
    }

    /// The connection has ended. So its requests end, and a client that waits is told.
    fn end(&self, state: &mut State, why: Option<Error>) {
        if matches!(state.phase, Phase::Ended(_)) {
            return;
        }
        state.phase = Phase::Ended(why);
        if let Some(pair) = &state.pair {
            let _ = pair.end();
        }
        let connecting = Err(why.unwrap_or(Error::ConnectionReset));
        self.waiting.settle(&mut state.connecting, connecting);
        self.waiting.settle(&mut state.awaiting_end, why.map_or(Ok(()), Err));
    }

    fn destroy_id(&self, state: &mut State) {
        if !state.id.is_null() {
            // SAFETY: this object's own; every event of it was acknowledged.
            unsafe { rdma_destroy_id(state.id) };
            state.id = ptr::null_mut();
        }
    }
}

impl implement::OverlappedObject for Connector {
    fn descriptor(&self) -> RawFd {
        self.0.waiting.descriptor()
    }

    fn next_result(&self) -> Option<Reported> {
        let mut state = self.0.lock();
        while let Some(event) = self.0.channel.next() {
            self.0.advance(&mut state, event);
        }
        self.0.waiting.fetch()
    }

    fn cancel(&self) {
        let mut state = self.0.lock();
        let connecting = state.connecting.is_some();
        self.0.waiting.settle(&mut state.connecting, Err(Error::Cancelled));
        self.0.waiting.settle(&mut state.awaiting_end, Err(Error::Cancelled));
        if connecting {
            self.0.destroy_id(&mut state);
            self.0.end(&mut state, Some(Error::Cancelled));
        }
    }
}

impl implement::ConnectorObject for Connector {
    type QueuePair = QueuePair;

    fn bind(&self, local: SocketAddr) -> ProviderResult<()> {
        self.0.bind(&mut self.0.lock(), local)
    }

    fn connect(
        &self,
        pair: &QueuePair,
        to: SocketAddr,
        data: &[u8],
        r: u64,
    ) -> ProviderResult<Started> {
        let mut state = self.0.lock();
        if state.phase != Phase::Idle || !Arc::ptr_eq(pair.device(), &self.0.device) {
            return Err(Error::InvalidParameter);
        }
        self.0.parameters(&state, pair, data)?;
        if state.id.is_null() {
            self.0.bind(&mut state, self.0.device.local)?;
        }
        let mut peer = abi::to_c(to);
        let address = (&raw mut peer).cast();
        // SAFETY: a live, bound identifier and a valid address.
        check_last(unsafe { rdma_resolve_addr(state.id, ptr::null_mut(), address, RESOLVING) })?;
        state.phase = Phase::Asking;
        state.pair = Some(pair.clone());
        state.private_data = data.to_vec();
        state.connecting = Some(r);
        Ok(Started::Pending)
    }

    fn complete_connect(&self, _request: u64) -> ProviderResult<Started> {
        let mut state = self.0.lock();
        let (Phase::Agreed, Some(pair)) = (state.phase, state.pair.clone()) else {
            return Err(Error::InvalidParameter);
        };
        if self.0.device.opens_pairs_itself() {
            pair.note_opened();
        } else {
            pair.open(state.id, state.inbound, state.outbound)?;
            // SAFETY: a live identifier.
            check_last(unsafe { rdma_establish(state.id) })?;
        }
        state.phase = Phase::Connected;
        Ok(Started::Done)
    }

    fn accept(&self, pair: &QueuePair, data: &[u8], request: u64) -> ProviderResult<Started> {
        let mut state = self.0.lock();
        if state.phase != Phase::Asked || !Arc::ptr_eq(pair.device(), &self.0.device) {
            return Err(Error::InvalidParameter);
        }
        self.0.is_over_its_device(&state)?;
        let mut parameters = self.0.parameters(&state, pair, data)?;
        pair.open(state.id, state.inbound, state.outbound)?;
        // SAFETY: a live identifier; the data is valid for the call.
        check_last(unsafe { rdma_accept(state.id, &mut parameters) })?;
        state.phase = Phase::Accepted;
        state.pair = Some(pair.clone());
        state.connecting = Some(request);
        Ok(Started::Pending)
    }

    fn reject(&self, data: &[u8]) -> ProviderResult<()> {
        let mut state = self.0.lock();
        if state.phase != Phase::Asked
            || data.len() > self.0.device.limits.max_private_data as usize
        {
            return Err(Error::InvalidParameter);
        }
        // SAFETY: a live identifier; the data is valid for the call.
        check_last(unsafe { rdma_reject(state.id, data.as_ptr().cast(), data.len() as u8) })?;
        state.phase = Phase::Ended(None);
        Ok(())
    }

    fn private_data(&self, into: &mut [u8]) -> ProviderResult<usize> {
        let state = self.0.lock();
        let count = state.private_data.len().min(into.len());
        into[..count].copy_from_slice(&state.private_data[..count]);
        Ok(count)
    }

    fn local_address(&self) -> ProviderResult<SocketAddr> {
        let state = self.0.lock();
        if state.id.is_null() {
            return Err(Error::InvalidParameter);
        }
        // SAFETY: a live identifier; its address begins with the family, and a part unused is zero.
        abi::from_c(unsafe { &(*state.id).route.addr.src_addr_union.src_storage })
    }

    fn peer_address(&self) -> ProviderResult<SocketAddr> {
        let state = self.0.lock();
        if state.id.is_null() || state.phase == Phase::Idle {
            return Err(Error::NotConnected);
        }
        // SAFETY: as above.
        abi::from_c(unsafe { &(*state.id).route.addr.dst_addr_union.dst_storage })
    }

    fn notify_disconnect(&self, request: u64) -> ProviderResult<Started> {
        let mut state = self.0.lock();
        match state.phase {
            Phase::Ended(None) => Ok(Started::Done),
            Phase::Ended(Some(error)) => Err(error),
            _ if state.awaiting_end.is_some() => Err(Error::InvalidParameter),
            _ => {
                state.awaiting_end = Some(request);
                Ok(Started::Pending)
            }
        }
    }

    fn disconnect(&self, _request: u64) -> ProviderResult<Started> {
        let mut state = self.0.lock();
        if !state.id.is_null() && !matches!(state.phase, Phase::Ended(_)) {
            // The peer is told, and its answer is not waited for. If this fails, there was no connection any more.
            // SAFETY: a live identifier.
            unsafe { rdma_disconnect(state.id) };
        }
        self.0.end(&mut state, None);
        Ok(Started::Done)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if state.id.is_null() {
            return;
        }
        // SAFETY: this object's own identifier; every event of it was acknowledged.
        unsafe {
            if state.phase == Phase::Connected {
                rdma_disconnect(state.id);
            }
            rdma_destroy_id(state.id);
        }
        if let Some(pair) = &state.pair {
            let _ = pair.end();
        }
    }
}
