//! What one end of a connection publishes to the other, in its segment: counters, how far both directions have come,
//! and how they end. The peer may write every word of it at any time.
//!
//! Nothing is checked here. The code that reads a word checks it, and answers `stream::Broken` (docs/protocol.md;
//! `stream/hostile_tests.rs` tries it).

use super::registration::MemoryRegistration;
use crate::session::{Direction, SelectCounter};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A value on a cache line of its own.
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub T);

/// What one end publishes to the other.
#[repr(C, align(64))]
pub(crate) struct Side {
    /// Select counters (A18): this end raises them, the peer signals them.
    pub(crate) counters: Line<SelectCounters>,
    /// The sending half of this end.
    pub sending: Line<SendingSide>,
    /// The receiving half of this end.
    pub receiving: Line<ReceivingSide>,
    /// Memory of this end that the peer may RDMA-read: what it sends (M2).
    pub readable: Line<MemoryRegistration>,
    /// Memory of this end that the peer may RDMA-write: a posted receive (M2).
    pub writable: Line<MemoryRegistration>,
    /// How this end leaves.
    pub(crate) leaving: Line<Leaving>,
}

/// One select counter for each kind of event (A18).
#[repr(C)]
pub(crate) struct SelectCounters {
    /// Data to receive, or the end of the stream (FD_READ).
    pub read: SelectCounter,
    /// Space to send (FD_WRITE).
    pub write: SelectCounter,
}

/// Published by the sender of a direction.
#[repr(C)]
pub(crate) struct SendingSide {
    /// Bytes ever put into the send buffer.
    pub tail: AtomicU64,
    /// One above the position from which on bytes lie in the large send buffer; zero: none do.
    pub grown: AtomicU64,
    /// Not zero while a sender finds no space. The sender waits until no more bytes than this are unread.
    pub(crate) stalled: AtomicU32,
    /// Not zero once nothing more will be sent: see [`FINISHED`] and [`CLOSED`].
    pub finished: AtomicU32,
    /// The turn to the SAN, and the way back to TCP. The peer may change it as well.
    pub(crate) direction: Direction,
    /// Bytes of the stream that went over TCP before the turn. Stored before `direction` says that it turned.
    pub(crate) turned_at: AtomicU64,
    /// On a fabric. Our own end's: a stamp of what was published when the peer last had all of it
    /// ([`SendingSide::stamp`]). The peer's: how often the link's owner took what had arrived.
    pub delivered: AtomicU64,
    /// When (clock ticks of the host) this end's process last did something through the kernel: `sys::actions`.
    pub(crate) acted: AtomicU64,
    /// When it last rang a bell.
    pub(crate) rang: AtomicU64,
}

// The receiver of a message reads the line that the bytes' neighbours are in.
const _: () = assert!(size_of::<SendingSide>() == 64);

/// Published by a sender that goes back to TCP by itself.
#[repr(C)]
pub(crate) struct Leaving {
    /// From which byte of the stream on, counted since the turn, it sends again. Stored before `direction` says that it does.
    pub(crate) resent_from: AtomicU64,
}

#[cfg(test)]
impl Side {
    /// Calls `tell` for each field.
    pub(super) fn each_field(&self, tell: super::field_tests::Tell<'_>) {
        use super::field_tests::tell;
        let Side { counters, sending, receiving, readable, writable, leaving } = self;
        tell!(&counters.0, tell, SelectCounters { read, write; });
        tell!(&sending.0, tell, SendingSide {
            tail, grown, stalled, finished, direction, turned_at, delivered, acted, rang;
        });
        tell!(&receiving.0, tell, ReceivingSide { head, total, stopped_at, stands_in, asked; });
        readable.0.each_field(tell);
        writable.0.each_field(tell);
        tell!(&leaving.0, tell, Leaving { resent_from; });
    }
}

impl SendingSide {
    /// A stamp of a send buffer up to `tail`, of the messages before `next`, and of `read` bytes of the other direction.
    pub(crate) fn stamp(tail: u64, next: u32, read: u64) -> u64 {
        tail.rotate_left(24) ^ u64::from(next) ^ read.rotate_left(40) ^ 1 << 63
    }
}

/// The sender shut its direction down: end of the stream after what was sent.
pub(crate) const FINISHED: u32 = 1;
/// The sender closed its last descriptor: a hint that the anchor is worth a look.
pub(crate) const CLOSED: u32 = 2;
/// The sender's end receives nothing more (SHUT_RD).
pub(crate) const READ_SHUT: u32 = 4;
/// The sender's end shut both directions down.
pub(crate) const BOTH_SHUT: u32 = FINISHED | READ_SHUT;
/// A hint that the sender's direction went back to TCP: see [`Direction`].
pub(crate) const RETURNED: u32 = 8;
/// The fabric that led to the sender is broken (`fabric::Link`).
pub(crate) const FAILED: u32 = 16;
/// A call of the sender's goes on although its descriptor was closed: it may not hear of what TCP tells.
pub(crate) const DEAF: u32 = 32;

/// Published by the receiver of a direction.
#[repr(C)]
pub(crate) struct ReceivingSide {
    /// Bytes ever taken out of the peer's send buffer.
    pub head: AtomicU64,
    /// Bytes of the stream ever read by the program.
    pub total: AtomicU64,
    /// Where the receiver stopped reading messages when it recalled the direction: sequence number
    /// in the high half, bytes of that message already read in the low half.
    pub(crate) stopped_at: AtomicU64,
    /// The thread that is about to send, or sends, in the peer's stead what was recalled; zero: none.
    pub(crate) stands_in: AtomicU32,
    /// Over a fabric: see [`Asked`].
    asked: AtomicU32,
}

/// Over a fabric: whether the receiver wants to have sent again over TCP what it did not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Asked {
    /// It does not, or it is being sent.
    Nothing = 0,
    /// The peer has not answered yet.
    Pending = 1,
    /// The sender had left before, or closed.
    Denied = 2,
}

impl ReceivingSide {
    /// Acquire.
    pub(crate) fn asked(&self) -> Asked {
        match self.asked.load(Ordering::Acquire) {
            0 => Asked::Nothing,
            1 => Asked::Pending,
            _ => Asked::Denied,
        }
    }

    /// Sequentially consistent.
    pub(crate) fn ask(&self, asked: Asked) {
        self.asked.store(asked as u32, Ordering::SeqCst);
    }
}
