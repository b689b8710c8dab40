//! One connection's memory as one end has it, its doorbell, and what this end knows of the peer's process.
//!
//! The doorbell is a pair of stream sockets, of which each end has one. A byte wakes the peer. The end of the stream
//! tells that the peer's process is gone, or its queue pair. To ring never blocks, whatever the peer does with its
//! socket.

use super::layout::{EndWords, Mapping};
use super::ring::PairRing;
use crate::provider::software::inherited::Descriptor;
use crate::sys::{net, Errno, Fd};
use std::sync::atomic::{fence, AtomicBool, Ordering};
use std::sync::Arc;

/// Reads of what was rung, at a time.
const BATCH: usize = 16;

/// What one end of a connection consists of.
pub(super) struct ChannelParts {
    /// The memory that both ends map.
    pub(super) memory: Mapping,
    /// This end's socket of the doorbell.
    pub(super) doorbell: Descriptor,
    /// Where the connection was made; its end is the connection's.
    pub(super) control: Arc<Descriptor>,
    /// The peer's process, as the kernel says; zero: of another namespace.
    pub(super) peer: u32,
    /// Which end this is: 0 for the connector's.
    pub(super) number: usize,
}

/// See the module.
pub(super) struct LocalChannel {
    parts: ChannelParts,
    /// The peer is gone.
    over: AtomicBool,
}

impl LocalChannel {
    pub(super) fn new(parts: ChannelParts) -> Self {
        LocalChannel { parts, over: AtomicBool::new(false) }
    }

    /// What this end publishes.
    #[inline]
    pub(super) fn own(&self) -> &EndWords {
        self.parts.memory.end(self.parts.number)
    }

    /// What the peer does.
    #[inline]
    pub(super) fn peer(&self) -> &EndWords {
        self.parts.memory.end(1 - self.parts.number)
    }

    /// Where this end's messages go.
    #[inline]
    pub(super) fn outgoing(&self) -> PairRing {
        self.parts.memory.ring(self.parts.number)
    }

    /// Where the peer's come from.
    #[inline]
    pub(super) fn incoming(&self) -> PairRing {
        self.parts.memory.ring(1 - self.parts.number)
    }

    /// The peer's process.
    pub(super) fn process(&self) -> u32 {
        self.parts.peer
    }

    /// Readable when the peer rang, or is gone.
    pub(super) fn doorbell(&self) -> Fd {
        self.parts.doorbell.get()
    }

    /// Rings if the peer sleeps and wants to be rung for `what`: after publishing it. The fence orders
    /// what was published before the peer's word is tested (see [`super`]).
    #[inline]
    pub(super) fn wake(&self, what: u32) {
        fence(Ordering::SeqCst);
        let armed = &self.peer().sleeping.0.armed;
        if armed.load(Ordering::Relaxed) & what != 0 && armed.swap(0, Ordering::SeqCst) != 0 {
            self.ring();
        }
    }

    /// Rings without being asked to.
    #[cold]
    pub(super) fn ring(&self) {
        // Full: it is readable. Gone: this end is told by its own socket.
        let _ = net::send(self.parts.doorbell.get(), &[1], libc::MSG_DONTWAIT);
    }

    /// Has this end be rung for `what` too from now on. To be followed by a look: the fence orders the word
    /// before what the look reads (see [`super`]).
    pub(super) fn arm(&self, what: u32) {
        self.own().sleeping.0.armed.fetch_or(what, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Takes what was rung so far; of a peer that rings and rings, some of it.
    pub(super) fn hear(&self) {
        let mut bytes = [0u8; 256];
        for _ in 0..BATCH {
            match net::recv(self.parts.doorbell.get(), &mut bytes, libc::MSG_DONTWAIT) {
                Ok(n) if n == bytes.len() => {}
                Ok(1..) | Err(Errno(libc::EAGAIN | libc::EINTR)) => return,
                Ok(_) | Err(_) => return self.over.store(true, Ordering::Release),
            }
        }
    }

    /// The peer's process, or its queue pair, is gone: it accesses nothing any more.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Ends the connection for both connectors: the peer does what it must not. Nothing of its memory is
    /// accessed any more, which it learns from the doorbell; this end goes on to listen for the same.
    pub(super) fn hang_up(&self) {
        let _ = net::shutdown(self.parts.control.get(), libc::SHUT_RDWR);
        let _ = net::shutdown(self.parts.doorbell.get(), libc::SHUT_WR);
    }

    /// Shows the peer where this process's memory is, and tells it whether this process can access the peer's,
    /// which was shown before. Followed by a packet.
    pub(super) fn introduce(&self) {
        let own = self.own();
        own.proof.0.offer();
        let reaches = self.parts.peer != 0 && self.peer().proof.0.check(self.parts.peer).is_ok();
        own.sleeping.0.reaches.store(reaches.into(), Ordering::Release);
    }

    /// Whether the peer can access this process's memory, as it found.
    pub(super) fn is_reached(&self) -> bool {
        self.peer().sleeping.0.reaches.load(Ordering::Acquire) != 0
    }
}
