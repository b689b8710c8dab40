//! The receiving half of a stream: unread messages first, then the peer's send buffer.

use super::control::body_of;
use super::control::data_of;
use super::rdma::Read;
use super::Broken;
use super::Moved;
use super::Stream;
use super::Take;
use super::CHUNK;
use crate::provider::shm::FINISHED;
use crate::session::transfer::Call;
use crate::switch::buffers::Buffers;
use crate::switch::endpoint::flag;
use crate::sys::net;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// Rounds without a byte before a receive gives up: a peer may send control messages for ever.
const MOST_FRUITLESS: u32 = 64;

impl Stream<'_> {
    /// Receives what is there, up to the next urgent mark; `partial`: the call has received bytes before. Receive lock.
    pub(crate) fn receive(
        &self,
        to: &mut Buffers,
        take: Take,
        call: Call,
        partial: bool,
    ) -> Result<Moved, Broken> {
        let mut reach = self.reach(to.remaining(), partial);
        let receive = &self.endpoint.receive;
        let session = &self.endpoint.session;
        let mut next = receive.next_read();
        let mut offset = receive.offset() as usize;
        let first_head = receive.head.load(Relaxed);
        let mut head = first_head;
        let mut fault = None;
        let mut made_room = false;
        let from_peer = self.role.peer();
        let put = |to: &mut Buffers, from: *mut u8, n: usize, skips: bool| match take {
            _ if skips => Ok(()),
            Take::Discard => {
                to.skip(n);
                Ok(())
            }
            // SAFETY: the callers pass `n` readable bytes and n <= remaining.
            _ => unsafe { to.copy_in(from, n) },
        };
        let mut fruitless = 0;
        while reach.next().1 > 0 && fruitless < MOST_FRUITLESS {
            fruitless += 1;
            if let Some(rest) = receive.transfers.rest() {
                // Announced data follows the message that announced it, before anything else.
                if next.wrapping_sub(rest.after) as i32 > 0 {
                    let (skips, room) = reach.next();
                    if skips {
                        // No urgent byte is among announced data.
                        return Err(Broken::Position);
                    }
                    match self.read_rest(to, room, take, call) {
                        Read::Bytes(n) => {
                            reach.went(false, n);
                            made_room |= take != Take::Peek;
                            if take == Take::Peek {
                                break;
                            }
                            fruitless = 0;
                        }
                        Read::Over => {}
                        // A message behind it may say that it comes otherwise.
                        Read::NotNow if self.absorb()? => {
                            let passed = receive.next_read();
                            if passed.wrapping_sub(next) as i32 > 0 {
                                next = passed;
                            }
                        }
                        Read::NotNow => break,
                        Read::Fault(e) => {
                            fault = Some(e);
                            break;
                        }
                    }
                    continue;
                }
            }
            // Before it is looked for messages: one that was published before those bytes goes first.
            let tail = self.peer().sending.0.tail.load(Acquire);
            if next != session.expected() || self.absorb()? {
                if take != Take::Peek {
                    next = receive.next_read();
                }
                while next != session.expected()
                    && data_of(receive.lengths[next as usize & 63].load(Relaxed)) == 0
                {
                    next = next.wrapping_add(1);
                }
                if next == session.expected() {
                    continue;
                }
                self.renew(&mut reach);
                let (skips, room) = reach.next();
                let kept = receive.lengths[next as usize & 63].load(Relaxed);
                let length = data_of(kept) as usize;
                let n = length.saturating_sub(offset).min(room);
                let before = body_of(kept) as usize + offset;
                // SAFETY: offset < length, and body and data fit into the message buffer.
                let from = unsafe { self.slot_in(next).payload().add(before) };
                if receive.transfers.rest().is_some_and(|rest| rest.after == next) {
                    receive.transfers.begun(call);
                }
                if let Err(e) = put(to, from, n, skips) {
                    fault = Some(e);
                    break;
                }
                reach.went(skips, n);
                fruitless = 0;
                offset += n;
                if offset < length {
                    if take != Take::Peek {
                        receive.read_to(next, offset as u32);
                    }
                    continue;
                }
                next = next.wrapping_add(1);
                offset = 0;
                if take != Take::Peek {
                    receive.finish(next, length as u32);
                    session.reposted(1);
                    self.statistics.received.messages.add(1);
                    self.pass_controls();
                    next = receive.next_read();
                }
                continue;
            }
            self.renew(&mut reach);
            let (skips, room) = reach.next();
            // After the tail: where the buffer grew is published before the bytes that lie there.
            let (ring, grown) = self.buffer_in();
            let there = ring.used(head, tail)? as usize;
            if there == 0 {
                break;
            }
            let (from, n) = self.stretch(from_peer, grown, head, there.min(room).min(CHUNK));
            if let Err(e) = put(to, from, n, skips) {
                fault = Some(e);
                break;
            }
            reach.went(skips, n);
            fruitless = 0;
            head += n as u64;
            if take != Take::Peek {
                receive.head.store(head, Relaxed);
                self.own().receiving.0.head.store(head, Release);
            }
        }
        let (all, moved) = (reach.bytes(), reach.taken);
        if take == Take::Peek {
            self.note_seen(all);
        } else {
            self.reached(&reach);
        }
        if take == Take::Peek || all == 0 {
            return Ok(Moved { bytes: moved, ring: self.try_send_due(), fault });
        }
        made_room |= head != first_head;
        let mut ring = self.consumed(all, made_room);
        ring |= self.try_send_due();
        Ok(Moved { bytes: moved, ring, fault })
    }

    /// After bytes were consumed: tells the sender. Receive lock.
    #[inline(always)]
    pub(super) fn consumed(&self, bytes: u64, made_room: bool) -> bool {
        let receive = &self.endpoint.receive;
        let total = receive.total();
        self.statistics.received.bytes.add(bytes);
        self.update_credit();
        let published = &self.own().receiving.0.total;
        if !made_room {
            // No space came free that a writer could wait for.
            published.store(total, Release);
            return false;
        }
        published.swap(total, SeqCst);
        let tail = self.peer().sending.0.tail.load(Relaxed);
        let waiting = tail.wrapping_sub(receive.head.load(Relaxed));
        waiting <= self.buffer_in().0.size() / 2 && self.signal_write()
    }

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

    /// The program learnt that so many bytes are there. Receive lock.
    pub(crate) fn note_seen(&self, bytes: u64) {
        let receive = &self.endpoint.receive;
        let seen = receive.seen.load(Relaxed).max(receive.total() + bytes);
        receive.seen.store(seen, Relaxed);
    }

    /// True if bytes that the program knows of were not read: their sender may be about to send in
    /// messages what it had announced. (Not if they come over TCP.)
    #[inline]
    pub(crate) fn owes_seen(&self) -> bool {
        let receive = &self.endpoint.receive;
        receive.seen.load(Relaxed) > receive.total() && !self.endpoint.has(flag::READ_OUT)
    }

    /// It did not come for long: its sender may have changed its mind.
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

    /// Bytes that can be read (FIONREAD). Receive lock.
    pub(crate) fn available(&self) -> Result<u64, Broken> {
        let receive = &self.endpoint.receive;
        let session = &self.endpoint.session;
        let tail = self.peer().sending.0.tail.load(Acquire);
        self.absorb()?;
        let ring = self.buffer_in().0;
        let mut bytes = ring.used(receive.head.load(Relaxed), tail)?;
        let mut next = receive.next_read();
        let mut offset = u64::from(receive.offset());
        while next != session.expected() {
            let data = u64::from(data_of(receive.lengths[next as usize & 63].load(Relaxed)));
            bytes += data.saturating_sub(offset);
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
        if self.endpoint.has(flag::RECEIVES_TCP) {
            return tcp_stamp(self);
        }
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
        let finished = self.peer().sending.0.finished.load(Acquire) & FINISHED;
        messages.rotate_left(40) ^ tail.rotate_left(1) ^ u64::from(finished)
    }

    /// After the receive lock came from a dead holder: what it had taken in and not obeyed, consumed and
    /// not posted again, or not told.
    pub(super) fn recover_receiver(&self) {
        let (s, receive) = (&self.endpoint.session, &self.endpoint.receive);
        if self.peer().sending.0.doorbells.state().recalled {
            // What is here comes again over TCP.
            self.endpoint.set(flag::READ_OUT);
        }
        self.recover_control();
        let next = receive.next_read();
        if !receive.in_messages.is_up_to(next) {
            // The end of a message was counted, not noted.
            receive.read_to(next.wrapping_add(1), 0);
        }
        let unread = s.expected().wrapping_sub(receive.next_read());
        let held = u32::from(s.posted()) + unread;
        let missing = self.segment.geometry().buffers.saturating_sub(held);
        s.reposted(missing as u16);
        self.pass_controls();
        let lent = &self.peer().readable.0;
        receive.transfers.recover(|rest| lent.done_of(rest.key, rest.length));
        let own = &self.own().receiving.0;
        own.head.store(receive.head.load(Relaxed), Release);
        own.total.swap(receive.total(), SeqCst);
        self.recover_signals();
    }
}

/// Changes with what arrives over TCP.
fn tcp_stamp(stream: &Stream) -> u64 {
    let unread = net::unread(stream.anchor).unwrap_or(0);
    unread.wrapping_add(net::bytes_taken(stream.anchor).unwrap_or(0))
}
