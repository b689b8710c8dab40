//! The provider and its adapters: an address of this host each.

use super::completion_queue::LocalCompletionQueue;
use super::connector::LocalConnector;
use super::limits::LIMITS;
use super::listener::LocalListener;
use super::queue_pair::LocalQueuePair;
use super::shared_receive_queue::LocalSharedReceiveQueue;
use crate::provider::interface::*;
use crate::provider::software::{AdapterMemory, Region};
use crate::sys::net;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// The provider.
pub struct SharedMemory;

impl implement::ProviderObject for SharedMemory {
    type Adapter = LocalAdapter;

    fn open() -> ProviderResult<Self> {
        Ok(SharedMemory)
    }

    fn query() -> Info {
        Info::new("shm", env!("CARGO_PKG_VERSION"), Info::IPV4 | Info::IPV6)
    }

    fn unusable() -> Option<String> {
        None
    }

    fn addresses(&self) -> ProviderResult<Vec<SocketAddr>> {
        let mut found: Vec<SocketAddr> =
            vec![(Ipv4Addr::LOCALHOST, 0).into(), (Ipv6Addr::LOCALHOST, 0).into()];
        for address in routing::local_addresses()? {
            if !found.contains(&address) {
                found.push(address);
            }
        }
        Ok(found)
    }

    fn open_adapter(&self, local: SocketAddr) -> ProviderResult<LocalAdapter> {
        let ip = local.ip();
        let is_listed =
            || routing::local_addresses().is_ok_and(|all| all.iter().any(|one| one.ip() == ip));
        let is_single = match ip {
            IpAddr::V4(ip) => !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast(),
            IpAddr::V6(ip) => !ip.is_unspecified() && !ip.is_multicast(),
        };
        if !is_single || !(net::is_local(ip) || is_listed()) {
            return Err(Error::AddressNotAvailable);
        }
        Ok(LocalAdapter { ip, memory: Arc::default() })
    }

    fn can_unload() -> bool {
        true
    }
}

/// An adapter: an address and its registrations.
pub struct LocalAdapter {
    ip: IpAddr,
    memory: Arc<AdapterMemory>,
}

impl implement::AdapterObject for LocalAdapter {
    type CompletionQueue = LocalCompletionQueue;
    type MemoryRegion = Region;
    type SharedReceiveQueue = LocalSharedReceiveQueue;
    type QueuePair = LocalQueuePair;
    type Connector = LocalConnector;
    type Listener = LocalListener;

    fn query(&self) -> Limits {
        LIMITS
    }

    fn create_completion_queue(&self, depth: u32) -> ProviderResult<LocalCompletionQueue> {
        if depth > LIMITS.max_completion_depth {
            return Err(Error::InvalidParameter);
        }
        LocalCompletionQueue::new(depth)
    }

    fn create_memory_region(&self) -> ProviderResult<Region> {
        Ok(Region::new(&self.memory))
    }

    fn create_shared_receive_queue(&self, depth: u32) -> ProviderResult<LocalSharedReceiveQueue> {
        if depth == 0 || depth > LIMITS.max_shared_receive_depth {
            return Err(Error::InvalidParameter);
        }
        LocalSharedReceiveQueue::new(&self.memory, depth)
    }

    fn create_queue_pair(
        &self,
        attributes: &QueuePairAttributes,
        receive: &LocalCompletionQueue,
        initiator: &LocalCompletionQueue,
        shared: Option<&LocalSharedReceiveQueue>,
    ) -> ProviderResult<LocalQueuePair> {
        let shared = shared.map(|shared| &shared.0);
        let (receive, initiator) = (&receive.0, &initiator.0);
        LocalQueuePair::new(attributes, receive, initiator, shared, &self.memory)
    }

    fn create_connector(&self) -> ProviderResult<LocalConnector> {
        LocalConnector::new(self.ip)
    }

    fn create_listener(&self) -> ProviderResult<LocalListener> {
        LocalListener::new(self.ip)
    }
}
