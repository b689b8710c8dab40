//! The simulated provider's objects: numbers of what the fabric holds.

use super::connection::{Phase, SimulatedConnection, SimulatedListening};
use super::fabric::fabric;
use super::pair::{Binding, PairState, SimulatedPair, SimulatedReceive, SimulatedWork};
use crate::provider::interface::{implement, *};
use crate::provider::software::{AdapterMemory, Completions, Outcomes, Region};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;

/// The provider.
pub struct Simulation;
/// An adapter: an address and its registrations.
pub struct SimulatedAdapter(IpAddr, Arc<AdapterMemory>);
/// A completion queue.
pub struct SimulatedCompletionQueue(Arc<Completions>);
/// A shared receive queue.
pub struct SimulatedSharedReceiveQueue(u64, u32, Arc<AdapterMemory>);
/// A queue pair.
pub struct SimulatedQueuePair(u64, Arc<AdapterMemory>);
/// A connector.
pub struct SimulatedConnector(u64, Arc<Outcomes>);
/// A listener.
pub struct SimulatedListener(u64, IpAddr, Arc<Outcomes>);

fn is_simulated(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => matches!(ip.octets(), [192, 0, 2, _] | [198, 51, 100, _]),
        IpAddr::V6(ip) => ip.segments()[..2] == [0x2001, 0xdb8],
    }
}

impl implement::ProviderObject for Simulation {
    type Adapter = SimulatedAdapter;
    fn open() -> ProviderResult<Self> {
        Ok(Simulation)
    }
    fn query() -> Info {
        Info::new("simulation", env!("CARGO_PKG_VERSION"), Info::IPV4 | Info::IPV6)
    }
    fn unusable() -> Option<String> {
        None
    }
    fn addresses(&self) -> ProviderResult<Vec<SocketAddr>> {
        let list = ["192.0.2.1:0", "192.0.2.2:0", "[2001:db8::1]:0"];
        Ok(list.iter().filter_map(|address| address.parse().ok()).collect())
    }
    fn open_adapter(&self, local: SocketAddr) -> ProviderResult<SimulatedAdapter> {
        if !is_simulated(local.ip()) {
            return Err(Error::AddressNotAvailable);
        }
        Ok(SimulatedAdapter(local.ip(), Arc::default()))
    }
    fn can_unload() -> bool {
        true
    }
}

const LIMITS: Limits = Limits {
    max_registration: 1 << 32,
    max_message: 1 << 20,
    max_transfer: 1 << 30,
    max_inline: 128,
    max_segments: 4,
    max_receive_depth: 256,
    max_initiator_depth: 256,
    max_shared_receive_depth: 1024,
    max_completion_depth: 4096,
    max_inbound_reads: 16,
    max_outbound_reads: 16,
    max_private_data: 64,
    rdma_threshold: 4096,
    flags: Limits::BIND | Limits::APPLICATION_MEMORY | Limits::TELLS | Limits::BIND_ALONE,
    reserved: 0,
};

impl implement::AdapterObject for SimulatedAdapter {
    type CompletionQueue = SimulatedCompletionQueue;
    type MemoryRegion = Region;
    type SharedReceiveQueue = SimulatedSharedReceiveQueue;
    type QueuePair = SimulatedQueuePair;
    type Connector = SimulatedConnector;
    type Listener = SimulatedListener;

    fn query(&self) -> Limits {
        LIMITS
    }

    fn create_completion_queue(&self, depth: u32) -> ProviderResult<SimulatedCompletionQueue> {
        if depth > LIMITS.max_completion_depth {
            return Err(Error::InvalidParameter);
        }
        Ok(SimulatedCompletionQueue(Arc::new(Completions::new(depth)?)))
    }

    fn create_memory_region(&self) -> ProviderResult<Region> {
        Ok(Region::new(&self.1))
    }

    fn create_shared_receive_queue(
        &self,
        depth: u32,
    ) -> ProviderResult<SimulatedSharedReceiveQueue> {
        if depth == 0 || depth > LIMITS.max_shared_receive_depth {
            return Err(Error::InvalidParameter);
        }
        let mut fabric = fabric();
        let id = fabric.number();
        fabric.shared.insert(id, VecDeque::new());
        Ok(SimulatedSharedReceiveQueue(id, depth, self.1.clone()))
    }

    fn create_queue_pair(
        &self,
        attributes: &QueuePairAttributes,
        receive: &SimulatedCompletionQueue,
        initiator: &SimulatedCompletionQueue,
        shared: Option<&SimulatedSharedReceiveQueue>,
    ) -> ProviderResult<SimulatedQueuePair> {
        if attributes.receive_depth > LIMITS.max_receive_depth
            || attributes.initiator_depth > LIMITS.max_initiator_depth
            || attributes.inline_size > LIMITS.max_inline
            || attributes.segments > LIMITS.max_segments
        {
            return Err(Error::InvalidParameter);
        }
        let mut fabric = fabric();
        let id = fabric.number();
        let pair = SimulatedPair {
            ip: self.0,
            attributes: *attributes,
            receive: receive.0.clone(),
            initiator: initiator.0.clone(),
            memory: self.1.clone(),
            shared: shared.map(|shared| shared.0),
            peer: None,
            state: PairState::Idle,
            posted: VecDeque::new(),
            outstanding: VecDeque::new(),
            bindings: BTreeMap::new(),
        };
        fabric.pairs.insert(id, pair);
        Ok(SimulatedQueuePair(id, self.1.clone()))
    }

    fn create_connector(&self) -> ProviderResult<SimulatedConnector> {
        let outcomes = Arc::new(Outcomes::new()?);
        let mut fabric = fabric();
        let id = fabric.number();
        let connection = SimulatedConnection {
            ip: self.0,
            local: None,
            remote: None,
            peer: None,
            pair: None,
            phase: Phase::Idle,
            private_data: Vec::new(),
            outcomes: outcomes.clone(),
            connecting: None,
            awaiting_end: None,
        };
        fabric.connections.insert(id, connection);
        Ok(SimulatedConnector(id, outcomes))
    }

    fn create_listener(&self) -> ProviderResult<SimulatedListener> {
        let outcomes = Arc::new(Outcomes::new()?);
        let mut fabric = fabric();
        let id = fabric.number();
        let listening = SimulatedListening {
            local: None,
            backlog: 0,
            waiting: VecDeque::new(),
            outcomes: outcomes.clone(),
            pending: None,
        };
        fabric.listeners.insert(id, listening);
        Ok(SimulatedListener(id, self.0, outcomes))
    }
}

impl implement::OverlappedObject for SimulatedCompletionQueue {
    fn descriptor(&self) -> RawFd {
        self.0.descriptor()
    }
    fn next_result(&self) -> Option<Reported> {
        self.0.next_result()
    }
    fn cancel(&self) {
        self.0.cancel();
    }
}

impl implement::CompletionQueueObject for SimulatedCompletionQueue {
    fn get_results(&self, into: &mut [Completion]) -> ProviderResult<usize> {
        self.0.take(into)
    }
    fn notify(&self, request: u64) -> ProviderResult<Started> {
        self.0.notify(request)
    }
}

impl implement::SharedReceiveQueueObject for SimulatedSharedReceiveQueue {
    fn receive(&self, request: u64, into: &[MemoryPiece]) -> ProviderResult<()> {
        check_segments(&self.2, into, LIMITS.max_segments)?;
        let mut fabric = fabric();
        let queue = fabric.shared.get_mut(&self.0).ok_or(Error::InvalidParameter)?;
        if queue.len() >= self.1 as usize {
            return Err(Error::InsufficientResources);
        }
        queue.push_back(SimulatedReceive { request, into: into.to_vec() });
        fabric.advance_towards(self.0);
        Ok(())
    }
}

impl Drop for SimulatedSharedReceiveQueue {
    fn drop(&mut self) {
        fabric().shared.remove(&self.0);
    }
}

fn check_segments(
    memory: &AdapterMemory,
    segments: &[MemoryPiece],
    limit: u32,
) -> ProviderResult<usize> {
    if segments.len() > limit as usize {
        return Err(Error::InvalidParameter);
    }
    memory.check(segments)
}

impl implement::QueuePairObject for SimulatedQueuePair {
    type MemoryRegion = Region;

    fn send(&self, request: u64, from: &[MemoryPiece], flags: Flags) -> ProviderResult<()> {
        if check_segments(&self.1, from, LIMITS.max_segments)? > LIMITS.max_message as usize {
            return Err(Error::InvalidParameter);
        }
        fabric().post(self.0, request, SimulatedWork::Send(self.1.gather(from)?), flags)
    }

    fn send_inline(&self, request: u64, bytes: &[u8], flags: Flags) -> ProviderResult<()> {
        let mut fabric = fabric();
        if bytes.len() > fabric.pair(self.0)?.attributes.inline_size as usize {
            return Err(Error::InvalidParameter);
        }
        fabric.post(self.0, request, SimulatedWork::Send(bytes.to_vec()), flags)
    }

    fn receive(&self, request: u64, into: &[MemoryPiece]) -> ProviderResult<()> {
        check_segments(&self.1, into, LIMITS.max_segments)?;
        fabric().post_receive(self.0, SimulatedReceive { request, into: into.to_vec() })
    }

    fn read(
        &self,
        request: u64,
        into: &[MemoryPiece],
        from: RemoteMemory,
        flags: Flags,
    ) -> ProviderResult<()> {
        check_segments(&self.1, into, LIMITS.max_segments)?;
        fabric().post(self.0, request, SimulatedWork::Read(into.to_vec(), from), flags)
    }

    fn write(
        &self,
        request: u64,
        from: &[MemoryPiece],
        to: RemoteMemory,
        flags: Flags,
    ) -> ProviderResult<()> {
        check_segments(&self.1, from, LIMITS.max_segments)?;
        fabric().post(
            self.0,
            request,
            SimulatedWork::Write(from.to_vec(), to, flags.has(Flags::TELL)),
            flags,
        )
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
        let end = address.checked_add(length).ok_or(Error::InvalidParameter)?;
        let (region, range) = (region.token()?, address..end);
        if !self.1.covers(region, &range) {
            return Err(Error::InvalidParameter);
        }
        let mut fabric = fabric();
        if !fabric.pair(self.0)?.outstanding.is_empty() {
            // This device binds alone.
            return Err(Error::InvalidParameter);
        }
        let token = fabric.number() as u32;
        fabric.post(
            self.0,
            request,
            SimulatedWork::Bind(token, Binding { region, range, access }),
            flags,
        )?;
        Ok(token)
    }

    fn invalidate(&self, request: u64, token: u32, flags: Flags) -> ProviderResult<()> {
        if flags.has(Flags::AT_ONCE) {
            let bound = fabric().pair(self.0)?.bindings.remove(&token);
            return bound.map(drop).ok_or(Error::InvalidParameter);
        }
        fabric().post(self.0, request, SimulatedWork::Invalidate(token), flags)
    }

    fn flush(&self) -> ProviderResult<()> {
        fabric().fail(self.0, Error::Cancelled);
        Ok(())
    }
}

impl Drop for SimulatedQueuePair {
    fn drop(&mut self) {
        let pair = fabric().pairs.remove(&self.0);
        // As a device does.
        if let Some(pair) = pair {
            pair.receive.forget(pair.attributes.context);
            pair.initiator.forget(pair.attributes.context);
        }
    }
}

impl implement::OverlappedObject for SimulatedConnector {
    fn descriptor(&self) -> RawFd {
        self.1.descriptor()
    }
    fn next_result(&self) -> Option<Reported> {
        self.1.fetch()
    }
    fn cancel(&self) {
        fabric().cancel_connection(self.0);
    }
}

impl implement::ConnectorObject for SimulatedConnector {
    type QueuePair = SimulatedQueuePair;

    fn bind(&self, local: SocketAddr) -> ProviderResult<()> {
        let mut fabric = fabric();
        if fabric.connection(self.0)?.ip != local.ip() {
            return Err(Error::AddressNotAvailable);
        }
        let local = fabric.free_address(local)?;
        fabric.connection(self.0)?.local = Some(local);
        Ok(())
    }

    fn connect(
        &self,
        pair: &SimulatedQueuePair,
        to: SocketAddr,
        data: &[u8],
        r: u64,
    ) -> ProviderResult<Started> {
        if data.len() > LIMITS.max_private_data as usize {
            return Err(Error::InvalidParameter);
        }
        fabric().connect(self.0, pair.0, to, data, r)
    }

    fn complete_connect(&self, _request: u64) -> ProviderResult<Started> {
        fabric().complete_connect(self.0)
    }

    fn accept(
        &self,
        pair: &SimulatedQueuePair,
        data: &[u8],
        request: u64,
    ) -> ProviderResult<Started> {
        if data.len() > LIMITS.max_private_data as usize {
            return Err(Error::InvalidParameter);
        }
        fabric().accept(self.0, pair.0, data, request)
    }

    fn reject(&self, data: &[u8]) -> ProviderResult<()> {
        fabric().reject(self.0, data)
    }

    fn private_data(&self, into: &mut [u8]) -> ProviderResult<usize> {
        let mut fabric = fabric();
        let data = &fabric.connection(self.0)?.private_data;
        let count = data.len().min(into.len());
        into[..count].copy_from_slice(&data[..count]);
        Ok(count)
    }

    fn local_address(&self) -> ProviderResult<SocketAddr> {
        fabric().connection(self.0)?.local.ok_or(Error::InvalidParameter)
    }

    fn peer_address(&self) -> ProviderResult<SocketAddr> {
        fabric().connection(self.0)?.remote.ok_or(Error::NotConnected)
    }

    fn notify_disconnect(&self, request: u64) -> ProviderResult<Started> {
        fabric().notify_disconnect(self.0, request)
    }

    fn disconnect(&self, _request: u64) -> ProviderResult<Started> {
        fabric().end(self.0, None);
        Ok(Started::Done)
    }
}

impl Drop for SimulatedConnector {
    fn drop(&mut self) {
        let mut fabric = fabric();
        fabric.end(self.0, None);
        fabric.connections.remove(&self.0);
    }
}

impl implement::OverlappedObject for SimulatedListener {
    fn descriptor(&self) -> RawFd {
        self.2.descriptor()
    }
    fn next_result(&self) -> Option<Reported> {
        self.2.fetch()
    }
    fn cancel(&self) {
        fabric().cancel_listener(self.0);
    }
}

impl implement::ListenerObject for SimulatedListener {
    type Connector = SimulatedConnector;

    fn bind(&self, local: SocketAddr) -> ProviderResult<()> {
        if local.ip() != self.1 {
            return Err(Error::AddressNotAvailable);
        }
        let mut fabric = fabric();
        let local = fabric.free_address(local)?;
        let listening = fabric.listeners.get_mut(&self.0).ok_or(Error::InvalidParameter)?;
        listening.local = Some(local);
        Ok(())
    }

    fn listen(&self, backlog: u32) -> ProviderResult<()> {
        let mut fabric = fabric();
        let listening = fabric.listeners.get_mut(&self.0).ok_or(Error::InvalidParameter)?;
        if listening.local.is_none() {
            return Err(Error::InvalidParameter);
        }
        listening.backlog = backlog.max(1) as usize;
        Ok(())
    }

    fn local_address(&self) -> ProviderResult<SocketAddr> {
        let fabric = fabric();
        let listening = fabric.listeners.get(&self.0).ok_or(Error::InvalidParameter)?;
        listening.local.ok_or(Error::InvalidParameter)
    }

    fn get_connection_request(
        &self,
        connector: &SimulatedConnector,
        request: u64,
    ) -> ProviderResult<Started> {
        fabric().get_connection_request(self.0, connector.0, request)
    }
}

impl Drop for SimulatedListener {
    fn drop(&mut self) {
        fabric().close_listener(self.0);
    }
}
