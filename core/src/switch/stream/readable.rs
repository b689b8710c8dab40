//! Looks at what there is to read, without taking it: for poll and FIONREAD, and for a call that decides whether to
//! wait.

use super::Broken;
use super::Stream;
use crate::provider::shm::{FINISHED, RETURNED};
use crate::sys::net;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

impl Stream<'_> {
    /// True if there is data to read, without taking any lock; `None` if that needs a closer look
    /// with the receive lock held ([`Stream::absorb`]).
    #[inline]
    pub(crate) fn peek_readable(&self) -> Option<bool> {
        let session = &self.endpoint.session;
        let receive = &self.endpoint.receive;
        let expected = session.expected();
        if receive.next_read() != expected {
            return Some(true);
        }
        if receive.transfers.rest().is_some_and(|rest| rest.address.is_some()) {
            return Some(true);
        }
        let slot = self.slot_in(expected);
        if slot.sequence() == expected {
            return None;
        }
        let tail = self.peer().sending.0.tail.load(Acquire);
        Some(tail != receive.head.load(Relaxed))
    }

    /// The program learnt that so many bytes are there. The caller has the receive lock.
    pub(crate) fn note_seen(&self, bytes: u64) {
        let receive = &self.endpoint.receive;
        let seen = receive.seen.load(Relaxed).max(receive.total() + bytes);
        receive.seen.store(seen, Relaxed);
    }

    /// True if the program was told of bytes that it has not read. They may not be here at this moment: their sender
    /// had announced them, and may be about to send them in messages instead. (Not if they come over TCP.)
    #[inline]
    pub(crate) fn owes_seen(&self) -> bool {
        let receive = &self.endpoint.receive;
        receive.seen.load(Relaxed) > receive.total() && !self.endpoint.way_in().is_read_out()
    }

    /// They did not come for long: their sender may have changed its mind.
    pub(crate) fn forget_seen(&self) {
        self.endpoint.receive.seen.store(0, Relaxed);
    }

    /// True if the peer streams: it has found the send buffer full so often that it grew.
    #[inline]
    pub(crate) fn streams_in(&self) -> bool {
        self.peer().sending.0.grown.load(Relaxed) != 0
    }

    /// How many bytes of the send buffer the sender is ahead of us, and how many it should be for
    /// both ends to be fast.
    pub(crate) fn ahead(&self) -> (u64, u64) {
        let tail = self.peer().sending.0.tail.load(Relaxed);
        let ahead = tail.wrapping_sub(self.endpoint.receive.head.load(Relaxed));
        (ahead, self.buffer_in().0.size() / 4 * 3)
    }

    /// True if bytes, or what breaks the protocol, lie here unread. Takes the receive lock: false where that cannot be had.
    #[cold]
    pub(crate) fn has_unread(&self) -> bool {
        self.lock_receive().is_ok_and(|_held| self.available() != Ok(0))
    }

    /// Bytes that can be read (FIONREAD). Receive lock.
    pub(crate) fn available(&self) -> Result<u64, Broken> {
        let receive = &self.endpoint.receive;
        let session = &self.endpoint.session;
        let tail = self.peer().sending.0.tail.load(Acquire);
        self.absorb()?;
        let ring = self.buffer_in().0;
        let mut bytes = ring.used(receive.head.load(Relaxed), tail)?;
        let mut next = receive.next_read();
        let mut offset = receive.offset() as usize;
        while next != session.expected() {
            bytes += self.sizes(next).data().saturating_sub(offset) as u64;
            offset = 0;
            next = next.wrapping_add(1);
        }
        if let Some(rest) = receive.transfers.rest() {
            bytes += u64::from(rest.length - rest.taken);
        }
        Ok(bytes)
    }

    /// A stamp that changes whenever new data arrives, read or not (edge-triggered readiness).
    #[inline]
    pub(crate) fn arrival_stamp(&self) -> u64 {
        let expected = self.endpoint.session.expected();
        let mut ahead = 0;
        while ahead < self.segment.geometry().buffers {
            let next = expected.wrapping_add(ahead);
            if self.slot_in(next).sequence() != next {
                break;
            }
            ahead += 1;
        }
        let messages = u64::from(expected.wrapping_add(ahead));
        let tail = self.peer().sending.0.tail.load(Acquire);
        let finished = self.peer().sending.0.finished.load(Acquire);
        let over_tcp = self.came_over_tcp(finished & RETURNED != 0);
        messages.rotate_left(40) ^ tail.rotate_left(1) ^ over_tcp.rotate_left(20)
    }

    /// True if the peer shut its direction down.
    #[inline]
    pub(crate) fn is_finished(&self) -> bool {
        self.peer().sending.0.finished.load(Acquire) & FINISHED != 0
    }

    /// Bytes that came over TCP. A program may read what lies in the segment together with what is unread in the
    /// kernel: before it or, once an end has `returned`, behind it. This does not count what comes again of the
    /// segment's bytes.
    #[inline]
    fn came_over_tcp(&self, returned: bool) -> u64 {
        let taken = self.endpoint.receive.over_tcp.taken();
        if !returned && !self.endpoint.way_in().is_over_tcp() {
            return taken;
        }
        let came = net::bytes_received(self.anchor).unwrap_or(taken);
        came.saturating_sub(self.comes_twice()).max(taken)
    }

    /// How many bytes of those in the segment, read or not, come over TCP as well, if the peer sends what was unread again.
    fn comes_twice(&self) -> u64 {
        if !self.peer().sending.0.direction.state().pulled {
            return 0;
        }
        let here = self.endpoint.receive.total() + self.available().unwrap_or(0);
        here.saturating_sub(self.peer().leaving.0.resent_from.load(Acquire))
    }
}
