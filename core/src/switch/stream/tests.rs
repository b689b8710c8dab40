//! Two ends of one connection in one process, and what is left when a thread of one dies inside a call.

pub(super) use super::test_ends::{Ends, GEOMETRY};
use super::Broken;
use super::Denied;
use super::Held;
use super::Moved;
use super::Stream;
use super::Take;
use crate::provider::shm::Geometry;
use crate::session::transfer::Call;
use crate::session::{Advertisement, Control, Header, Kind, Mode};
use crate::switch::buffers::Buffers;
use crate::sys::lock_order::HookCall;
use crate::sys::process;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

const SMALL: Call = Call { number: 0, directly: false };

/// Sends what fits.
pub(super) fn send(stream: &Stream, bytes: &[u8]) -> Moved {
    let _call = HookCall::begin();
    let _held = stream.lock_send().unwrap();
    let one = [libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() }];
    stream.send(&mut Buffers::new(&one).unwrap()).unwrap()
}

/// Receives what is there, at most `most` bytes.
pub(super) fn receive(stream: &Stream, most: usize) -> (Vec<u8>, bool) {
    let _call = HookCall::begin();
    let mut bytes = vec![0u8; most];
    let _held = stream.lock_receive().unwrap();
    let one = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: most }];
    let moved = stream.receive(&mut Buffers::new(&one).unwrap(), Take::Consume, SMALL).unwrap();
    bytes.truncate(moved.bytes);
    (bytes, moved.ring)
}

/// Runs `call` in a thread that dies with the lock of `end` that `take` takes.
fn die_with<T: Send + 'static>(
    end: Stream<'static>,
    take: impl for<'a> FnOnce(&'a Stream<'static>) -> Held<'a> + Send + 'static,
    call: impl FnOnce() -> T + Send + 'static,
) {
    let dies = std::thread::spawn(move || {
        let held = take(&end);
        call();
        std::mem::forget(held);
        process::tid()
    });
    let dead = dies.join().unwrap();
    // Its entry may outlast the join for a moment.
    while process::lives(dead) {
        process::yield_now();
    }
}

pub(super) fn die_sending<T: Send + 'static>(
    end: Stream<'static>,
    call: impl FnOnce() -> T + Send + 'static,
) {
    die_with(end, |end| end.lock_send().unwrap(), call);
}

fn die_receiving<T: Send + 'static>(
    end: Stream<'static>,
    call: impl FnOnce() -> T + Send + 'static,
) {
    die_with(end, |end| end.lock_receive().unwrap(), call);
}

/// Publishes a message of one byte and says no more of it.
fn publish(end: Stream) -> Header {
    let header = end.next_message(Kind::Data, 1).unwrap();
    end.slot_out(header.sequence).publish(header.encode());
    header
}

#[test]
fn d9_a_ring_that_a_dead_sender_owes_is_rung_by_the_next() {
    let Ends { left, right } = Ends::new();
    let _asleep = right.own().counters.0.read.raise();
    assert!(send(&left, b"last words").ring);
    // It dies before it rings. Whoever looks finds that, and whoever sends is told to.
    assert!(left.owes_ring());
    assert!(send(&left, b"another's").ring);
    left.ring_by(|| ());
    assert!(!left.owes_ring() && !send(&left, b"more").ring);
}

#[test]
fn d9_a_ring_that_a_dead_receiver_owes_is_rung_by_the_next() {
    let Ends { left, right } = Ends::new();
    while send(&left, &[7; 4096]).bytes == 4096 {}
    let _asleep = left.own().counters.0.write.raise();
    while !receive(&right, 8192).1 {}
    assert!(right.owes_ring(), "until it rings");
    right.ring_by(|| ());
    assert!(!right.owes_ring());
}

#[test]
fn d9_what_a_thread_published_and_died_with_the_lock_is_signalled_by_who_moves_nothing() {
    let Ends { left, right } = Ends::new();
    let _asleep = right.own().counters.0.read.raise();
    die_sending(left, move || publish(left));
    assert!(!left.owes_ring());
    left.succeed_the_dead();
    assert!(left.owes_ring());
    assert_eq!(left.endpoint.session.last_sent(), 2, "and counts as sent");
}

#[test]
fn d9_a_message_counts_once_wherever_its_sender_died() {
    let Ends { left, .. } = Ends::new();
    let total = || left.endpoint.send.total();
    die_sending(left, move || publish(left));
    drop(left.lock_send());
    assert_eq!(total(), 1, "published");
    die_sending(left, move || left.endpoint.session.sent(&publish(left)));
    drop(left.lock_send());
    assert_eq!(total(), 2, "and recorded");
    die_sending(left, move || left.sent(&publish(left), 1));
    drop(left.lock_send());
    assert_eq!(total(), 3, "and counted");
}

#[test]
fn d9_bytes_in_the_send_buffer_are_published_for_a_dead_sender() {
    let Ends { left, right } = Ends::new();
    let large = [1; 8000];
    assert_eq!(send(&left, &large).bytes, 8000);
    let tail = &left.endpoint.send.tail;
    die_sending(left, move || {
        left.sent_at(tail.load(Relaxed), 100).write(&[2; 100]);
        tail.store(tail.load(Relaxed) + 100, Relaxed);
    });
    drop(left.lock_send());
    let (bytes, _) = receive(&right, 10_000);
    assert_eq!((bytes.len(), bytes[8099]), (8100, 2));
    assert_eq!(left.endpoint.send.total(), right.endpoint.receive.total());
    assert!(left.peer_consumed_all());
}

#[test]
fn d9_a_message_is_read_once_wherever_its_reader_died() {
    let Ends { left, right } = Ends::new();
    for _ in 0..2 {
        send(&left, b"whole");
    }
    assert_eq!(receive(&right, 3).0, b"who");
    let half = &right.endpoint.receive;
    // It took the rest, and had counted it alone.
    let next = half.next_read();
    die_receiving(right, move || half.in_messages.count(5, next.wrapping_add(1)));
    drop(right.lock_receive());
    assert_eq!(right.own().receiving.0.total.load(Relaxed), 5, "told to the sender");
    assert_eq!(receive(&right, 100).0, b"whole");
    assert_eq!(half.total(), 10);
    assert_eq!(right.endpoint.session.posted(), GEOMETRY.buffers as u16);
}

#[test]
fn d9_a_control_message_is_obeyed_for_a_dead_receiver() {
    let Ends { left, right } = Ends::new();
    left.endpoint.due.note(&Control::EnterMode(Mode::SmallReceive, false));
    {
        let _held = left.lock_send().unwrap();
        left.send_due_now();
    }
    die_receiving(right, move || {
        let expected = right.endpoint.session.expected();
        let words = right.slot_in(expected).header(expected);
        let header = Header::decode(words, right.payload_in()).unwrap();
        right.begin_control(&header).unwrap();
    });
    assert_eq!(right.endpoint.receive.transfers.mode(), Mode::Discovery);
    drop(right.lock_receive());
    assert_eq!(right.endpoint.receive.transfers.mode(), Mode::SmallReceive);
    assert_eq!(right.endpoint.session.posted(), GEOMETRY.buffers as u16, "and posted again");
    assert_eq!(right.peek_readable(), Some(false), "nothing is left to read");
}

/// Asks for larger messages until the answer is there.
fn ask_for_larger(left: &Stream, right: &Stream) {
    while !left.endpoint.resize.has_answer() {
        send(left, &[3; 8000]);
        while !receive(right, 8000).0.is_empty() {}
        let _held = left.lock_receive().unwrap();
        left.absorb().unwrap();
    }
}

#[test]
fn d9_both_ends_agree_on_the_size_wherever_the_sender_died() {
    let large = GEOMETRY.largest_message - 16;
    for said in [false, true] {
        let Ends { left, right } = Ends::new();
        ask_for_larger(&left, &right);
        let last = left.endpoint.session.last_sent().wrapping_add(1);
        die_sending(left, move || {
            left.endpoint.resize.take_answer();
            left.endpoint.send.resized_by.store(last, Relaxed);
            left.endpoint.send.resizes.store(1, Relaxed);
            if said {
                left.announce_size(last).unwrap();
            }
        });
        drop(left.lock_send());
        assert_eq!(left.payload_out() == large, said);
        for length in [100, large as usize, 1, 4000] {
            assert_eq!(send(&left, &vec![9; length]).bytes, length);
            assert_eq!(receive(&right, 20_000).0, vec![9; length]);
        }
        assert_eq!(left.endpoint.send.total(), right.endpoint.receive.total());
    }
}

#[test]
fn d9_what_a_dead_sender_had_taken_to_send_is_due_again() {
    let Ends { left, right } = Ends::new();
    let a = Advertisement { key: 1, length: 10_000, address: 0x1000, received: 0, directly: true };
    for sent in [false, true] {
        left.endpoint
            .due
            .note(&Control::Advertisement(Advertisement { key: 1 + u32::from(sent), ..a }));
        die_sending(left, move || {
            left.take_advertisement().unwrap();
            if sent {
                publish(left);
            }
        });
        drop(left.lock_send());
        assert_eq!(left.endpoint.due.any(), !sent, "unless it had gone");
        send(&left, b"?");
    }
    assert_eq!(receive(&right, 100).0.len(), 3);
}

#[test]
fn d9_a_request_that_a_dead_sender_had_decided_on_goes_out() {
    let Ends { left, right } = Ends::new();
    die_sending(
        left,
        move || {
            while left.endpoint.resize.fragmented(8000, 1520, 16_368).is_none() {}
        },
    );
    assert!(left.endpoint.resize.is_asking() && !left.endpoint.due.any());
    ask_for_larger(&left, &right);
}

#[test]
fn who_may_not_wait_for_the_peer_gives_the_lock_up_although_it_waits_already() {
    let Ends { left, .. } = Ends::new();
    let held = left.lock_send().unwrap();
    let waits = std::thread::spawn(move || {
        let mut asked = 0;
        let denied = left.lock_send_while(|_| {
            asked += 1;
            if left.is_kept_from_sending() {
                Err("would block")
            } else {
                Ok(())
            }
        });
        (denied.err(), asked)
    });
    while !left.endpoint.send.lock.is_waited_for() {
        std::thread::yield_now();
    }
    left.endpoint.send.awaits_peer.store(1, SeqCst);
    left.endpoint.send.lock.nudge();
    let (denied, asked) = waits.join().unwrap();
    assert_eq!(denied, Some(Denied::GaveUp("would block")));
    assert!(asked > 1, "not at first");
    assert_eq!(left.lock_send().err(), Some(Denied::Reentered));
    left.endpoint.send.awaits_peer.store(0, SeqCst);
    drop(held);
    assert!(left.lock_send().is_ok());
}

/// Receives as [`receive`] does, where that may fail.
fn try_receive(stream: &Stream, most: usize) -> Result<Moved, Broken> {
    let mut bytes = vec![0u8; most];
    let _held = stream.lock_receive().unwrap();
    let one = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: most }];
    stream.receive(&mut Buffers::new(&one).unwrap(), Take::Consume, SMALL)
}

#[test]
fn a16_a_message_without_credit_does_not_change_one_that_is_half_read() {
    let Ends { left, right } = Ends::of(Geometry { buffers: 64, ..GEOMETRY });
    send(&left, &[1; 200]);
    let half_read = left.endpoint.session.last_sent();
    assert_eq!(receive(&right, 100).0.len(), 100);
    let mut header = publish(left);
    while header.sequence != half_read.wrapping_add(64) {
        header.sequence = header.sequence.wrapping_add(1);
        left.segment.slot(left.role, header.sequence, false).publish(header.encode());
    }
    // Whoever looks first, and whether it tells or not: the connection is over for all.
    {
        let _held = right.lock_receive().unwrap();
        assert!(right.available().is_err());
    }
    assert!(try_receive(&right, 4 << 20).is_err());
}

#[test]
fn a_broken_control_message_is_not_forgotten_by_who_found_it() {
    let Ends { left, right } = Ends::new();
    // An answer to a question that nobody asked: the body makes no sense.
    {
        let _held = left.lock_send().unwrap();
        left.send_control(&Control::Resized).unwrap();
    }
    {
        let _held = right.lock_receive().unwrap();
        assert!(right.available().is_err());
    }
    send(&left, b"what follows");
    assert!(try_receive(&right, 100).is_err());
}

/// The acceptor's request stands, and the connector asks again.
#[test]
fn a9_both_ends_ask_at_once_and_both_grow_in_the_end() {
    let Ends { left, right } = Ends::new();
    let has_grown = |end: &Stream| end.endpoint.send.message_size.load(Relaxed) != 0;
    let exchange = || {
        for _ in 0..4 {
            for (one, other) in [(left, right), (right, left)] {
                while !receive(&other, 1 << 16).0.is_empty() {}
                send(&one, b".");
            }
        }
    };
    // One more, with which the request goes.
    for _ in 0..65 {
        for end in [left, right] {
            send(&end, &[1; 4000]);
        }
    }
    assert!(left.endpoint.resize.is_asking() && right.endpoint.resize.is_asking());
    exchange();
    assert!(has_grown(&right) && !has_grown(&left));
    assert!(!left.endpoint.resize.is_asking() && !right.endpoint.resize.is_asking());
    for _ in 0..65 {
        send(&left, &[2; 4000]);
        while !receive(&right, 1 << 16).0.is_empty() {}
    }
    exchange();
    assert!(has_grown(&left) && has_grown(&right));
    while !receive(&right, 1 << 16).0.is_empty() {}
    let tail = left.endpoint.send.tail.load(Relaxed);
    send(&left, &[3; 4000]);
    assert_eq!(left.endpoint.send.tail.load(Relaxed), tail, "it is one message");
    assert_eq!(receive(&right, 5000).0, [3; 4000]);
}
