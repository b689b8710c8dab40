//! The sending half of a stream: messages while the send buffer is empty, else the send buffer, so that a program that does not
//! wait may send again at once (S7).

use super::Broken;
use super::Moved;
use super::Stream;
use super::CHUNK;
use crate::provider::shm::Part;
use crate::session::{Advertisement, Control, Header, Kind, NoCredit, ProtocolError, LARGEST_BODY};
use crate::switch::buffers::Buffers;
use crate::switch::endpoint::flag;
use crate::sys::{time, Errno};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// Bytes whose time is taken, and the time (ns) in which a stream sends them: 1 GB/s.
pub(super) const WINDOW: u64 = 8 << 20;
const FAST_WINDOW: u64 = 8_000_000;

/// How long (ns) a send buffer stays large at least.
const LEAST_AGE: u64 = 1_000_000_000;

/// How often a sender finds the send buffer full before it grows (A9).
const OFTEN_FULL: u32 = 16;

impl Stream<'_> {
    /// Data was published: true if the doorbell must ring. Send lock.
    #[inline]
    pub(super) fn announce_data(&self) -> bool {
        let ring = self.signal_read();
        if !ring {
            self.statistics.wakeups_avoided.add(1);
        }
        ring
    }

    /// True if nothing waits in our send buffer: what is sent now may go in a message. Send lock.
    #[inline]
    pub(super) fn is_empty(&self) -> Result<bool, Broken> {
        let send = &self.endpoint.send;
        Ok(send.tail.load(Relaxed) == send.seen_head.load(Relaxed) || self.buffered()? == 0)
    }

    /// Most bytes that may wait in our send buffer.
    #[inline]
    pub(crate) fn limit(&self) -> u32 {
        let (send, geometry) = (&self.endpoint.send, self.segment.geometry());
        match send.fixed.load(Relaxed) {
            0 if send.grown.load(Relaxed) != 0 => geometry.largest_send_buffer,
            0 => geometry.send_buffer,
            fixed => fixed,
        }
    }

    /// Bytes waiting in our send buffer, by the peer's newest position. Send lock.
    pub(super) fn buffered(&self) -> Result<u64, Broken> {
        let send = &self.endpoint.send;
        let head = self.peer().receiving.0.head.load(Acquire);
        let large = send.grown.load(Relaxed) != 0;
        let ring = self.segment.send_buffer(self.role, large);
        let used = ring.used(head, send.tail.load(Relaxed))?;
        send.seen_head.store(head, Relaxed);
        self.statistics.buffered_bytes.set(used);
        Ok(used)
    }

    /// Bytes for which there is room in our send buffer. Send lock.
    pub(crate) fn room(&self) -> Result<u64, Broken> {
        Ok(u64::from(self.limit()).saturating_sub(self.buffered()?))
    }

    /// Bytes sent that the peer has not taken in yet (SIOCOUTQ). As with TCP, what lies in the
    /// receiver's buffer counts as taken in; the second half of our send buffer stands for that.
    pub(crate) fn unsent(&self) -> u64 {
        if self.endpoint.has(flag::ANCHOR_ENDED) {
            return 0;
        }
        let limit = u64::from(self.limit());
        self.buffered().unwrap_or(0).saturating_sub(limit / 2)
    }

    /// True if the peer's program consumed everything this end ever sent. What it reads by RDMA
    /// counts with it before it does here.
    pub(crate) fn peer_consumed_all(&self) -> bool {
        let sent = self.endpoint.send.total();
        self.peer().receiving.0.total.load(Acquire).wrapping_sub(sent) as i64 >= 0
    }

    /// Room for application data: the writable condition of poll. Wakes a writer only when half
    /// of the send buffer is free, so that it does not wake for every message.
    pub(crate) fn has_space(&self) -> bool {
        let send = &self.endpoint.send;
        let (tail, limit) = (send.tail.load(Relaxed), u64::from(self.limit()));
        if tail.wrapping_sub(send.seen_head.load(Relaxed)) <= limit / 2 {
            return true;
        }
        let head = self.peer().receiving.0.head.load(SeqCst);
        // A position that makes no sense counts as space: the send that follows finds the error.
        tail.wrapping_sub(head) <= limit / 2 || tail.wrapping_sub(head) > u64::from(u32::MAX)
    }

    /// Sends what fits now. Send lock.
    pub(crate) fn send(&self, from: &mut Buffers) -> Result<Moved, Broken> {
        if self.endpoint.resize.has_answer() {
            self.obey_resize()?;
        }
        if !self.endpoint.due.any() {
            return self.send_data(None, from);
        }
        if self.is_held_back() {
            // What is sent is kept until the session goes on (D5).
            let ring = self.send_due(false);
            let mut moved = self.buffer_all(from)?;
            moved.ring |= ring;
            return Ok(moved);
        }
        // Control messages go before data; an advertisement rides on it where it can.
        let rides = from.remaining().saturating_add(LARGEST_BODY) <= self.payload_out() as usize;
        let ring = self.send_due(rides);
        let advertisement = if rides { self.take_advertisement() } else { None };
        let moved = self.send_data(advertisement, from);
        self.endpoint.due.gone();
        moved.map(|moved| Moved { ring: moved.ring | ring, ..moved })
    }

    #[inline]
    fn send_data(
        &self,
        advertisement: Option<Advertisement>,
        from: &mut Buffers,
    ) -> Result<Moved, Broken> {
        let length = from.remaining();
        if self.is_empty()?
            && length <= self.payload_out() as usize
            && !self.endpoint.resize.is_asking()
        {
            match self.next_message(Kind::Data, length) {
                Ok(header) => return self.message(header, advertisement, from),
                Err(NoCredit) => self.absorb_credit()?,
            }
        } else {
            self.note_fragmentation(length);
        }
        if let Some(advertisement) = advertisement {
            self.endpoint.due.note(&Control::Advertisement(advertisement));
        }
        self.buffer_all(from)
    }

    /// Puts what fits of `from` into the send buffer. Send lock.
    #[inline]
    fn buffer_all(&self, from: &mut Buffers) -> Result<Moved, Broken> {
        self.buffer(from.remaining(), |to, n| {
            // SAFETY: `to` has room for `n`, and `n` is at most what remains.
            unsafe { from.copy_out(to, n) }.map(|()| n)
        })
    }

    /// Sends all of `from` in one message, an advertisement riding on it (A13). Send lock.
    #[inline(always)]
    pub(super) fn message(
        &self,
        header: Header,
        advertisement: Option<Advertisement>,
        from: &mut Buffers,
    ) -> Result<Moved, Broken> {
        let length = header.length as usize;
        let slot = self.slot_out(header.sequence);
        let mut payload = slot.payload();
        let header = match advertisement {
            None => header,
            Some(advertisement) => {
                let header = header.advertising();
                let body = Control::Advertisement(advertisement).encode();
                let size = header.body_size() as usize;
                // SAFETY: there is room for the body and the data, as was checked.
                unsafe {
                    std::ptr::copy_nonoverlapping(body.as_ptr(), payload, size);
                    payload = payload.add(size);
                }
                header
            }
        };
        // SAFETY: the message has room for the data.
        if let Err(fault) = unsafe { from.copy_out(payload, length) } {
            if let Some(advertisement) = advertisement {
                self.endpoint.due.note(&Control::Advertisement(advertisement));
            }
            return Ok(Moved { fault: Some(fault), ..Moved::default() });
        }
        slot.publish(header.encode());
        self.sent(&header, length);
        self.statistics.sent.messages.add(1);
        self.statistics.credits.set(u64::from(self.endpoint.session.credit()));
        let mut ring = self.announce_data();
        if advertisement.is_some() {
            ring |= self.signal_write();
        }
        Ok(Moved { bytes: length, ring, fault: None })
    }

    /// A message with so many bytes of data was published. Send lock.
    #[inline]
    pub(super) fn sent(&self, header: &Header, bytes: usize) {
        self.endpoint.session.sent(header);
        self.endpoint.send.in_messages.count(bytes as u64, header.sequence);
        self.statistics.sent.bytes.add(bytes as u64);
    }

    /// A send that does not fit into a message: larger ones may be worth it (A9).
    #[inline]
    fn note_fragmentation(&self, length: usize) {
        if length > self.payload_out() as usize {
            self.statistics.transfers.fragmented.add(1);
        }
        let most = super::payload_of(self.segment.geometry().largest_message);
        if !self.endpoint.has(flag::ESTABLISHED) {
            return;
        }
        let resize = &self.endpoint.resize;
        if let Some(payload) = resize.fragmented(length, self.payload_out(), most) {
            self.endpoint.due.note(&Control::ResizeRequest(payload));
        }
    }

    /// The receiver answered our request for larger messages (A9): from the next one on they are
    /// used. Nothing is under way in messages at this moment but control messages.
    #[cold]
    fn obey_resize(&self) -> Result<(), Broken> {
        let resize = &self.endpoint.resize;
        if self.endpoint.session.credit() < 2 {
            return Ok(());
        }
        let Some(payload) = resize.take_answer() else { return Ok(()) };
        if payload <= self.payload_out() {
            return Ok(());
        }
        let send_size = self.endpoint.send.message_size.load(Relaxed);
        let size = self.segment.geometry().largest_message;
        if super::payload_of(size) != payload || send_size != 0 {
            let (kind, field, value) = (Kind::ResizeAnswer, "size", payload.into());
            return Err(ProtocolError::Body { kind, field, value }.into());
        }
        let buffers = self.segment.geometry().buffers;
        let last = self.endpoint.session.last_sent().wrapping_add(1);
        for ahead in 1..=buffers {
            // What lies there is anything: no bytes may look like a message.
            let sequence = last.wrapping_add(ahead);
            self.segment.slot(self.role, sequence, size).clear(sequence, buffers);
        }
        if self.announce_size(last).is_ok() {
            self.use_larger_messages();
            resize.grew();
            self.publish_transfers();
        }
        Ok(())
    }

    /// Says in message `last` that every later one lies in a larger buffer.
    pub(super) fn announce_size(&self, last: u32) -> Result<(), NoCredit> {
        let send = &self.endpoint.send;
        send.resized_by.store(last, Relaxed);
        send.resizes.store(1, Relaxed);
        self.send_control(&Control::Resized).inspect_err(|_| send.resizes.store(0, Relaxed))
    }

    fn use_larger_messages(&self) {
        let send = &self.endpoint.send;
        send.message_size.store(self.segment.geometry().largest_message, Release);
        send.resizes.store(0, Release);
    }

    /// The send buffer was found full; true if it often is.
    #[cold]
    fn is_often_full(&self) -> bool {
        let full = &self.endpoint.send.full;
        full.store(full.load(Relaxed) + 1, Relaxed);
        full.load(Relaxed) >= OFTEN_FULL
    }

    /// As much as a window went through the send buffer: true if that took little time, twice in a
    /// row. A receiver that keeps up never lets the buffer fill, and yet it is a stream.
    #[cold]
    fn is_fast(&self, tail: u64) -> bool {
        let send = &self.endpoint.send;
        let now = time::now();
        let fast = now - send.window_at.load(Relaxed) < FAST_WINDOW;
        send.window_at.store(now, Relaxed);
        send.window.store(tail, Relaxed);
        let windows = if fast { send.fast_windows.load(Relaxed) + 1 } else { 0 };
        send.fast_windows.store(windows, Relaxed);
        windows >= 2
    }

    /// Changes to the large send buffer, for a stream (A9). True: there is room now.
    #[cold]
    fn grow(&self, tail: u64) -> Result<bool, Broken> {
        let send = &self.endpoint.send;
        // Who only sends large pieces takes in nothing elsewhere.
        self.absorb_if_free()?;
        let geometry = self.segment.geometry();
        if send.fixed.load(Relaxed) != 0
            || geometry.largest_send_buffer == geometry.send_buffer
            || !self.endpoint.has(flag::ESTABLISHED)
        {
            return Ok(false);
        }
        if self.segment.provide(self.role, Part::SendBuffer).is_err() {
            // The old size it stays; asked again after as many times.
            send.full.store(0, Relaxed);
            return Ok(false);
        }
        send.grown.store(tail + 1, Relaxed);
        send.grown_at.store(time::now(), Relaxed);
        self.own().sending.0.grown.store(tail + 1, Relaxed);
        self.endpoint.resize.grew();
        send.preference.restart();
        self.publish_transfers();
        Ok(true)
    }

    /// Before a thread sleeps: a stream that has ended gives its memory back (A9).
    #[inline]
    pub(crate) fn shrink_if_idle(&self) {
        if self.endpoint.send.grown.load(Relaxed) != 0 {
            self.shrink();
        }
    }

    /// Changes back to the first send buffer and frees both, if nothing lies in them. Not soon after
    /// they grew: that has its price as well.
    #[cold]
    fn shrink(&self) {
        let send = &self.endpoint.send;
        let young = || time::now() - send.grown_at.load(Relaxed) < LEAST_AGE;
        if young() {
            return;
        }
        let Some(_held) = self.borrow(&send.lock) else { return };
        if send.grown.load(Relaxed) != 0 && !young() && self.buffered() == Ok(0) {
            // Before the next tail is published. Everything before lies behind the reader.
            self.own().sending.0.grown.store(0, Relaxed);
            send.grown.store(0, Relaxed);
            send.full.store(0, Relaxed);
            self.segment.free_send_buffers(self.role);
            self.publish_transfers();
        }
    }

    /// Fills the send buffer with up to `length` bytes through `fill`, which may give less than
    /// asked and so ends the call, as does its error. Send lock.
    pub(crate) fn buffer(
        &self,
        length: usize,
        mut fill: impl FnMut(*mut u8, usize) -> Result<usize, Errno>,
    ) -> Result<Moved, Broken> {
        let send = &self.endpoint.send;
        let mut limit = u64::from(self.limit());
        let mut moved = Moved::default();
        let mut tail = send.tail.load(Relaxed);
        while moved.bytes < length {
            let mut used = tail.wrapping_sub(send.seen_head.load(Relaxed));
            if used + CHUNK as u64 > limit {
                used = self.buffered()?;
            }
            let space = limit.saturating_sub(used) as usize;
            let grown = send.grown.load(Relaxed);
            let room = (length - moved.bytes).min(space).min(CHUNK);
            let (to, n) = self.stretch(self.role, grown, tail, room);
            if n == 0 {
                if grown == 0 && self.is_often_full() && self.grow(tail)? {
                    limit = u64::from(self.limit());
                    continue;
                }
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
            self.statistics.sent.bytes.add(filled as u64);
            self.own().sending.0.tail.swap(tail, SeqCst);
            moved.ring |= self.announce_data();
            moved.bytes += filled;
            if filled < n {
                break;
            }
        }
        if send.grown.load(Relaxed) == 0
            && tail.wrapping_sub(send.window.load(Relaxed)) >= WINDOW
            && self.is_fast(tail)
        {
            self.grow(tail)?;
        }
        let stalled = &self.own().sending.0.stalled;
        let full = moved.bytes < length && moved.fault.is_none();
        if full != (stalled.load(Relaxed) != 0) {
            stalled.store(u32::from(full), SeqCst);
            moved.ring |= full && self.announce_data();
        }
        self.statistics.buffered_bytes.set(tail.wrapping_sub(send.seen_head.load(Relaxed)));
        Ok(moved)
    }

    /// After the send lock came from a dead holder: a message it published but did not count.
    pub(super) fn recover_sender(&self) {
        if self.own().sending.0.doorbells.state().turned {
            self.endpoint.clear(flag::SENDS_TCP);
        }
        if self.own().sending.0.doorbells.state().left && !self.endpoint.has(flag::LEFT) {
            self.endpoint.set(flag::LEAVING);
        }
        self.recover_messages();
        self.recover_due();
        self.recover_transfer();
        let send = &self.endpoint.send;
        let sending = &self.own().sending.0;
        // It may have died while the send buffer grew or shrank; nothing was published since.
        sending.grown.store(send.grown.load(Relaxed), Relaxed);
        // Or before what it had put there was published.
        sending.tail.swap(send.tail.load(Relaxed), SeqCst);
        self.recover_urgent();
        self.recover_signals();
        send.awaits_peer.store(0, Relaxed);
    }

    /// A sender waits for room: the peer is to make some, however little it has to read. True if the doorbell must
    /// ring. Send lock.
    pub(crate) fn stall(&self) -> bool {
        self.own().sending.0.stalled.store(1, SeqCst);
        self.announce_data()
    }

    /// The message that a dead sender published last, its bytes, and what it says of the size.
    fn recover_messages(&self) {
        let (session, send) = (&self.endpoint.session, &self.endpoint.send);
        let header = |sequence: u32| {
            let slot = self.sent_slot(sequence);
            let header = (slot.sequence() == sequence).then(|| slot.header(sequence))?;
            Header::decode(header, self.largest_payload_out()).ok()
        };
        if let Some(header) = header(session.last_sent().wrapping_add(1)) {
            session.sent(&header);
        }
        let last = session.last_sent();
        if !send.in_messages.is_up_to(last) {
            let data = header(last).map_or(0, |header| header.data_size());
            send.in_messages.count(data.into(), last);
        }
        if send.resizes.load(Relaxed) != 0 {
            if send.resized_by.load(Relaxed) == last {
                self.use_larger_messages();
            }
            send.resizes.store(0, Release);
        }
    }
}
