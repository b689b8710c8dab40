//! The provider and its adapters: an address of this host each.

use super::completion_queue::CompletionQueue;
use super::connector::Connector;
use super::limits::LIMITS;
use super::listener::Listener;
use super::queue_pair::QueuePair;
use super::shared_receive_queue::SharedReceiveQueue;
use crate::provider::interface::*;
use crate::provider::software::{Memory, Region};
use crate::sys::net;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// The provider.
pub struct SharedMemory;

impl implement::Provider for SharedMemory {
    type Adapter = Adapter;

    fn open() -> Result<Self> {
        Ok(SharedMemory)
    }

    fn query() -> Info {
        Info::new("shm", env!("CARGO_PKG_VERSION"), Info::IPV4 | Info::IPV6)
    }

    fn unusable() -> Option<String> {
        None
    }

    fn addresses(&self) -> Result<Vec<SocketAddr>> {
        let mut found: Vec<SocketAddr> =
            vec![(Ipv4Addr::LOCALHOST, 0).into(), (Ipv6Addr::LOCALHOST, 0).into()];
        for address in routing::local_addresses()? {
            if !found.contains(&address) {
                found.push(address);
            }
        }
        Ok(found)
    }

    fn open_adapter(&self, local: SocketAddr) -> Result<Adapter> {
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
        Ok(Adapter { ip, memory: Arc::default() })
    }

    fn can_unload() -> bool {
        true
    }
}

/// An adapter: an address and its registrations.
pub struct Adapter {
    ip: IpAddr,
    memory: Arc<Memory>,
}

impl implement::Adapter for Adapter {
    type CompletionQueue = CompletionQueue;
    type MemoryRegion = Region;
    type SharedReceiveQueue = SharedReceiveQueue;
    type QueuePair = QueuePair;
    type Connector = Connector;
    type Listener = Listener;

    fn query(&self) -> Limits {
        LIMITS
    }

    fn create_completion_queue(&self, depth: u32) -> Result<CompletionQueue> {
        if depth > LIMITS.max_completion_depth {
            return Err(Error::InvalidParameter);
        }
        CompletionQueue::new(depth)
    }

    fn create_memory_region(&self) -> Result<Region> {
        Ok(Region::new(&self.memory))
    }

    fn create_shared_receive_queue(&self, depth: u32) -> Result<SharedReceiveQueue> {
        if depth == 0 || depth > LIMITS.max_shared_receive_depth {
            return Err(Error::InvalidParameter);
        }
        SharedReceiveQueue::new(&self.memory, depth)
    }

    fn create_queue_pair(
        &self,
        attributes: &QueuePairAttributes,
        receive: &CompletionQueue,
        initiator: &CompletionQueue,
        shared: Option<&SharedReceiveQueue>,
    ) -> Result<QueuePair> {
        let shared = shared.map(|shared| &shared.0);
        let (receive, initiator) = (&receive.0, &initiator.0);
        QueuePair::new(attributes, receive, initiator, shared, &self.memory)
    }

    fn create_connector(&self) -> Result<Connector> {
        Connector::new(self.ip)
    }

    fn create_listener(&self) -> Result<Listener> {
        Listener::new(self.ip)
    }
}
