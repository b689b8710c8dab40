//! The common case in a straight line. A send is small and one message, or goes in one piece behind what lies in the
//! send buffer. A receive takes the one message, or the one piece, that is there.
//!
//! Each step is one of `send` and `receive`. Where anything else is to be done, this module does nothing, and leaves
//! the call to those.

use super::Stream;
use super::CHUNK;
use crate::session::{Header, Kind};
use crate::switch::buffers::Buffers;
use crate::switch::endpoint::flag;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// Flags that change nothing for a thread that transfers bytes.
const PLAIN: u32 =
    flag::NONBLOCK | flag::ESTABLISHED | flag::ONE_PROCESS | flag::PEER_IN_SIGHT | flag::TIMED;
/// The same for a thread that has nothing to read: a time-out may run.
const AT_REST: u32 = PLAIN & !flag::TIMED;

impl<'a> Stream<'a> {
    /// True if both ends do nothing but transfer bytes.
    #[inline(always)]
    fn is_plain(&self) -> bool {
        self.endpoint.state().is_on_san_with(PLAIN)
            && !self.endpoint.due.any()
            && self.peer().sending.0.finished.load(Acquire) == 0
    }

    /// Sends all of `from`. `Some`: it is sent; true: the bell must ring. `None`: nothing is.
    #[inline(always)]
    pub(crate) fn send_at_once(&self, from: &Buffers) -> Option<bool> {
        let (send, resize) = (&self.endpoint.send, &self.endpoint.resize);
        let length = from.remaining();
        let fits = length.wrapping_sub(1) < self.payload_out() as usize;
        if !fits || length >= self.endpoint.threshold() as usize || self.is_between_hosts() {
            return None;
        }
        let _held = self.hold_again(&send.lock)?;
        self.tell_actions();
        if !self.is_plain() || resize.has_answer() || resize.is_asking() {
            return None;
        }
        if send.tail.load(Relaxed) != send.seen_head.load(Relaxed) {
            return self.send_behind(from, length);
        }
        let header = self.next_message(Kind::Data, length).ok()?;
        let moved = self.message(header, None, &mut from.clone()).ok()?;
        moved.fault.is_none().then_some(moved.ring)
    }

    /// The same, into the send buffer, where something lay at the last look. Send lock.
    #[inline(never)]
    fn send_behind(&self, from: &Buffers, length: usize) -> Option<bool> {
        let (send, sending) = (&self.endpoint.send, &self.own().sending.0);
        let used = self.buffered().ok()?;
        let (tail, grown) = (send.tail.load(Relaxed), send.grown.load(Relaxed));
        let room = u64::from(self.limit()).saturating_sub(used);
        let to = self.stretch(self.role, grown, tail, length);
        // A session that no acceptor has taken yet may be withdrawn by now. And a time-out begins when the last room is
        // taken.
        if self.endpoint.state().among(flag::ESTABLISHED | flag::TIMED) != flag::ESTABLISHED
            || used == 0
            || room < length as u64
            || to.length() < length
            || sending.stalled.load(Relaxed) != 0
            || self.fills_window(grown, tail)
        {
            return None;
        }
        from.clone().copy_out(to).ok()?;
        let tail = tail + length as u64;
        send.tail.store(tail, Relaxed);
        self.statistics.sent.bytes.add(length as u64);
        self.statistics.buffered_bytes.set(used + length as u64);
        sending.tail.swap(tail, SeqCst);
        Some(self.announce_data())
    }

    /// True if a message was not read. Takes no lock.
    #[inline(always)]
    fn has_message(&self) -> bool {
        let expected = self.endpoint.session.expected();
        self.endpoint.receive.next_read() != expected
            || self.slot_in(expected).sequence() == expected
    }

    /// True if message `sequence` arrived, was not taken in, and says that it has data: a hint, and the peer's.
    #[inline]
    fn announces_data(&self, sequence: u32) -> bool {
        let slot = self.slot_in(sequence);
        let header = Header::decode(slot.header(sequence), self.payload_in());
        header.is_ok_and(|header| header.kind.carries_data())
    }

    /// The same of the next message. Takes no lock.
    #[inline]
    pub(crate) fn next_announces_data(&self) -> bool {
        self.announces_data(self.endpoint.session.expected())
    }

    /// True if something was not read, or seems so, that may be received at once. Takes no lock.
    #[inline(always)]
    pub(crate) fn has_data(&self) -> bool {
        if self.streams_in() {
            return false;
        }
        self.has_message()
            || self.peer().sending.0.tail.load(Relaxed) != self.endpoint.receive.head.load(Relaxed)
    }

    /// True if there is nothing to read, and both ends do nothing but transfer bytes, as most of the time. Takes no lock.
    #[inline(always)]
    pub(crate) fn is_at_rest(&self) -> bool {
        let receive = &self.endpoint.receive;
        self.is_undisturbed()
            && !self.has_message()
            && self.peer().sending.0.tail.load(Acquire) == receive.head.load(Relaxed)
            && receive.transfers.rest().is_none()
    }

    /// True if the two processes of one host do nothing but transfer bytes, as most of the time: no end is near, no time runs,
    /// and no direction goes back to TCP.
    #[inline(always)]
    pub(crate) fn is_undisturbed(&self) -> bool {
        !self.is_between_hosts()
            && self.endpoint.state().is_on_san_with(AT_REST)
            && self.peer().sending.0.finished.load(Acquire) == 0
    }

    /// True if a receive would plainly get a byte. False: perhaps. Takes no lock, and no message in.
    #[inline(always)]
    pub(crate) fn has_plainly_data(&self) -> bool {
        let (session, receive) = (&self.endpoint.session, &self.endpoint.receive);
        let expected = session.expected();
        self.is_undisturbed()
            && receive.low_water.load(Relaxed) <= 1
            && (receive.next_read() != expected
                || self.peer().sending.0.tail.load(Acquire) != receive.head.load(Relaxed)
                || self.slot_in(expected).sequence() == expected && self.announces_data(expected))
    }

    /// Receives what is there, if that is one message for which there is room, or one piece of the send buffer, and
    /// nothing else that this receive would take in. `Some`: how many bytes, and whether the bell must ring. `None`: it
    /// received nothing.
    #[inline(always)]
    pub(crate) fn receive_at_once(&self, to: &mut Buffers) -> Option<(usize, bool)> {
        let (session, receive) = (&self.endpoint.session, &self.endpoint.receive);
        if self.is_between_hosts() {
            return None;
        }
        let _held = self.hold_again(&receive.lock)?;
        self.tell_actions();
        if !self.is_plain() || receive.offset() != 0 {
            return None;
        }
        // Before it is looked for messages: one that was published before those bytes goes first.
        let tail = self.peer().sending.0.tail.load(Acquire);
        let next = receive.next_read();
        let is_message = next != session.expected() || self.absorb_next().ok()?;
        if !is_message {
            return self.receive_piece(to, tail);
        }
        let (sizes, wanted) = (self.sizes(next), to.remaining());
        let length = sizes.data();
        if length.wrapping_sub(1) >= wanted
            || length < (receive.low_water.load(Relaxed) as usize).min(wanted)
            || sizes.body() != 0
            || receive.transfers.rest().is_some()
        {
            return None;
        }
        let after = next.wrapping_add(1);
        let arrived = session.expected() == after && self.slot_in(after).sequence() == after;
        if arrived && !self.announces_data(after) {
            // Obeyed now, not when the program comes again. An error is found again.
            let _ = self.absorb();
            return None;
        }
        if length < wanted {
            // All that is there is received under one hold of the lock.
            let all = !arrived
                && session.expected() == after
                && self.peer().sending.0.tail.load(Acquire) == receive.head.load(Relaxed)
                && receive.seen.load(Relaxed) <= receive.total() + length as u64;
            if !all {
                return None;
            }
        }
        let mut rest = to.clone();
        rest.copy_in(self.slot_in(next).payload().part(0, length)).ok()?;
        *to = rest;
        receive.finish(after, length as u32);
        session.reposted(1);
        self.statistics.received.messages.add(1);
        self.pass_controls();
        Some((length, self.consumed(length as u64, false) | self.try_send_due()))
    }

    /// The same from the send buffer, whose bytes end at `tail`. There is no message. The caller has the receive lock.
    #[inline(never)]
    fn receive_piece(&self, to: &mut Buffers, tail: u64) -> Option<(usize, bool)> {
        let receive = &self.endpoint.receive;
        let head = receive.head.load(Relaxed);
        let (ring, grown) = self.buffer_in();
        let there = ring.used(head, tail).ok()? as usize;
        let wanted = to.remaining();
        let length = there.min(wanted);
        let from = self.stretch(self.role.peer(), grown, head, length);
        if length == 0
            || from.length() < length
            || length > CHUNK
            || length < (receive.low_water.load(Relaxed) as usize).min(wanted)
            || receive.transfers.rest().is_some()
            || (length < wanted && receive.seen.load(Relaxed) > receive.total() + length as u64)
        {
            return None;
        }
        let mut rest = to.clone();
        rest.copy_in(from).ok()?;
        *to = rest;
        let head = head + length as u64;
        receive.head.store(head, Relaxed);
        self.own().receiving.0.head.store(head, Release);
        Some((length, self.consumed(length as u64, true) | self.try_send_due()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{receive, send, Ends};
    use super::*;
    use crate::session::{Control as Message, OutEvent};

    fn send_at_once(end: &Stream, bytes: &[u8]) -> Option<bool> {
        let one = [libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() }];
        end.send_at_once(&Buffers::new(&one).unwrap())
    }

    fn receive_at_once(end: &Stream, most: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0u8; most];
        let one = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: most }];
        let (n, _) = end.receive_at_once(&mut Buffers::new(&one).unwrap())?;
        bytes.truncate(n);
        Some(bytes)
    }

    /// Ends whose directions this process had last.
    fn used() -> Ends {
        let ends = Ends::new();
        for (one, other) in [(ends.left, ends.right), (ends.right, ends.left)] {
            send(&one, b"first");
            receive(&other, 5);
        }
        ends
    }

    #[test]
    fn both_ways_make_one_stream() {
        let Ends { left, right } = used();
        let (mut seed, mut sent, mut got) = (1u64, Vec::new(), Vec::new());
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        let mut at_once = [0; 2];
        while sent.len() < 1 << 20 {
            let most = if random(8) == 0 { 5000 } else { 300 };
            let length = 1 + random(most);
            let bytes: Vec<u8> = (0..length).map(|i| (sent.len() as u64 + i) as u8).collect();
            if random(4) > 0 && send_at_once(&left, &bytes).is_some() {
                at_once[0] += 1;
                sent.extend(&bytes);
            } else {
                let n = send(&left, &bytes).bytes;
                sent.extend(&bytes[..n]);
            }
            for _ in 0..random(8) {
                let most = 1 + random(700) as usize;
                let received =
                    if !most.is_multiple_of(4) { receive_at_once(&right, most) } else { None };
                match received {
                    Some(bytes) => {
                        at_once[1] += 1;
                        got.extend(bytes);
                    }
                    None => got.extend(receive(&right, most).0),
                }
            }
        }
        while got.len() < sent.len() {
            let (bytes, _) = receive(&right, 4096);
            assert!(!bytes.is_empty(), "{} of {}", got.len(), sent.len());
            got.extend(bytes);
        }
        assert!(got == sent);
        assert!(at_once.iter().all(|&times| times > 100), "{at_once:?}");
    }

    #[test]
    fn what_can_not_be_copied_whole_moves_nothing() {
        let Ends { left, right } = used();
        let mut good = *b"good";
        let bad = [
            libc::iovec { iov_base: good.as_mut_ptr().cast(), iov_len: 4 },
            libc::iovec { iov_base: std::ptr::without_provenance_mut(8), iov_len: 4 },
        ];
        let mut buffers = Buffers::new(&bad).unwrap();
        assert_eq!(left.send_at_once(&buffers), None);
        assert_eq!(send_at_once(&left, b"12345678"), Some(false));
        assert_eq!(right.receive_at_once(&mut buffers), None);
        assert_eq!(buffers.remaining(), 8);
        assert_eq!(receive_at_once(&right, 8), Some(b"12345678".to_vec()));
    }

    #[test]
    fn a_send_is_left_alone_where_more_is_to_be_done() {
        let Ends { left, right } = used();
        assert_eq!(send_at_once(&left, b""), None);
        assert_eq!(send_at_once(&left, &[1; 1521]), None, "it needs two messages");
        assert_eq!(send_at_once(&left, &[1; 1520]), Some(false));
        send(&left, &[2; 3000]);
        assert_eq!(send_at_once(&left, b"behind"), Some(false));
        assert_eq!(receive(&right, 5000).0.len(), 4526);
        assert_eq!(send_at_once(&left, b"now"), None, "that was read: a message again");
        send(&left, b"it looks whether that is read");
        assert_eq!(send_at_once(&left, b"now"), Some(false));
        left.endpoint.due.note(&Message::Rediscover);
        assert_eq!(send_at_once(&left, b"control goes first"), None);
        send(&left, b"with it");
        let held = left.lock_send().unwrap();
        assert_eq!(send_at_once(&left, b"not two at once"), None);
        assert!(left.endpoint.send.lock.is_held(), "it is still the other's");
        drop(held);
        assert_eq!(send_at_once(&left, b"now"), Some(false));
        assert_eq!(receive(&right, 100).0, b"it looks whether that is readnowwith itnow");
        left.endpoint.step_out(OutEvent::Out);
        assert_eq!(send_at_once(&left, b"over TCP"), None);
    }

    #[test]
    fn pieces_of_the_send_buffer_go_at_once() {
        let Ends { left, right } = used();
        send(&left, &[2; 3000]);
        assert_eq!(send_at_once(&left, b"behind"), Some(false));
        assert_eq!(receive_at_once(&right, 1000), Some(vec![2; 1000]));
        assert_eq!(receive_at_once(&right, 2000), Some(vec![2; 2000]));
        right.note_seen(7);
        assert_eq!(receive_at_once(&right, 7), None, "the program knows of more");
        right.forget_seen();
        right.endpoint.receive.low_water.store(7, Relaxed);
        assert_eq!(receive_at_once(&right, 7), None, "too little");
        assert_eq!(receive_at_once(&right, 6), Some(b"behind".to_vec()));
        right.endpoint.receive.low_water.store(1, Relaxed);
        // Up to the end of the buffer, and a little more.
        let size = u64::from(left.segment.geometry().send_buffer);
        while left.endpoint.send.tail.load(Relaxed) + 3000 <= size {
            send(&left, &[3; 2500]);
            assert_eq!(send_at_once(&left, &[4; 500]), Some(false));
            assert_eq!(receive(&right, 3000).0.len(), 3000);
        }
        send(&left, &[5; 3000]);
        assert_eq!(receive_at_once(&right, 3000), None, "in two pieces");
        left.endpoint.clear(flag::ESTABLISHED);
        assert_eq!(send_at_once(&left, b"withdrawn?"), None);
        left.endpoint.set(flag::ESTABLISHED);
        assert_eq!(receive(&right, 3000).0, [5; 3000]);
    }

    #[test]
    fn a_receive_is_left_alone_where_more_is_to_be_done() {
        let Ends { left, right } = used();
        assert_eq!(receive_at_once(&right, 10), None, "nothing is there");
        send(&left, b"message");
        send(&left, b"another");
        assert_eq!(receive_at_once(&right, 6), None, "there is no room for all of it");
        right.endpoint.receive.low_water.store(8, Relaxed);
        assert_eq!(receive_at_once(&right, 10), None, "too little");
        right.endpoint.receive.low_water.store(1, Relaxed);
        let held = right.lock_receive().unwrap();
        assert_eq!(receive_at_once(&right, 10), None, "not two at once");
        assert!(right.endpoint.receive.lock.is_held(), "it is still the other's");
        drop(held);
        assert_eq!(receive_at_once(&right, 10), None, "there is more, to be received together");
        assert_eq!(receive_at_once(&right, 7), Some(b"message".to_vec()));
        assert_eq!(receive(&right, 2).0, b"an");
        assert_eq!(receive_at_once(&right, 10), None, "a part was read");
        assert_eq!(receive(&right, 10).0, b"other");
        send(&left, b"plain");
        send(&left, &[7; 3000]);
        assert_eq!(receive_at_once(&right, 6), None, "there is more in the send buffer");
        assert_eq!(receive_at_once(&right, 5), Some(b"plain".to_vec()));
        assert_eq!(receive(&right, 3000).0, [7; 3000]);
        send(&left, b"seen");
        right.note_seen(5);
        assert_eq!(receive_at_once(&right, 5), None, "the program knows of more");
        right.forget_seen();
        left.endpoint.due.note(&Message::Rediscover);
        left.try_send_due();
        assert_eq!(receive_at_once(&right, 4), None, "a control message is to be obeyed");
        assert_eq!(receive(&right, 4).0, b"seen");
        send(&left, b"the last");
        assert_eq!(receive_at_once(&right, 10), Some(b"the last".to_vec()));
    }
}
