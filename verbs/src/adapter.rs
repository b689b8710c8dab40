//! An adapter, which makes the other objects.

use crate::completion_queue::CompletionQueue;
use crate::connector::Connector;
use crate::device::Device;
use crate::listener::Listener;
use crate::queue_pair::QueuePair;
use crate::region::Region;
use crate::shared_receive_queue::SharedReceiveQueue;
use sanshim_core::provider::interface::{implement, Limits, ProviderResult, QueuePairAttributes};
use std::sync::Arc;

pub(crate) struct Adapter(pub(crate) Arc<Device>);

impl implement::AdapterObject for Adapter {
    type CompletionQueue = CompletionQueue;
    type MemoryRegion = Region;
    type SharedReceiveQueue = SharedReceiveQueue;
    type QueuePair = QueuePair;
    type Connector = Connector;
    type Listener = Listener;

    fn query(&self) -> Limits {
        self.0.limits
    }

    fn create_completion_queue(&self, depth: u32) -> ProviderResult<CompletionQueue> {
        CompletionQueue::new(&self.0, depth)
    }

    fn create_memory_region(&self) -> ProviderResult<Region> {
        Ok(Region::new(&self.0))
    }

    fn create_shared_receive_queue(&self, depth: u32) -> ProviderResult<SharedReceiveQueue> {
        SharedReceiveQueue::new(&self.0, depth)
    }

    fn create_queue_pair(
        &self,
        attributes: &QueuePairAttributes,
        receive: &CompletionQueue,
        initiator: &CompletionQueue,
        shared: Option<&SharedReceiveQueue>,
    ) -> ProviderResult<QueuePair> {
        QueuePair::new(&self.0, attributes, receive, initiator, shared)
    }

    fn create_connector(&self) -> ProviderResult<Connector> {
        Connector::new(&self.0)
    }

    fn create_listener(&self) -> ProviderResult<Listener> {
        Listener::new(&self.0)
    }
}
