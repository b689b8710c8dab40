//! The sending half of a stream: messages while the send buffer is empty, else the send buffer.

use super::{Broken, Moved, Stream, CHUNK};
use crate::session::{Header, Kind, NoCredit};
use crate::switch::buffers::Buffers;
use crate::switch::endpoint::flag;
use crate::sys::Errno;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

impl Stream<'_> {
    /// Signals the peer's FD_READ counter; true if the doorbell must ring.
    #[inline]
    pub(super) fn signal_read(&self) -> bool {
        let ring = self.peer().counters.0.read.signal();
        if !ring {
            self.statistics.wakeups_avoided.add(1);
        }
        ring
    }

    /// Bytes waiting in our send buffer, by the peer's newest position. Send lock.
    pub(super) fn buffered(&self) -> Result<u64, Broken> {
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

    /// Notes that the byte at the present position is urgent. Send lock.
    pub fn mark_urgent(&self) {
        let at = self.endpoint.send.total.load(Relaxed) + 1;
        self.own().sending.0.urgent.store(at, SeqCst);
    }

    /// After the send lock came from a dead holder: a message it published but did not count.
    pub(super) fn recover_sender(&self) {
        if self.own().sending.0.doorbells.state().left && !self.endpoint.has(flag::LEFT) {
            // It died on the way back to TCP: nobody knows what it sent there.
            self.endpoint.error.store(libc::ECONNRESET as u32, Relaxed);
            self.endpoint.set(flag::RESET);
        }
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
