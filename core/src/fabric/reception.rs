//! The helper takes connection requests at one adapter: a listener, and the connector that takes the next request. This
//! module does not know what the requests are for.

use super::helper;
use super::link::LinkPort;
use crate::provider::interface::client::*;
use crate::provider::interface::{ProviderResult, Started};
use crate::sys::Fd;
use std::net::SocketAddr;

/// The listener's pending operation.
const REQUEST: u64 = 1;
/// Most requests that are taken at a time.
const AT_ONCE: usize = 64;

/// See the module.
pub(super) struct Reception {
    pub(super) port: &'static LinkPort,
    listener: Listener,
    /// Takes the next request, or has it already. `None`: it has to be asked for.
    next: Option<(Connector, Started)>,
}

impl Reception {
    /// Listens at an address of the port's, port zero for any; `backlog` requests may wait for the helper, which is
    /// to watch the [`descriptor`](Self::descriptor).
    pub(super) fn open(
        port: &'static LinkPort,
        at: SocketAddr,
        backlog: u32,
    ) -> ProviderResult<Self> {
        let listener = port.device.objects()?.adapter.create_listener()?;
        listener.bind(at)?;
        listener.listen(backlog)?;
        let mut reception = Reception { port, listener, next: None };
        reception.next = Some(reception.ask()?);
        Ok(reception)
    }

    fn ask(&self) -> ProviderResult<(Connector, Started)> {
        let connector = self.port.device.objects()?.adapter.create_connector()?;
        let started = self.listener.get_connection_request(&connector, REQUEST)?;
        Ok((connector, started))
    }

    /// The connectors of requests that came. If there are very many it gives some, and [is short](Self::is_short) then:
    /// a peer that asks again and again does not keep the helper from everything else.
    pub(super) fn come(&mut self) -> impl Iterator<Item = Connector> + '_ {
        std::iter::from_fn(|| self.next()).take(AT_ONCE)
    }

    /// The connector of a request that came. To be called again until there is none.
    fn next(&mut self) -> Option<Connector> {
        if self.next.is_none() {
            self.next = self.ask().ok();
        }
        let is_here = match &self.next {
            Some((_, Started::Done)) => true,
            // Also where nothing was asked for: then what waits wakes no thread.
            _ => self.listener.next_result()?.result.is_ok(),
        };
        let (connector, _) = self.next.take()?;
        is_here.then_some(connector)
    }

    /// True if requests were not asked for, because there were very many or for want of descriptors. The helper then
    /// calls [`come`](Self::come) in a while.
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
    pub(super) fn number(&self) -> ProviderResult<u16> {
        self.listener.local_address().map(|at| at.port())
    }
}

impl Drop for Reception {
    fn drop(&mut self) {
        helper::forget(self.descriptor());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::tests;

    #[test]
    fn of_very_many_requests_some_are_taken_at_a_time() {
        const MORE: usize = 10;
        let (port, at) = tests::port_at("192.0.2.77", 40000);
        let mut reception = Reception::open(port, at, 256).unwrap();
        let links: Vec<_> = (0..AT_ONCE + MORE).map(|_| tests::link_over(port)).collect();
        for link in &links {
            let _ = link.connector().connect(link.pair(), at, b"", 1).unwrap();
        }
        assert_eq!(reception.come().count(), AT_ONCE);
        assert!(reception.is_short());
        assert_eq!(reception.come().count(), MORE);
        assert!(!reception.is_short());
        assert_eq!(reception.come().count(), 0);
    }
}
