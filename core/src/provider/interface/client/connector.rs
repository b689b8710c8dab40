//! A connector.

use super::super::abi;
use super::super::error::{Error, ProviderResult};
use super::super::types::Started;
use super::owned::Owned;
use super::QueuePair;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Makes and ends one connection. Its pending operations are the connecting ones, and the ones
/// about its end.
#[derive(Clone)]
pub struct Connector {
    pub(super) object: Arc<Owned>,
    /// The queue pair of the connection lives as long as the connector.
    pub(super) queue_pair: Arc<Mutex<Option<QueuePair>>>,
}

super::overlapped::overlapped!(Connector, connector);

// SAFETY of the calls below: live handles of one adapter, and pointers valid for the call.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one invariant, stated above")]
impl Connector {
    /// Chooses the local address; port 0 for any.
    pub fn bind(&self, local: SocketAddr) -> ProviderResult<()> {
        let local = abi::to_c(local);
        abi::done(unsafe { (self.object.table().bind_connector)(self.object.handle(), &local) })
    }

    /// Asks a listener; pending until it answers. Then its private data is here, and
    /// [`complete_connect`](Self::complete_connect) is due.
    pub fn connect(
        &self,
        queue_pair: &QueuePair,
        peer: SocketAddr,
        private_data: &[u8],
        request: u64,
    ) -> ProviderResult<Started> {
        self.keep(queue_pair)?;
        let (connect, peer) = (self.object.table().connect, abi::to_c(peer));
        let (data, n) = (private_data.as_ptr().cast(), private_data.len() as u32);
        let started = abi::started(unsafe {
            connect(self.object.handle(), queue_pair.object.handle(), &peer, data, n, request)
        });
        self.keep_if(started)
    }

    /// Establishes what [`connect`](Self::connect) agreed on.
    pub fn complete_connect(&self, request: u64) -> ProviderResult<Started> {
        let complete = self.object.table().complete_connect;
        abi::started(unsafe { complete(self.object.handle(), request) })
    }

    /// Agrees to the request that a listener put here; pending until the peer completed it.
    pub fn accept(
        &self,
        queue_pair: &QueuePair,
        private_data: &[u8],
        request: u64,
    ) -> ProviderResult<Started> {
        self.keep(queue_pair)?;
        let accept = self.object.table().accept;
        let (data, n) = (private_data.as_ptr().cast(), private_data.len() as u32);
        let started = abi::started(unsafe {
            accept(self.object.handle(), queue_pair.object.handle(), data, n, request)
        });
        self.keep_if(started)
    }

    /// Refuses it.
    pub fn reject(&self, private_data: &[u8]) -> ProviderResult<()> {
        let (data, n) = (private_data.as_ptr().cast(), private_data.len() as u32);
        abi::done(unsafe { (self.object.table().reject)(self.object.handle(), data, n) })
    }

    /// The bytes that came with the peer's request or answer. Some fabrics pad them with zeros.
    pub fn private_data(&self) -> ProviderResult<Vec<u8>> {
        let mut data = vec![0u8; 256];
        let count = abi::count(unsafe {
            let into = data.as_mut_ptr().cast();
            (self.object.table().private_data)(self.object.handle(), into, data.len() as u32)
        })?;
        data.truncate(count);
        Ok(data)
    }

    /// This end's address.
    pub fn local_address(&self) -> ProviderResult<SocketAddr> {
        let mut address = abi::to_c(([0, 0, 0, 0], 0).into());
        let get = self.object.table().local_address;
        abi::done(unsafe { get(self.object.handle(), &mut address) })?;
        abi::from_c(&address)
    }

    /// The other end's address.
    pub fn peer_address(&self) -> ProviderResult<SocketAddr> {
        let mut address = abi::to_c(([0, 0, 0, 0], 0).into());
        let get = self.object.table().peer_address;
        abi::done(unsafe { get(self.object.handle(), &mut address) })?;
        abi::from_c(&address)
    }

    /// Pending until the connection ends, whichever end ends it. Done if it has ended.
    pub fn notify_disconnect(&self, request: u64) -> ProviderResult<Started> {
        let notify = self.object.table().notify_disconnect;
        abi::started(unsafe { notify(self.object.handle(), request) })
    }

    /// Ends the connection and flushes its queue pair.
    pub fn disconnect(&self, request: u64) -> ProviderResult<Started> {
        let disconnect = self.object.table().disconnect;
        abi::started(unsafe { disconnect(self.object.handle(), request) })
    }

    fn keep(&self, queue_pair: &QueuePair) -> ProviderResult<()> {
        self.object.check_same_adapter(&queue_pair.object)?;
        let mut kept = self.queue_pair.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_some() {
            return Err(Error::InvalidParameter);
        }
        *kept = Some(queue_pair.clone());
        Ok(())
    }

    fn keep_if(&self, started: ProviderResult<Started>) -> ProviderResult<Started> {
        if started.is_err() {
            *self.queue_pair.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        started
    }
}
