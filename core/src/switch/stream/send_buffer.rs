//! This end's send buffer: how much is in it, and putting bytes into it. `growth` says when it grows.

use super::Broken;
use super::Moved;
use super::Stream;
use super::CHUNK;
use crate::provider::shm::{Span, BOTH_SHUT, CLOSED};
use crate::switch::buffers::Buffers;
use crate::switch::endpoint::flag;
use crate::sys::Errno;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

impl Stream<'_> {
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

    /// Bytes that this end has sent and the peer's program has not consumed, as far as this end has heard.
    pub(crate) fn unread_by_peer(&self) -> u64 {
        let consumed = self.peer().receiving.0.total.load(Acquire);
        // The peer counts what it reads by RDMA before this end does.
        (self.endpoint.send.total().wrapping_sub(consumed) as i64).max(0) as u64
    }

    /// True if the peer's program consumed everything this end ever sent.
    pub(crate) fn peer_consumed_all(&self) -> bool {
        self.unread_by_peer() == 0
    }

    /// True if the peer says that its end reads nothing more: it closed, or shut both directions down.
    pub(crate) fn is_given_up_by_peer(&self) -> bool {
        let finished = self.peer().sending.0.finished.load(SeqCst);
        finished & CLOSED != 0 || finished & BOTH_SHUT == BOTH_SHUT
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

    /// Puts what fits of `from` into the send buffer. Send lock.
    #[inline]
    pub(super) fn buffer_all(&self, from: &mut Buffers) -> Result<Moved, Broken> {
        self.buffer(from.remaining(), |to| from.copy_out(to).map(|()| to.length()))
    }

    /// Has `fill` give up to `length` bytes, as many as go at once, for a peer that takes none any more. Send lock.
    #[cold]
    pub(crate) fn lose(
        &self,
        length: usize,
        fill: impl FnOnce(Span) -> Result<usize, Errno>,
    ) -> Result<Moved, Broken> {
        let room = usize::try_from(self.room()?).unwrap_or(usize::MAX);
        let lost = fill(self.sent_at(self.endpoint.send.tail.load(Relaxed), length.min(room)));
        let (bytes, fault) = lost.map_or_else(|e| (0, Some(e)), |bytes| (bytes, None));
        Ok(Moved { bytes, ring: false, fault })
    }

    /// Fills the send buffer with up to `length` bytes through `fill`, which may give less than
    /// asked and so ends the call, as does its error. Send lock.
    pub(crate) fn buffer(
        &self,
        length: usize,
        mut fill: impl FnMut(Span) -> Result<usize, Errno>,
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
            let to = self.stretch(self.role, grown, tail, room);
            if to.length() == 0 {
                if grown == 0 && self.count_full() && self.grow(tail)? {
                    limit = u64::from(self.limit());
                    continue;
                }
                break;
            }
            let filled = match fill(to) {
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
            if filled < to.length() {
                break;
            }
        }
        if self.fills_window(send.grown.load(Relaxed), tail) && self.measure_rate(tail) {
            self.grow(tail)?;
        }
        let stalled = &self.own().sending.0.stalled;
        let full = moved.bytes < length && moved.fault.is_none();
        if full != (stalled.load(Relaxed) != 0) {
            // `has_space` waits for that.
            let awaited = (self.limit() / 2).max(1);
            stalled.store(if full { awaited } else { 0 }, SeqCst);
            moved.ring |= full && self.announce_data();
        }
        self.statistics.buffered_bytes.set(tail.wrapping_sub(send.seen_head.load(Relaxed)));
        Ok(moved)
    }
}
