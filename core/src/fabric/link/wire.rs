//! A link's queue pair and what belongs to it: what is made anew when the connection moves.

use super::super::port::{Device, Port};
use super::direct::{Direct, Rings};
use super::{Out, DEPTH};
use crate::provider::interface::client::*;
use crate::provider::interface::{Error, QueuePairAttributes};
use std::cell::UnsafeCell;

/// See the module. Fields end in this order.
pub(in super::super) struct Wire {
    /// What completions know the link by.
    pub(super) number: u64,
    pub(super) pair: QueuePair,
    /// Holds the connection.
    pub(super) connector: Connector,
    /// What either end may write of the other's memory.
    pub(super) direct: Direct,
    /// What is registered: after the queue pair, before the memory. Private to who sends.
    rings: UnsafeCell<Rings>,
}

impl Wire {
    /// A queue pair that is not connected yet, for `connector` to connect, and a number at the port.
    pub(super) fn new(port: &Port, connector: Connector) -> Result<Self, Error> {
        let number = port.reserve()?;
        let attributes = QueuePairAttributes {
            context: number,
            receive_depth: 0,
            initiator_depth: DEPTH.min(port.limits.max_initiator_depth),
            segments: 1,
            inline_size: port.inline() as u32,
        };
        let Device { adapter, queue, shared, .. } = &port.device()?;
        let pair = adapter.create_queue_pair(&attributes, queue, queue, Some(shared))?;
        let (direct, rings) = (Direct::default(), UnsafeCell::default());
        Ok(Wire { number, pair, connector, direct, rings })
    }

    /// Ends it.
    pub(in super::super) fn end(self) {
        let _ = self.connector.disconnect(0);
        let _ = self.pair.flush();
    }

    /// What is registered.
    #[allow(clippy::mut_from_ref, reason = "one at a time has the sender's part")]
    pub(super) fn rings(&self, _: &mut Out) -> &mut Rings {
        // SAFETY: the caller has the link's `Out`, of which there is one, and keeps one result at a time.
        unsafe { &mut *self.rings.get() }
    }
}
