//! The stream as a whole, which both halves share: its locks, where its bytes lie, whether the bell is to ring, and
//! what can go wrong.

use super::holding::Hold;
use crate::fabric::Link;
use crate::provider::shm::{
    MessageSlot, Overrun, Role, Segment, SendBuffer, Side, Span, CLOSED, DEAF,
};
use crate::registry::{self, DirectionControl as Shown, Event, Slot as Statistics};
use crate::session::token::TokenTaken;
use crate::session::{ProtocolError, HEADER_SIZE};
use crate::switch::endpoint::control::{ControlLock, Slept};
use crate::switch::endpoint::Endpoint;
use crate::sys::lock::Busy;
use crate::sys::lock_order::{HeldRank, LockRank};
use crate::sys::{Errno, Fd};
use std::convert::Infallible;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Bytes copied into the send buffer before the peer is told: both ends then copy at once.
pub(super) const CHUNK: usize = 64 << 10;

/// The peer broke the protocol; the connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    /// A message made no sense.
    #[error("session protocol broken by the peer, connection reset: {0}")]
    Message(#[from] ProtocolError),
    /// A position of a send buffer made no sense.
    #[error("a send buffer position is out of range")]
    Position,
    /// Something before made no sense, as was logged.
    #[error("a message before made no sense")]
    Before,
}

impl From<Overrun> for Broken {
    fn from(_: Overrun) -> Self {
        Broken::Position
    }
}

/// What a transfer did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Bytes transferred.
    pub(crate) bytes: usize,
    /// The peer sleeps, and its bell must ring (A18).
    pub(crate) ring: bool,
    /// The program's memory, or another source, failed after those bytes.
    pub(crate) fault: Option<Errno>,
}

/// What receiving does with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// Deliver and consume.
    Consume,
    /// Deliver and leave (MSG_PEEK).
    Peek,
    /// Consume without delivering (MSG_TRUNC).
    Discard,
}

/// Why a lock was not obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied<E> {
    /// The calling thread has it already.
    Reentered,
    /// The caller did not wait any longer, for this reason.
    GaveUp(E),
}

/// The send lock or the receive lock, held.
pub(crate) struct Held<'a> {
    control: &'a ControlLock,
    /// Another process had control before (D2).
    pub(crate) swapped: bool,
    _rank: HeldRank,
    _hold: Hold<'a>,
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.control.unlock();
    }
}

/// Bytes of payload in a message buffer of `size` bytes.
#[inline]
pub(super) fn payload_of(size: u32) -> u32 {
    size - HEADER_SIZE as u32
}

/// See the module. Cheap to copy.
#[derive(Clone, Copy)]
pub(crate) struct Stream<'a> {
    /// Our end.
    pub(crate) endpoint: &'a Endpoint,
    /// Which end that is.
    pub(crate) role: Role,
    /// What each end publishes. A transfer asks for these many times.
    own: &'a Side,
    peer: &'a Side,
    /// The shared memory.
    pub(crate) segment: &'a Segment,
    /// The counts that `sanctl` shows.
    pub(crate) statistics: &'a Statistics,
    /// The link that plays the peer's part in the segment, where the peer is on another host.
    pub(super) link: Option<&'a Link>,
    /// The TCP connection; -1: not known, and neither direction sends over it.
    pub(crate) anchor: Fd,
}

impl<'a> Stream<'a> {
    /// One end of the connection that `segment` holds.
    #[inline]
    pub(crate) fn new(
        endpoint: &'a Endpoint,
        segment: &'a Segment,
        statistics: &'a Statistics,
        link: Option<&'a Link>,
    ) -> Self {
        let role = endpoint.role();
        let (own, peer) = (segment.side(role), segment.side(role.peer()));
        Self { endpoint, role, own, peer, segment, statistics, link, anchor: -1 }
    }

    /// The same over this TCP connection.
    #[inline]
    pub(crate) fn over(self, anchor: Fd) -> Self {
        Self { anchor, ..self }
    }

    /// The send lock, however long that takes; what a dead holder left half done is put right.
    #[inline]
    pub(crate) fn lock_send(&self) -> Result<Held<'_>, Denied<Infallible>> {
        self.lock_send_while(|_| Ok(()))
    }

    /// As [`Stream::lock_send`]. While another thread has the lock, `goes_on` is asked before each sleep whether to wait
    /// on, and told what ended the last one.
    #[inline]
    pub(crate) fn lock_send_while<E>(
        &self,
        goes_on: impl FnMut(Slept) -> Result<(), E>,
    ) -> Result<Held<'_>, Denied<E>> {
        let (lock, hold) = (&self.endpoint.send.lock, Hold::of(self));
        let taken = self.take(lock, &self.statistics.send_control, Event::SendSwapped, goes_on)?;
        if taken.from_the_dead {
            self.recover_sender();
        }
        let rank = LockRank::Send.taken();
        Ok(Held { control: lock, swapped: taken.swapped, _rank: rank, _hold: hold })
    }

    /// True while the holder of the send lock waits for the peer in an RDMA transfer. Another send would wait for that, so
    /// the writable condition of poll is not met.
    #[inline]
    pub(crate) fn is_kept_from_sending(&self) -> bool {
        let (send, holders) = (&self.endpoint.send, &self.endpoint.holders);
        send.awaits_peer.load(SeqCst) != 0
            && (holders.load(Relaxed) == 1 || send.lock.is_held_by_the_living())
    }

    /// The receive lock; as [`Stream::lock_send`].
    #[inline]
    pub(crate) fn lock_receive(&self) -> Result<Held<'_>, Denied<Infallible>> {
        let (lock, hold) = (&self.endpoint.receive.lock, Hold::of(self));
        let taken =
            self.take(lock, &self.statistics.receive_control, Event::ReceiveSwapped, |_| Ok(()))?;
        if taken.from_the_dead {
            self.recover_receiver();
        }
        let rank = LockRank::Receive.taken();
        Ok(Held { control: lock, swapped: taken.swapped, _rank: rank, _hold: hold })
    }

    /// Control of a direction, if it is free and this process had it last.
    #[inline(always)]
    pub(super) fn hold_again<'b>(&'b self, control: &'b ControlLock) -> Option<Held<'b>> {
        let hold = Hold::of(self);
        control.try_lock_again().then(|| self.held(control, hold))
    }

    /// Control of a direction, if it is free, for something that is no transfer of the calling process. The process that
    /// had it last stays in control (D3).
    #[inline]
    pub(crate) fn borrow<'b>(&'b self, control: &'b ControlLock) -> Option<Held<'b>> {
        let hold = Hold::of(self);
        control.try_borrow().then(|| self.held(control, hold))
    }

    /// A lock that was free.
    #[inline(always)]
    fn held<'b>(&self, control: &'b ControlLock, hold: Hold<'b>) -> Held<'b> {
        let is_send = std::ptr::eq(control, &self.endpoint.send.lock);
        let rank = if is_send { LockRank::Send } else { LockRank::Receive }.tried();
        Held { control, swapped: false, _rank: rank, _hold: hold }
    }

    /// Takes control of a direction, and tells `sanctl` when it comes from another process.
    #[inline]
    pub(super) fn take<E>(
        &self,
        lock: &ControlLock,
        shown: &Shown,
        event: fn(u64) -> Event,
        goes_on: impl FnMut(Slept) -> Result<(), E>,
    ) -> Result<TokenTaken, Denied<E>> {
        let taken = match lock.try_lock() {
            Ok(taken) => taken,
            Err(Busy::Reentered) => return Err(Denied::Reentered),
            Err(Busy::Other) => {
                shown.while_waiting(|| lock.wait(goes_on)).map_err(Denied::GaveUp)?
            }
        };
        if taken.swapped {
            shown.taken(lock.swaps());
            registry::note(self.statistics, event(lock.swaps().into()));
        }
        Ok(taken)
    }

    /// Takes the locks over that dead threads hold, so that what these published is told to the peer.
    pub(crate) fn succeed_the_dead(&self) {
        let e = self.endpoint;
        if e.send.lock.is_held_by_the_dead() {
            drop(self.lock_send());
        }
        if e.receive.lock.is_held_by_the_dead() {
            drop(self.lock_receive());
        }
    }

    /// True if any thread holds a lock of this end.
    pub(crate) fn is_locked(&self) -> bool {
        self.endpoint.send.lock.is_held() || self.endpoint.receive.lock.is_held()
    }

    /// True if a living thread holds one. A thread that died with it, or was thrown out of its call, does not count.
    /// This costs system calls if any thread holds one.
    pub(crate) fn is_locked_by_the_living(&self) -> bool {
        [&self.endpoint.send.lock, &self.endpoint.receive.lock]
            .iter()
            .any(|lock| lock.is_held_by_the_living())
    }

    /// Signals the peer's FD_READ counter; true if the bell must ring.
    #[inline]
    pub(crate) fn signal_read(&self) -> bool {
        self.peer().counters.0.read.signal_after(&self.endpoint.called.read)
    }

    /// Signals the peer's FD_WRITE counter; true if the bell must ring.
    #[inline]
    pub(crate) fn signal_write(&self) -> bool {
        self.peer().counters.0.write.signal_after(&self.endpoint.called.write)
    }

    /// True if the peer was signalled, by whomever, and no bell rang since.
    pub(crate) fn owes_ring(&self) -> bool {
        let (counters, called) = (&self.peer().counters.0, &self.endpoint.called);
        called.read.is_behind(&counters.read) || called.write.is_behind(&counters.write)
    }

    /// Rings the bell by `call`, for all that was signalled before.
    pub(crate) fn ring_by(&self, call: impl FnOnce()) {
        let (counters, called) = (&self.peer().counters.0, &self.endpoint.called);
        called.read.make(&counters.read, || called.write.make(&counters.write, call));
    }

    /// A call goes on although another thread closed its descriptor. That call sleeps on a number that may soon be
    /// another file's, so it does not hear of TCP's end.
    pub(in crate::switch) fn say_deaf(&self) {
        self.own().sending.0.finished.fetch_or(DEAF, SeqCst);
        if self.peer().sending.0.finished.load(SeqCst) & CLOSED != 0 {
            self.wake_own();
        }
    }

    /// Wakes this end's own sleepers, of all its processes: the way of the bytes they wait for has changed, or another
    /// thread ended it.
    pub(crate) fn wake_own(&self) {
        self.segment.bells().ring_here();
    }

    /// Makes an edge at this end, behind what the caller did: a thread that looked in between must look again.
    pub(in crate::switch) fn make_edge(&self) {
        self.endpoint.own_edges.fetch_add(1, SeqCst);
        self.wake_own();
    }

    /// The buffer of message `sequence` that we send. Send lock.
    #[inline]
    pub(super) fn slot_out(&self, sequence: u32) -> MessageSlot {
        let large = self.endpoint.send.message_size.load(Relaxed) != 0;
        self.segment.slot(self.role, sequence, large)
    }

    /// The buffer of a message that was sent before, perhaps when buffers were smaller. Send lock.
    pub(super) fn sent_slot(&self, sequence: u32) -> MessageSlot {
        let send = &self.endpoint.send;
        let before = send.resized_by.load(Relaxed).wrapping_sub(sequence);
        let is_before = before < self.segment.geometry().buffers;
        let large = send.message_size.load(Relaxed) != 0 && !is_before;
        self.segment.slot(self.role, sequence, large)
    }

    /// Bytes of payload in the largest message that was sent.
    pub(super) fn largest_payload_out(&self) -> u32 {
        self.payload_out().max(self.payload(0))
    }

    /// The buffer of message `sequence` that we receive.
    #[inline(always)]
    pub(super) fn slot_in(&self, sequence: u32) -> MessageSlot {
        let receive = &self.endpoint.receive;
        let large = receive.message_size.load(Relaxed) != 0 && !receive.is_of_old_size(sequence);
        self.segment.slot(self.role.peer(), sequence, large)
    }

    /// Bytes of payload in a message that we send.
    #[inline]
    pub(super) fn payload_out(&self) -> u32 {
        self.payload(self.endpoint.send.message_size.load(Relaxed))
    }

    /// Bytes of payload in a message that we receive.
    #[inline]
    pub(super) fn payload_in(&self) -> u32 {
        self.payload(self.endpoint.receive.message_size.load(Relaxed))
    }

    #[inline]
    pub(super) fn payload(&self, resized: u32) -> u32 {
        payload_of(if resized == 0 { self.segment.geometry().message_size } else { resized })
    }

    /// Where the bytes of a send buffer lie from `position` on: `length` of them, or as many as lie in one piece.
    /// `grown` is one above the position at which the send buffer grew, or zero.
    #[inline]
    pub(super) fn stretch(&self, sender: Role, grown: u64, position: u64, length: usize) -> Span {
        let large = grown != 0 && position >= grown - 1;
        let before = if grown != 0 && !large { grown - 1 - position } else { u64::MAX };
        let length = length.min(usize::try_from(before).unwrap_or(usize::MAX));
        self.segment.send_buffer(sender, large).stretch(position, length)
    }

    /// The same of our send buffer.
    pub(crate) fn sent_at(&self, position: u64, length: usize) -> Span {
        let grown = self.endpoint.send.grown.load(Relaxed);
        self.stretch(self.role, grown, position, length)
    }

    /// The peer's send buffer, for its size, and where it grew.
    #[inline]
    pub(super) fn buffer_in(&self) -> (SendBuffer, u64) {
        let grown = self.peer().sending.0.grown.load(Relaxed);
        (self.segment.send_buffer(self.role.peer(), grown != 0), grown)
    }

    /// What this end publishes.
    #[inline]
    pub(crate) fn own(&self) -> &'a Side {
        self.own
    }

    /// What the peer publishes.
    #[inline]
    pub(crate) fn peer(&self) -> &'a Side {
        self.peer
    }

    /// A stamp that changes with whatever the peer does: sends, or takes from us.
    pub(crate) fn activity_of_peer(&self) -> u64 {
        let sent = u64::from(self.endpoint.session.last_received());
        let tail = self.peer().sending.0.tail.load(Relaxed);
        let taken = self.peer().receiving.0.total.load(Relaxed);
        sent.rotate_left(40) ^ tail.rotate_left(20) ^ taken
    }
}
