//! A listener.

use super::super::abi;
use super::super::error::ProviderResult;
use super::super::types::Started;
use super::owned::Owned;
use super::Connector;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Takes connection requests. Its pending operation is the wait for one.
#[derive(Clone)]
pub struct Listener {
    pub(super) object: Arc<Owned>,
    /// The connector that the pending wait fills.
    pub(super) awaiting: Arc<Mutex<Option<Connector>>>,
}

super::overlapped::overlapped!(Listener, listener);

// SAFETY of the calls below: live handles of one adapter, and pointers valid for the call.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one invariant, stated above")]
impl Listener {
    /// Chooses the local address; port 0 for any.
    pub fn bind(&self, local: SocketAddr) -> ProviderResult<()> {
        let local = abi::to_c(local);
        abi::done(unsafe { (self.object.table().bind_listener)(self.object.handle(), &local) })
    }

    /// Starts to listen; at most `backlog` requests wait, the rest are refused.
    pub fn listen(&self, backlog: u32) -> ProviderResult<()> {
        abi::done(unsafe { (self.object.table().listen)(self.object.handle(), backlog) })
    }

    /// The address, with its port.
    pub fn local_address(&self) -> ProviderResult<SocketAddr> {
        let mut address = abi::to_c(([0, 0, 0, 0], 0).into());
        let get = self.object.table().listener_address;
        abi::done(unsafe { get(self.object.handle(), &mut address) })?;
        abi::from_c(&address)
    }

    /// Puts the next connection request into an unused connector. One wait at a time.
    pub fn get_connection_request(
        &self,
        connector: &Connector,
        request: u64,
    ) -> ProviderResult<Started> {
        self.object.check_same_adapter(&connector.object)?;
        let get = self.object.table().get_connection_request;
        let mut awaiting = self.awaiting.lock().unwrap_or_else(PoisonError::into_inner);
        let started =
            abi::started(unsafe { get(self.object.handle(), connector.object.handle(), request) })?;
        if started == Started::Pending {
            *awaiting = Some(connector.clone());
        }
        Ok(started)
    }
}
