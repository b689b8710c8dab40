//! The way back to TCP of two ends in one process, as far as it is the links'.

use super::{adapter, ends, pattern, relative, End};
use crate::fabric::frame::{encode, FrameKind, FrameState};
use crate::fabric::link::{LinkPort, Tell};
use crate::provider::interface::Error;
use crate::provider::shm::{CLOSED, FAILED, RETURNED};
use crate::switch::test_ends::look_unanswered;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

impl End {
    /// Reads nothing more.
    fn stop_reading(&self) {
        let stream = self.stream();
        let held = stream.lock_receive().unwrap();
        stream.stop_reading();
        drop(held);
        self.link.ask_again();
    }

    /// What goes over TCP now.
    fn sent_again(&self) -> Vec<u8> {
        let (stream, mut all) = (self.stream(), Vec::new());
        let _held = stream.lock_send().unwrap();
        stream
            .each_unread(stream.recalled(), |bytes| {
                all.extend_from_slice(bytes);
                true
            })
            .unwrap();
        all
    }

    /// Is about to send again by itself what the peer has not read. From which byte on that is.
    fn pull(&self) -> u64 {
        let stream = self.stream();
        let _held = stream.lock_send().unwrap();
        stream.note_pulled().unwrap();
        assert!(stream.own().sending.0.direction.pull());
        stream.own().leaving.0.resent_from.load(SeqCst)
    }

    fn leave(&self) {
        self.stream().own().sending.0.direction.leave();
        self.link.tell_return();
    }

    fn is_told(&self) -> bool {
        self.finished() & RETURNED != 0
    }
}

#[test]
fn what_was_not_read_is_sent_again_over_tcp() {
    let (a, b) = ends("192.0.2.141", "192.0.2.142");
    assert_eq!(a.send(&pattern(0, 50_000)), 50_000);
    let read = b.receive(1000).len() + b.receive(2001).len();
    b.stop_reading();
    assert_eq!(b.link.answer(), None, "nobody knows yet");
    // On its way meanwhile: it comes again as well.
    assert_eq!(a.send(&pattern(50_000, 100)), 100);
    assert!(a.is_told());
    assert_eq!(a.send(&pattern(50_100, 100)), 100);
    b.link.poll();
    assert_eq!(b.link.answer(), Some(true));
    assert_eq!(a.sent_again(), pattern(read, 50_200 - read));
    // Asked again, as by a relative of one that died: the answer stays.
    b.link.ask_again();
    a.link.poll();
    b.link.poll();
    assert_eq!(b.link.answer(), Some(true));
}

#[test]
fn who_has_no_answer_finds_that_nobody_is_there() {
    let (a, b) = ends("192.0.2.179", "192.0.2.180");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let theirs = listener.accept().unwrap().0;
    a.stop_reading();
    look_unanswered(ours.as_raw_fd(), &a.stream());
    assert!(!a.link.has_failed(), "it is on its way");
    b.link.end();
    drop(theirs);
    assert_eq!(ours.peek(&mut [0]).unwrap(), 0);
    look_unanswered(ours.as_raw_fd(), &a.stream());
    assert_eq!(a.link.answer(), None);
    assert_eq!(a.finished() & FAILED, FAILED);
}

#[test]
fn of_a_sender_that_had_left_all_is_to_be_read() {
    let (a, b) = ends("192.0.2.143", "192.0.2.144");
    assert_eq!(a.send(&pattern(0, 30_000)), 30_000);
    let read = b.receive(5000).len();
    a.leave();
    b.stop_reading();
    b.link.poll();
    assert_eq!(b.link.answer(), Some(false));
    assert!(b.is_told());
    a.link.poll();
    assert!(!a.is_told(), "nothing is sent again");
    let mut rest = Vec::new();
    while rest.len() < 30_000 - read {
        rest.extend(b.receive(7000));
    }
    assert_eq!(rest, pattern(read, 30_000 - read));
}

#[test]
fn a_sender_that_sends_again_by_itself_says_from_where() {
    for asks in [false, true] {
        let (a, b) = ends("192.0.2.181", "192.0.2.182");
        a.stream().own().sending.0.direction.begin_turned();
        assert_eq!(a.send(&pattern(0, 30_000)), 30_000);
        let read = b.receive(5000).len() as u64;
        let from = a.pull();
        assert!(from <= read, "the sender knows later what was read");
        if asks {
            b.stop_reading();
            a.link.poll();
            b.link.poll();
            assert_eq!(b.link.answer(), Some(false), "it comes without that");
        }
        // As the helper does for one that died.
        a.link.tick(Tell::Certain);
        b.link.poll();
        let word = b.stream().peer().sending.0.direction.state();
        assert!(word.pulled && !word.left, "asks: {asks}");
        a.leave();
        b.link.poll();
        let stream = b.stream();
        let word = stream.peer().sending.0.direction.state();
        assert!(word.left && word.pulled && !word.recalled, "asks: {asks}");
        assert_eq!(stream.peer().leaving.0.resent_from.load(SeqCst), from);
    }
}

#[test]
fn a_sender_that_left_because_it_was_asked_says_so() {
    let (a, b) = ends("192.0.2.161", "192.0.2.162");
    assert_eq!(a.send(&pattern(0, 5000)), 5000);
    b.receive(10);
    b.stop_reading();
    // Its answer was lost with the queue pair.
    let mut left = encode(FrameKind::Left, 4, &FrameState::default()).to_vec();
    left.extend_from_slice(&[1, 0, 0, 0]);
    b.link.arrived(&left);
    assert_eq!(b.link.answer(), Some(true));
    let word = b.stream().peer().sending.0.direction.state();
    assert!(word.left && word.recalled);
}

#[test]
fn of_a_sender_that_had_closed_all_is_to_be_read() {
    let (a, b) = ends("192.0.2.145", "192.0.2.146");
    assert_eq!(a.send(b"all of it"), 9);
    assert!(!a.stream().own().sending.0.direction.close().recalled);
    b.stop_reading();
    a.link.poll();
    b.link.poll();
    assert_eq!(b.link.answer(), Some(false));
    assert_eq!(b.receive(100), b"all of it");
}

#[test]
fn the_end_of_a_link_that_carries_nothing_more_is_no_failure() {
    let (a, b) = ends("192.0.2.147", "192.0.2.148");
    assert_eq!(a.send(b"read"), 4);
    assert_eq!(b.receive(10), b"read");
    b.stop_reading();
    a.link.poll();
    b.link.poll();
    b.leave();
    assert!(!a.link.has_returned(), "it does not know");
    a.link.poll();
    assert!(a.link.has_returned());
    a.leave();
    b.link.poll();
    assert!(b.link.has_returned());
    for end in [&a, &b] {
        end.link.fail(Error::ConnectionReset);
        assert_eq!(end.finished() & FAILED, 0);
        assert!(!end.link.look_for_break() && end.link.is_drained());
    }
}

/// Its owner may have ended the link by then.
#[test]
fn once_both_directions_are_tcps_no_relative_waits_for_what_the_link_tells() {
    let (a, b) = ends("192.0.2.165", "192.0.2.166");
    let one = relative(&a);
    let next = a.stream().endpoint.session.last_sent().wrapping_add(1);
    a.leave();
    b.link.poll();
    b.leave();
    while !a.link.flush(next) || !a.link.has_returned() {}
    one.stream().own().sending.0.finished.fetch_or(CLOSED, SeqCst);
    assert!(one.link.flush(next));
}

#[test]
fn what_is_behind_the_last_word_may_be_lost() {
    for [a, b] in [["192.0.2.163", "192.0.2.164"], ["127.0.0.163", "127.0.0.164"]] {
        let (a, b) = ends(a, b);
        a.stop_reading();
        b.stop_reading();
        a.leave();
        let next = b.stream().endpoint.session.last_sent().wrapping_add(1);
        // Both directions are TCP's.
        while !b.link.flush(next) || !b.link.has_returned() {
            a.link.poll();
        }
        b.link.end();
        // Whatever it sends now comes to nobody.
        a.link.tell_return();
        a.link.poll();
        assert!(a.link.has_returned(), "the peer knows");
    }
}

#[test]
fn frames_of_the_way_back_that_make_no_sense_end_the_connection() {
    let kinds = [FrameKind::Left, FrameKind::Ask, FrameKind::Answer, FrameKind::Pulled];
    for (which, kind) in kinds.into_iter().enumerate() {
        let (a, _b) =
            ends(&format!("192.0.2.{}", 149 + 2 * which), &format!("192.0.2.{}", 150 + 2 * which));
        let mut frame = encode(kind, 3, &FrameState::default()).to_vec();
        frame.extend_from_slice(b"abc");
        a.link.arrived(&frame);
        assert!(a.link.has_failed(), "{kind:?}");
    }
}

#[test]
fn completions_are_taken_by_one_thread_at_a_time() {
    let (adapter, ip) = adapter("192.0.2.160");
    let port = LinkPort::open(adapter, ip).unwrap();
    let is_in = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    port.poll();
                    port.while_nobody_polls(|| {
                        assert!(!is_in.swap(true, SeqCst), "two at once");
                        is_in.store(false, SeqCst);
                    });
                }
            });
        }
    });
}
