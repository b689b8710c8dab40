//! The byte stream of one connection over the session and the shm provider.
//!
//! Order (A1, A19): unread messages come before unread bytes of the send buffer, because the
//! sender uses messages only while its send buffer is empty. No waiting and no system call in
//! here; an event that somebody sleeps for is returned as "ring".

use super::buffers::Buffers;
use super::endpoint::{flag, Endpoint};
use crate::provider::shm::{Overrun, Role, Segment, Side, FINISHED};
use crate::registry::Slot as Statistics;
use crate::session::{Header, Kind, NoCredit, ProtocolError};
use crate::sys::lock::{Acquired, Busy, FamilyLock};
use crate::sys::Errno;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

/// Bytes copied into the send buffer before the peer is told: both ends then copy at once.
const CHUNK: usize = 64 << 10;

/// Rounds without a byte before a receive gives up: a peer may send control messages for ever.
const MOST_FRUITLESS: u32 = 64;

/// The peer broke the protocol; the connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A message made no sense.
    Message(ProtocolError),
    /// A position of a send buffer made no sense.
    Position,
}

impl From<ProtocolError> for Broken {
    fn from(e: ProtocolError) -> Self {
        Broken::Message(e)
    }
}

impl From<Overrun> for Broken {
    fn from(_: Overrun) -> Self {
        Broken::Position
    }
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Broken::Message(e) => write!(f, "{e}"),
            Broken::Position => write!(f, "a send buffer position is out of range"),
        }
    }
}

/// What a transfer did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes transferred.
    pub bytes: usize,
    /// The peer sleeps and must be woken through the anchor (A18).
    pub ring: bool,
    /// The program's memory, or another source, failed after those bytes.
    pub fault: Option<Errno>,
}

/// What receiving does with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// Deliver and consume.
    Consume,
    /// Deliver and leave (MSG_PEEK).
    Peek,
    /// Consume without delivering (MSG_TRUNC).
    Discard,
}

/// The send lock or the receive lock, held.
pub struct Held<'a>(&'a FamilyLock);

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.unlock();
    }
}

/// See the module. Cheap to copy.
#[derive(Clone, Copy)]
pub struct Stream<'a> {
    /// Our end.
    pub endpoint: &'a Endpoint,
    /// The shared memory.
    pub segment: Segment,
    /// What `sanctl` shows.
    pub statistics: &'a Statistics,
}

impl<'a> Stream<'a> {
    /// The send lock; what a dead holder left half done is put right. `Busy` only if the calling
    /// thread has it already.
    #[inline]
    pub fn lock_send(&self) -> Result<Held<'a>, Busy> {
        if self.endpoint.send.lock.lock()? == Acquired::FromTheDead {
            self.recover_sender();
        }
        Ok(Held(&self.endpoint.send.lock))
    }

    /// The receive lock; as [`Stream::lock_send`].
    #[inline]
    pub fn lock_receive(&self) -> Result<Held<'a>, Busy> {
        if self.endpoint.receive.lock.lock()? == Acquired::FromTheDead {
            self.recover_receiver();
        }
        Ok(Held(&self.endpoint.receive.lock))
    }

    #[inline]
    fn role(&self) -> Role {
        self.endpoint.role()
    }

    /// What this end publishes.
    #[inline]
    pub fn own(&self) -> &Side {
        self.segment.side(self.role())
    }

    /// What the peer publishes.
    #[inline]
    pub fn peer(&self) -> &Side {
        self.segment.side(self.role().peer())
    }

    /// Signals the peer's FD_READ counter; true if the doorbell must ring.
    #[inline]
    fn signal_read(&self) -> bool {
        let ring = self.peer().counters.0.read.signal();
        if !ring {
            self.statistics.wakeups_avoided.add(1);
        }
        ring
    }

    /// Bytes waiting in our send buffer, by the peer's newest position. Send lock.
    fn buffered(&self) -> Result<u64, Broken> {
        let send = &self.endpoint.send;
        let head = self.peer().receiving.0.head.load(Acquire);
        let used = self.segment.send_buffer(self.role()).used(head, send.tail.load(Relaxed))?;
        send.seen_head.store(head, Relaxed);
        Ok(used)
    }

    /// Bytes sent that the peer has not taken in yet (SIOCOUTQ). As with TCP, what lies in the
    /// receiver's buffer counts as taken in; the second half of our send buffer stands for that.
    pub fn unsent(&self) -> u64 {
        if self.endpoint.has(flag::ANCHOR_ENDED) {
            return 0;
        }
        let limit = u64::from(self.endpoint.send.limit.load(Relaxed));
        self.buffered().unwrap_or(0).saturating_sub(limit / 2)
    }

    /// True if the peer's program consumed everything this end ever sent.
    pub fn peer_consumed_all(&self) -> bool {
        let send = &self.endpoint.send;
        self.peer().receiving.0.total.load(Acquire) == send.total.load(Relaxed)
    }

    /// Room for application data: the writable condition of poll. Wakes a writer only when half
    /// of the send buffer is free, so that it does not wake for every message.
    pub fn has_space(&self) -> bool {
        let send = &self.endpoint.send;
        let (tail, limit) = (send.tail.load(Relaxed), u64::from(send.limit.load(Relaxed)));
        if tail.wrapping_sub(send.seen_head.load(Relaxed)) <= limit / 2 {
            return true;
        }
        let head = self.peer().receiving.0.head.load(SeqCst);
        // A position that makes no sense counts as space: the send that follows finds the error.
        tail.wrapping_sub(head) <= limit / 2 || tail.wrapping_sub(head) > u64::from(u32::MAX)
    }

    /// Sends what fits now. Send lock.
    pub fn send(&self, from: &mut Buffers) -> Result<Moved, Broken> {
        let length = from.remaining();
        let send = &self.endpoint.send;
        let empty =
            send.tail.load(Relaxed) == send.seen_head.load(Relaxed) || self.buffered()? == 0;
        if empty && length <= self.segment.max_payload() {
            match self.next_message(Kind::Data, length) {
                Ok(header) => {
                    let slot = self.segment.slot(self.role(), header.sequence);
                    // SAFETY: the slot has room for `max_payload` bytes.
                    if let Err(fault) = unsafe { from.copy_out(slot.payload(), length) } {
                        return Ok(Moved { fault: Some(fault), ..Moved::default() });
                    }
                    slot.publish(header.encode());
                    self.endpoint.session.sent(&header);
                    send.total.store(send.total.load(Relaxed) + length as u64, Relaxed);
                    self.statistics.sent.bytes.add(length as u64);
                    self.statistics.sent.messages.add(1);
                    self.statistics.credits.set(u64::from(self.endpoint.session.credit()));
                    return Ok(Moved { bytes: length, ring: self.signal_read(), fault: None });
                }
                Err(NoCredit) => self.absorb_credit()?,
            }
        }
        self.buffer(length, |to, n| {
            // SAFETY: `to` has room for `n`, and `n` is at most what remains.
            unsafe { from.copy_out(to, n) }.map(|()| n)
        })
    }

    /// Fills the send buffer with up to `length` bytes through `fill`, which may give less than
    /// asked and so ends the call, as does its error. Send lock.
    pub fn buffer(
        &self,
        length: usize,
        mut fill: impl FnMut(*mut u8, usize) -> Result<usize, Errno>,
    ) -> Result<Moved, Broken> {
        let send = &self.endpoint.send;
        let ring = self.segment.send_buffer(self.role());
        let limit = u64::from(send.limit.load(Relaxed));
        let mut moved = Moved::default();
        let mut tail = send.tail.load(Relaxed);
        while moved.bytes < length {
            let mut used = tail.wrapping_sub(send.seen_head.load(Relaxed));
            if used + CHUNK as u64 > limit {
                used = self.buffered()?;
            }
            let space = limit.saturating_sub(used) as usize;
            let (to, n) = ring.stretch(tail, (length - moved.bytes).min(space).min(CHUNK));
            if n == 0 {
                break;
            }
            let filled = match fill(to, n) {
                Ok(filled) => filled,
                Err(e) => {
                    moved.fault = Some(e);
                    break;
                }
            };
            tail += filled as u64;
            // Ours first: a process that dies in between loses nothing that another could repeat.
            send.tail.store(tail, Relaxed);
            send.total.store(send.total.load(Relaxed) + filled as u64, Relaxed);
            self.own().sending.0.tail.swap(tail, SeqCst);
            moved.ring |= self.signal_read();
            moved.bytes += filled;
            if filled < n {
                break;
            }
        }
        let stalled = &self.own().sending.0.stalled;
        let full = moved.bytes < length && moved.fault.is_none();
        if full != (stalled.load(Relaxed) != 0) {
            stalled.store(u32::from(full), SeqCst);
            moved.ring |= full && self.signal_read();
        }
        self.statistics.sent.bytes.add(moved.bytes as u64);
        self.statistics.buffered_bytes.set(tail.wrapping_sub(send.seen_head.load(Relaxed)));
        Ok(moved)
    }

    fn next_message(&self, kind: Kind, length: usize) -> Result<Header, NoCredit> {
        self.endpoint.session.next_message(kind, length as u32)
    }

    /// Takes in what the peer may have sent to renew our credit, unless a receiver is at it.
    #[cold]
    fn absorb_credit(&self) -> Result<(), Broken> {
        if self.endpoint.receive.lock.try_lock().is_ok() {
            let absorbed = self.absorb();
            self.endpoint.receive.lock.unlock();
            absorbed?;
        }
        Ok(())
    }

    /// Opens the session towards the peer (A1). Send lock, before anything else was sent.
    pub fn open(&self, kind: Kind) {
        self.control(kind);
    }

    /// Sends a message without application data. Wakes nobody: data never waits for credit here,
    /// it goes to the send buffer, and the first data rings for itself. Send lock.
    fn control(&self, kind: Kind) {
        let Ok(header) = self.next_message(kind, 0) else { return };
        self.segment.slot(self.role(), header.sequence).publish(header.encode());
        self.endpoint.session.sent(&header);
        if kind == Kind::CreditUpdate {
            self.statistics.credit_updates_sent.add(1);
        }
    }

    /// Renews the peer's credit if that is due (A16). Receive lock.
    #[inline]
    fn update_credit(&self) {
        if self.endpoint.session.credit_update_due() && self.endpoint.send.lock.try_lock().is_ok() {
            if self.endpoint.session.credit_update_due() {
                self.control(Kind::CreditUpdate);
            }
            self.endpoint.send.lock.unlock();
        }
    }

    /// Takes in all messages that arrived. Receive lock.
    #[inline]
    pub fn absorb(&self) -> Result<bool, Broken> {
        let session = &self.endpoint.session;
        let receive = &self.endpoint.receive;
        let mut any = false;
        // No more than there are buffers: a peer that floods must not keep us here.
        for _ in 0..self.segment.geometry().buffers {
            let expected = session.expected();
            let slot = self.segment.slot(self.role().peer(), expected);
            if slot.sequence() != expected {
                return Ok(any);
            }
            let max = self.segment.max_payload() as u32;
            let header = Header::decode(slot.header(expected), max)?;
            // Before it counts as received: who takes over from a dead receiver finds it.
            receive.lengths[expected as usize & 63].store(header.length, Relaxed);
            session.received(&header)?;
            if header.kind != Kind::Data && !self.endpoint.has(flag::ESTABLISHED) {
                self.endpoint.set(flag::ESTABLISHED);
            }
            any = true;
            self.pass_controls();
        }
        Ok(any)
    }

    /// Posts the buffers of messages without data at the front again. Receive lock.
    fn pass_controls(&self) {
        let receive = &self.endpoint.receive;
        let session = &self.endpoint.session;
        let mut next = receive.next_read.load(Relaxed);
        while next != session.expected() && receive.lengths[next as usize & 63].load(Relaxed) == 0 {
            next = next.wrapping_add(1);
            receive.next_read.store(next, Relaxed);
            session.reposted(1);
        }
    }

    /// Receives what is there, up to the next urgent mark. Receive lock.
    pub fn receive(&self, to: &mut Buffers, take: Take) -> Result<Moved, Broken> {
        let wanted = to.remaining();
        let most = self.until_urgent(wanted, take);
        let receive = &self.endpoint.receive;
        let session = &self.endpoint.session;
        let mut next = receive.next_read.load(Relaxed);
        let mut offset = receive.offset.load(Relaxed) as usize;
        let first_head = receive.head.load(Relaxed);
        let mut head = first_head;
        let (mut moved, mut fault) = (0, None);
        let from_peer = self.role().peer();
        let put = |to: &mut Buffers, from: *mut u8, n: usize| match take {
            Take::Discard => {
                to.skip(n);
                Ok(())
            }
            // SAFETY: the callers pass `n` readable bytes and n <= remaining.
            _ => unsafe { to.copy_in(from, n) },
        };
        let mut fruitless = 0;
        while moved < most && fruitless < MOST_FRUITLESS {
            fruitless += 1;
            if next != session.expected() || self.absorb()? {
                if take != Take::Peek {
                    next = receive.next_read.load(Relaxed);
                }
                while next != session.expected()
                    && receive.lengths[next as usize & 63].load(Relaxed) == 0
                {
                    next = next.wrapping_add(1);
                }
                if next == session.expected() {
                    continue;
                }
                let length = receive.lengths[next as usize & 63].load(Relaxed) as usize;
                let n = (length - offset).min(most - moved);
                // SAFETY: offset < length <= max_payload of the slot.
                let from = unsafe { self.segment.slot(from_peer, next).payload().add(offset) };
                if let Err(e) = put(to, from, n) {
                    fault = Some(e);
                    break;
                }
                moved += n;
                fruitless = 0;
                offset += n;
                if offset == length {
                    next = next.wrapping_add(1);
                    offset = 0;
                }
                if take != Take::Peek {
                    receive.offset.store(offset as u32, Relaxed);
                    if offset == 0 {
                        receive.next_read.store(next, Relaxed);
                        session.reposted(1);
                        self.statistics.received.messages.add(1);
                        self.pass_controls();
                        next = receive.next_read.load(Relaxed);
                    }
                }
                continue;
            }
            let ring = self.segment.send_buffer(from_peer);
            let tail = self.peer().sending.0.tail.load(Acquire);
            let there = ring.used(head, tail)? as usize;
            if there == 0 {
                break;
            }
            // A message published before those bytes goes first.
            if self.absorb()? {
                continue;
            }
            let (from, n) = ring.stretch(head, there.min(most - moved).min(CHUNK));
            if let Err(e) = put(to, from, n) {
                fault = Some(e);
                break;
            }
            moved += n;
            fruitless = 0;
            head += n as u64;
            if take != Take::Peek {
                receive.head.store(head, Relaxed);
                self.own().receiving.0.head.store(head, std::sync::atomic::Ordering::Release);
            }
        }
        if take == Take::Peek || moved == 0 {
            return Ok(Moved { bytes: moved, ring: false, fault });
        }
        let ring = self.consumed(moved as u64, head != first_head);
        Ok(Moved { bytes: moved, ring, fault })
    }

    /// After bytes were consumed: tells the sender. Receive lock.
    #[inline]
    fn consumed(&self, bytes: u64, from_send_buffer: bool) -> bool {
        let receive = &self.endpoint.receive;
        let total = receive.total.load(Relaxed) + bytes;
        receive.total.store(total, Relaxed);
        self.statistics.received.bytes.add(bytes);
        self.update_credit();
        let published = &self.own().receiving.0.total;
        if !from_send_buffer {
            // No space came free that a writer could wait for.
            published.store(total, std::sync::atomic::Ordering::Release);
            return false;
        }
        published.swap(total, SeqCst);
        let tail = self.peer().sending.0.tail.load(Relaxed);
        let waiting = tail.wrapping_sub(receive.head.load(Relaxed));
        waiting <= u64::from(self.segment.geometry().send_buffer) / 2
            && self.peer().counters.0.write.signal()
    }

    /// How much may be read before the urgent mark (S8); a read that begins at the mark passes it.
    #[inline]
    fn until_urgent(&self, wanted: usize, take: Take) -> usize {
        let urgent = self.peer().sending.0.urgent.load(Acquire);
        let receive = &self.endpoint.receive;
        if urgent == receive.urgent_passed.load(Relaxed) {
            return wanted;
        }
        let ahead = urgent.saturating_sub(1).saturating_sub(receive.total.load(Relaxed));
        if ahead == 0 {
            if take != Take::Peek {
                receive.urgent_passed.store(urgent, Relaxed);
            }
            return wanted;
        }
        wanted.min(usize::try_from(ahead).unwrap_or(usize::MAX))
    }

    /// True if the next byte to read is the one after the urgent mark (SIOCATMARK).
    pub fn at_mark(&self) -> bool {
        let urgent = self.peer().sending.0.urgent.load(Acquire);
        let receive = &self.endpoint.receive;
        urgent != 0
            && urgent != receive.urgent_passed.load(Relaxed)
            && urgent - 1 == receive.total.load(Relaxed)
    }

    /// The urgent byte was read.
    pub fn pass_mark(&self) {
        let urgent = self.peer().sending.0.urgent.load(Acquire);
        self.endpoint.receive.urgent_passed.store(urgent, Relaxed);
    }

    /// Notes that the byte at the present position is urgent. Send lock.
    pub fn mark_urgent(&self) {
        let at = self.endpoint.send.total.load(Relaxed) + 1;
        self.own().sending.0.urgent.store(at, SeqCst);
    }

    /// True if there is data to read, without taking any lock; `None` if that needs a closer look
    /// with the receive lock held ([`Stream::absorb`]).
    #[inline]
    pub fn peek_readable(&self) -> Option<bool> {
        let session = &self.endpoint.session;
        let receive = &self.endpoint.receive;
        let expected = session.expected();
        if receive.next_read.load(Relaxed) != expected {
            return Some(true);
        }
        let slot = self.segment.slot(self.role().peer(), expected);
        if slot.sequence() == expected {
            return None;
        }
        let tail = self.peer().sending.0.tail.load(Acquire);
        Some(tail != receive.head.load(Relaxed))
    }

    /// Bytes that can be read (FIONREAD). Receive lock.
    pub fn available(&self) -> Result<u64, Broken> {
        let receive = &self.endpoint.receive;
        let session = &self.endpoint.session;
        let tail = self.peer().sending.0.tail.load(Acquire);
        self.absorb()?;
        let ring = self.segment.send_buffer(self.role().peer());
        let mut bytes = ring.used(receive.head.load(Relaxed), tail)?;
        let mut next = receive.next_read.load(Relaxed);
        let mut offset = u64::from(receive.offset.load(Relaxed));
        while next != session.expected() {
            bytes += u64::from(receive.lengths[next as usize & 63].load(Relaxed)) - offset;
            offset = 0;
            next = next.wrapping_add(1);
        }
        Ok(bytes)
    }

    /// A stamp that changes with whatever the peer does: sends, or takes from us.
    pub fn activity_of_peer(&self) -> u64 {
        let sent = u64::from(self.endpoint.session.last_received());
        let tail = self.peer().sending.0.tail.load(Relaxed);
        let taken = self.peer().receiving.0.total.load(Relaxed);
        sent.rotate_left(40) ^ tail.rotate_left(20) ^ taken
    }

    /// A stamp that changes whenever new data arrives, read or not (edge-triggered readiness).
    #[inline]
    pub fn arrival_stamp(&self) -> u64 {
        let expected = self.endpoint.session.expected();
        let mut ahead = 0;
        let peer = self.role().peer();
        while ahead < self.segment.geometry().buffers {
            let next = expected.wrapping_add(ahead);
            if self.segment.slot(peer, next).sequence() != next {
                break;
            }
            ahead += 1;
        }
        let messages = u64::from(expected.wrapping_add(ahead));
        let tail = self.peer().sending.0.tail.load(Acquire);
        let finished = self.peer().sending.0.finished.load(Acquire) & FINISHED;
        messages.rotate_left(40) ^ tail.rotate_left(1) ^ u64::from(finished)
    }

    /// After the receive lock came from a dead holder: buffers it consumed but did not post again.
    fn recover_receiver(&self) {
        let s = &self.endpoint.session;
        let unread = s.expected().wrapping_sub(self.endpoint.receive.next_read.load(Relaxed));
        let held = u32::from(s.posted()) + unread;
        let missing = self.segment.geometry().buffers.saturating_sub(held);
        s.reposted(missing as u16);
    }

    /// After the send lock came from a dead holder: a message it published but did not count.
    fn recover_sender(&self) {
        let s = &self.endpoint.session;
        let next = s.last_sent().wrapping_add(1);
        let slot = self.segment.slot(self.role(), next);
        if slot.sequence() == next {
            let max = self.segment.max_payload() as u32;
            if let Ok(header) = Header::decode(slot.header(next), max) {
                s.sent(&header);
                let send = &self.endpoint.send;
                send.total.store(send.total.load(Relaxed) + u64::from(header.length), Relaxed);
            }
        }
    }
}
