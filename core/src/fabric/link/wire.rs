//! A link's queue pair and what belongs to it. All of it is made anew when the connection moves.

use super::sender::{LinkSender, DEPTH};
use super::state::LinkPort;
use crate::fabric::port::Objects;
use crate::provider::interface::client::*;
use crate::provider::interface::{Error, QueuePairAttributes, RemoteMemory, Started};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::OnceLock;

/// Number of the pending operation of a connection that is there.
const END: u64 = 1;

/// The state of both directions. Zeroed memory's meaning: bytes go in frames.
#[derive(Default)]
pub(super) struct Direct {
    /// Where the peer lets us write: the address of its picture of our send buffer, and the token.
    pub(super) theirs: OnceLock<RemoteMemory>,
    /// It was seen that the peer streams: our picture of its send buffer is offered once, if at all.
    pub(super) considered: AtomicBool,
    /// The peer may write.
    pub(super) offered: AtomicBool,
    /// The tokens of what the peer lent last, for reading and for writing.
    pub(super) lent: [AtomicU32; 2],
}

/// The registered memory. Only the sending thread touches it. It outlives the queue pair.
#[derive(Default)]
pub(super) struct Rings {
    /// Our send buffer; `Some(None)`: it cannot be registered.
    pub(super) own: Option<Option<MemoryRegion>>,
    /// Our picture of the peer's, and the token of its window.
    pub(super) theirs: Option<(MemoryRegion, u32)>,
    /// Memory of the program that the peer may read, or write, and the token of its window.
    pub(super) lent: [Option<(MemoryRegion, u32)>; 2],
}

/// The number by which completions know a queue pair, as long as that is there.
struct Number {
    value: u64,
    port: &'static LinkPort,
}

impl Drop for Number {
    fn drop(&mut self) {
        self.port.free(self.value);
    }
}

/// See the module. Fields end in this order.
pub(in crate::fabric) struct Wire {
    pub(super) pair: QueuePair,
    number: Number,
    /// Holds the connection.
    pub(super) connector: Connector,
    /// What either end may write of the other's memory.
    pub(super) direct: Direct,
    /// The registered memory. It goes after the queue pair and before the memory itself. Only the sending thread
    /// touches it.
    rings: UnsafeCell<Rings>,
}

impl Wire {
    /// A queue pair that is not connected yet, for `connector` to connect, and a number at the port.
    pub(super) fn new(port: &'static LinkPort, connector: Connector) -> Result<Self, Error> {
        let number = Number { value: port.reserve()?, port };
        let attributes = QueuePairAttributes {
            context: number.value,
            receive_depth: 0,
            initiator_depth: DEPTH.min(port.device.limits.max_initiator_depth),
            segments: 1,
            inline_size: port.device.inline() as u32,
        };
        let Objects { adapter, queue, shared, .. } = &port.device.objects()?;
        let pair = adapter.create_queue_pair(&attributes, queue, queue, Some(shared))?;
        let (direct, rings) = (Direct::default(), UnsafeCell::default());
        Ok(Wire { pair, number, connector, direct, rings })
    }

    /// The number by which completions know the link.
    pub(super) fn number(&self) -> u64 {
        self.number.value
    }

    /// Takes in what tells of the end. True if the connection has ended, whichever end ended it.
    pub(super) fn look_for_end(&self) -> bool {
        // This takes in what tells of the end.
        let _ = self.connector.next_result();
        let awaits = self.connector.notify_disconnect(END);
        !matches!(awaits, Ok(Started::Pending) | Err(Error::InvalidParameter))
    }

    /// Ends it: what is under way completes in a moment.
    pub(super) fn end(&self) {
        let _ = self.connector.disconnect(0);
        let _ = self.pair.flush();
    }

    /// The registered memory.
    #[allow(clippy::mut_from_ref, reason = "one at a time has the sender's part")]
    pub(super) fn rings(&self, _: &mut LinkSender) -> &mut Rings {
        // SAFETY: the caller has the link's `Sender`, of which there is one, and keeps one result at a time.
        unsafe { &mut *self.rings.get() }
    }
}
