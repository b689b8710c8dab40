//! Connection requests at one adapter, by the helper: a listener, and the connector that takes the next one.
//! Knows nothing of what they are for.

use super::helper;
use super::link::Port;
use crate::provider::interface::client::*;
use crate::provider::interface::{Result, Started};
use crate::sys::Fd;
use std::net::SocketAddr;

/// The listener's pending operation.
const REQUEST: u64 = 1;

/// See the module.
pub(super) struct Reception {
    pub(super) port: &'static Port,
    listener: Listener,
    /// Takes the next request, or has it already; `None`: it is to be asked for.
    next: Option<(Connector, Started)>,
}

impl Reception {
    /// Listens at an address of the port's, port zero for any; `backlog` requests may wait for the helper, which is
    /// to watch the [`descriptor`](Self::descriptor).
    pub(super) fn open(port: &'static Port, at: SocketAddr, backlog: u32) -> Result<Self> {
        let listener = port.device.objects()?.adapter.create_listener()?;
        listener.bind(at)?;
        listener.listen(backlog)?;
        let mut reception = Reception { port, listener, next: None };
        reception.next = Some(reception.ask()?);
        Ok(reception)
    }

    fn ask(&self) -> Result<(Connector, Started)> {
        let connector = self.port.device.objects()?.adapter.create_connector()?;
        let started = self.listener.get_connection_request(&connector, REQUEST)?;
        Ok((connector, started))
    }

    /// The connector of a request that came. To be called again until there is none.
    pub(super) fn next(&mut self) -> Option<Connector> {
        if self.next.is_none() {
            self.next = self.ask().ok();
        }
        let is_here = match &self.next {
            Some((_, Started::Done)) => true,
            // Also where nothing was asked for: then nobody is woken for what waits.
            _ => self.listener.next_result()?.result.is_ok(),
        };
        let (connector, _) = self.next.take()?;
        is_here.then_some(connector)
    }

    /// True if requests could not be asked for, for want of descriptors as a rule: [`next`](Self::next) is to be
    /// called in a while.
    pub(super) fn is_short(&self) -> bool {
        self.next.is_none()
    }

    /// Readable when a request came.
    pub(super) fn descriptor(&self) -> Fd {
        self.listener.descriptor()
    }

    /// Its number at the adapter's address.
    ///
    /// # Errors
    /// Those of the provider.
    pub(super) fn number(&self) -> Result<u16> {
        self.listener.local_address().map(|at| at.port())
    }
}

impl Drop for Reception {
    fn drop(&mut self) {
        helper::forget(self.descriptor());
    }
}
