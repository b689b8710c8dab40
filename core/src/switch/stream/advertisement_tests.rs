//! Two ends with RDMA: in which messages advertisements go, when they are out of date, and whose memory they name.

use super::tests::receive;
use super::tests::send;
use super::tests::Ends;
use super::Posted;
use super::Stream;
use crate::provider::shm::{Refusal, Right};
use crate::session::transfer::{Abilities, Plan};
use crate::session::{Control, Header, Kind, Mode, LARGEST_BODY};
use crate::switch::buffers::Buffers;
use crate::sys::process;
use std::sync::atomic::Ordering::Relaxed;

const BOTH: Abilities = Abilities { threshold: 4096, read: true, write: true };
const LARGE: usize = 64 << 10;

/// Ends whose left one has told that it sends to large receives: the right one advertises them.
fn large_receive() -> Ends {
    let ends = Ends::with(BOTH);
    let Ends { left, right } = ends;
    left.endpoint.due.note(&Control::EnterMode(Mode::LargeReceive, false));
    tell(&left);
    takes_in(&right);
    assert_eq!(right.endpoint.receive.transfers.mode(), Mode::LargeReceive);
    ends
}

fn tell(stream: &Stream) {
    let _held = stream.lock_send().unwrap();
    stream.send_due_now();
}

fn takes_in(stream: &Stream) {
    let _held = stream.lock_receive().unwrap();
    stream.absorb().unwrap();
}

/// A receive of `room` begins to wait. What it has to tell is due.
fn post<'a>(stream: &'a Stream, room: &mut [u8]) -> Posted<'a> {
    let one = [libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() }];
    let call = stream.call(room.len(), true);
    let _held = stream.lock_receive().unwrap();
    stream.post(&Buffers::new(&one).unwrap(), call, true).expect("it is advertised")
}

/// How a large send that may wait would go.
fn plan(stream: &Stream) -> Plan {
    takes_in(stream);
    let position = stream.endpoint.send.total();
    stream.endpoint.send.transfers.plan(LARGE as u64, position, true, BOTH)
}

fn last_sent(stream: &Stream) -> u32 {
    stream.endpoint.session.last_sent()
}

fn header(stream: &Stream, sequence: u32) -> Header {
    let slot = stream.slot_out(sequence);
    assert_eq!(slot.sequence(), sequence, "it was published");
    Header::decode(slot.header(sequence), stream.payload_out()).unwrap()
}

/// The large send is written to what was posted at `room`.
fn assert_writes_to(plan: Plan, room: *const u8) {
    let Plan::Write(advertisement) = plan else { panic!("it is not written but {plan:?}") };
    let place = (advertisement.address, advertisement.length as usize);
    assert_eq!(place, (room as u64, LARGE));
}

/// Else its sender, which announces nothing in that mode, waits for two scans in vain and leaves it again.
#[test]
fn a11_a_receive_that_sleeps_learns_of_a_mode_in_which_it_is_to_advertise() {
    for mode in [Mode::LargeReceive, Mode::SmallThenLarge] {
        let Ends { left, right } = Ends::with(BOTH);
        let _asleep = right.own().counters.0.read.raise();
        left.endpoint.due.note(&Control::EnterMode(mode, false));
        let _held = left.lock_send().unwrap();
        assert_eq!(left.send_due_now(), mode == Mode::LargeReceive, "{mode:?}");
    }
}

#[test]
fn a13_of_a_receive_send_application_the_advertisement_rides_on_the_data() {
    let Ends { left, right } = large_receive();
    let before = last_sent(&right);
    let mut room = vec![0; LARGE];
    let at = room.as_ptr();
    let posted = post(&right, &mut room);
    assert_eq!(send(&right, &[7; 64]).bytes, 64);
    assert_eq!(last_sent(&right), before + 1, "one message for both");
    let header = header(&right, before + 1);
    assert_eq!((header.kind, header.data_size()), (Kind::Data, 64));
    assert!(header.body_size() > 0 && !right.endpoint.due.any());
    assert_eq!(receive(&left, 100).0, [7; 64]);
    assert_writes_to(plan(&left), at);
    assert_eq!(posted.take_back(), 0);
}

#[test]
fn a13_of_a_send_receive_application_the_advertisement_goes_alone() {
    let Ends { left, right } = large_receive();
    let before = last_sent(&right);
    assert_eq!(send(&right, &[7; 64]).bytes, 64);
    let mut room = vec![0; LARGE];
    let at = room.as_ptr();
    let posted = post(&right, &mut room);
    // As a receive does before it sleeps: nobody knows whether anything will be sent.
    right.try_send_due();
    assert_eq!(last_sent(&right), before + 2);
    let [first, second] = [1, 2].map(|n| header(&right, before + n));
    assert_eq!((first.kind, first.data_size(), first.body_size()), (Kind::Data, 64, 0));
    assert_eq!((second.kind, second.data_size()), (Kind::Advertisement, 0));
    assert_eq!(receive(&left, 100).0, [7; 64]);
    assert_writes_to(plan(&left), at);
    assert_eq!(posted.take_back(), 0);
}

#[test]
fn a13_an_advertisement_goes_first_where_the_data_leaves_it_no_room() {
    for (beyond, rides) in [(0, true), (1, false)] {
        let Ends { left, right } = large_receive();
        let before = last_sent(&right);
        let mut room = vec![0; LARGE];
        let at = room.as_ptr();
        let posted = post(&right, &mut room);
        let data = vec![7; right.payload_out() as usize - LARGEST_BODY + beyond];
        assert_eq!(send(&right, &data).bytes, data.len());
        let sent: Vec<_> = (before + 1..=last_sent(&right)).map(|n| header(&right, n)).collect();
        let kinds: Vec<_> = sent.iter().map(|header| header.kind).collect();
        if rides {
            assert_eq!(kinds, [Kind::Data]);
        } else {
            assert_eq!(kinds, [Kind::Advertisement, Kind::Data]);
        }
        assert_eq!(receive(&left, LARGE).0, data);
        assert_writes_to(plan(&left), at);
        assert_eq!(posted.take_back(), 0);
    }
}

#[test]
fn a13_an_advertisement_whose_data_finds_no_credit_goes_later() {
    let Ends { left, right } = large_receive();
    while right.endpoint.session.credit() > 1 {
        send(&right, b".");
    }
    let before = last_sent(&right);
    let mut room = vec![0; LARGE];
    let at = room.as_ptr();
    let posted = post(&right, &mut room);
    assert_eq!(send(&right, &[7; 64]).bytes, 64, "it goes to the send buffer");
    assert_eq!(last_sent(&right), before);
    while !receive(&left, 100).0.is_empty() {}
    takes_in(&right);
    right.try_send_due();
    assert_eq!(header(&right, before + 1).kind, Kind::Advertisement);
    assert_writes_to(plan(&left), at);
    assert_eq!(posted.take_back(), 0);
}

/// The departure from A14: one receive takes what several messages brought, which makes its advertisement out of date.
#[test]
fn a14_several_messages_may_be_taken_into_an_advertised_buffer() {
    let Ends { left, right } = large_receive();
    let mut room = vec![0; LARGE];
    let posted = post(&right, &mut room);
    right.try_send_due();
    for byte in 1..=3 {
        assert_eq!(send(&left, &[byte; 100]).bytes, 100);
    }
    // The receive wakes, takes its buffer back, and takes what there is.
    assert_eq!(posted.take_back(), 0);
    let (taken, _) = receive(&right, LARGE);
    assert_eq!(taken, [[1; 100], [2; 100], [3; 100]].concat());
    assert!(!matches!(plan(&left), Plan::Write(_)), "{:?}", plan(&left));
    assert_eq!(left.endpoint.send.transfers.advertisements(), (0, 1), "dropped, once");
    // What is advertised after all of them is good.
    let at = room.as_ptr();
    let posted = post(&right, &mut room);
    right.try_send_due();
    assert_writes_to(plan(&left), at);
    assert_eq!(posted.take_back(), 0);
}

/// So the sender must know how many of them its receiver had taken, whatever their number.
#[test]
fn a14_what_is_advertised_between_two_messages_is_out_of_date_after_the_second() {
    const MESSAGES: usize = 3;
    for taken in 0..=MESSAGES {
        let Ends { left, right } = large_receive();
        for _ in 0..MESSAGES {
            send(&left, &[5; 100]);
        }
        // A receive of no more has no need of what else is there.
        assert_eq!(receive(&right, taken * 100).0.len(), taken * 100);
        let mut room = vec![0; LARGE];
        let posted = post(&right, &mut room);
        right.try_send_due();
        let is_good = matches!(plan(&left), Plan::Write(_));
        assert_eq!(is_good, taken == MESSAGES, "after {taken} messages");
        let dropped = u32::from(taken < MESSAGES);
        assert_eq!(left.endpoint.send.transfers.advertisements(), (0, dropped));
        assert_eq!(posted.take_back(), 0);
    }
}

/// What was advertised and taken back is found out at the write.
#[test]
fn a14_an_advertisement_that_was_taken_back_is_dropped() {
    let Ends { left, right } = large_receive();
    let mut room = vec![0; LARGE];
    let posted = post(&right, &mut room);
    right.try_send_due();
    let Plan::Write(a) = plan(&left) else { panic!("it is not advertised") };
    assert_eq!(posted.take_back(), 0);
    let bytes = [9; 100];
    let one = [libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() }];
    let held = left.lock_send().unwrap();
    let written = left.write_to(a.key, a.length, a.length, &Buffers::new(&one).unwrap());
    drop(held);
    assert_eq!(written, Ok(None));
    assert_eq!(left.endpoint.send.transfers.advertisements(), (0, 1));
    assert!(room.iter().all(|byte| *byte == 0));
    assert!(!matches!(plan(&left), Plan::Write(_)));
}

/// The peer still uses the advertisement: to end its access without asking breaks the queue pair between hosts.
#[test]
fn a12_a_message_without_data_that_another_thread_takes_in_leaves_an_advertisement_good() {
    let Ends { left, right } = large_receive();
    let mut room = vec![0; LARGE];
    let posted = post(&right, &mut room);
    left.endpoint.due.note(&Control::EnterMode(Mode::LargeReceive, false));
    tell(&left);
    let sequence = right.endpoint.session.expected();
    let slot = right.slot_in(sequence);
    let header = Header::decode(slot.header(sequence), right.payload_in()).unwrap();
    right.keep_sizes(&header);
    right.begin_control(&header).unwrap();
    assert!(!right.is_advertisement_over());
    assert_eq!(send(&left, &[1; 64]).bytes, 64);
    takes_in(&right);
    assert!(right.is_advertisement_over());
    assert_eq!(posted.take_back(), 0);
}

#[test]
fn m2_nothing_for_the_peer_of_another_connection_on_shm() {
    let [ours, others] = [(); 2].map(|()| Ends::with(BOTH));
    let memory = [3u8; 100];
    let lend = |end: &Stream, memory: &[u8], right| {
        let registration = match right {
            Right::Read => &end.own().readable.0,
            Right::Write => &end.own().writable.0,
        };
        registration.register(7, memory.as_ptr() as u64, 100, right);
    };
    let read = |end: &Stream| {
        let (lent, mut to) = (&end.peer().readable.0, [0u8; 100]);
        // SAFETY: these bytes are ours.
        unsafe { lent.read(process::pid(), (7, 100, 0), &raw mut to, || true, true) }
            .map(|n| to[..n].to_vec())
    };
    let write = |end: &Stream| {
        let (lent, from) = (&end.peer().writable.0, [9u8; 100]);
        // SAFETY: these bytes are ours.
        unsafe { lent.write(process::pid(), 7, 100, from.as_ptr(), 100) }
    };
    lend(&ours.left, &memory, Right::Read);
    lend(&ours.left, &memory, Right::Write);
    assert_eq!(read(&others.right), Err(Refusal::NotRegistered));
    assert_eq!(write(&others.right), Err(Refusal::NotRegistered));
    // Nor is it found under a number that both connections gave out.
    let elsewhere = [4u8; 100];
    lend(&others.left, &elsewhere, Right::Read);
    assert_eq!(read(&others.right), Ok(elsewhere.to_vec()));
    assert_eq!(read(&ours.right), Ok(memory.to_vec()));
    assert_eq!(memory, [3; 100]);
}

#[test]
fn m5_a_posted_buffer_is_lent_no_longer_than_its_receive_waits() {
    let Ends { left, right } = large_receive();
    let lent = &right.own().writable.0;
    let mut room = vec![0; LARGE];
    let posted = post(&right, &mut room);
    assert!(lent.is_lent());
    drop(posted);
    assert!(!lent.is_lent() && !right.endpoint.due.any(), "nor advertised any more");
    let posted = post(&right, &mut room);
    right.try_send_due();
    let Plan::Write(a) = plan(&left) else { panic!("it is not advertised") };
    let bytes = [9; 100];
    let one = [libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() }];
    let held = left.lock_send().unwrap();
    let written = left.write_to(a.key, a.length, a.length, &Buffers::new(&one).unwrap());
    drop(held);
    assert_eq!(written.unwrap().unwrap().bytes, 100);
    assert!(!lent.is_lent(), "one write uses it up");
    assert_eq!(posted.take_back(), 100);
    assert_eq!((&room[..100], lent.is_lent()), (&bytes[..], false));
}

/// A message is its header and what it carries; little data takes no other way.
#[test]
fn s2_little_data_travels_in_the_message_itself() {
    let Ends { left, right } = Ends::with(BOTH);
    let (before, tail) = (last_sent(&left), left.endpoint.send.tail.load(Relaxed));
    assert_eq!(send(&left, b"little").bytes, 6);
    assert_eq!(last_sent(&left), before + 1);
    let header = header(&left, before + 1);
    assert_eq!((header.kind, header.length, header.body_size()), (Kind::Data, 6, 0));
    let mut payload = [0; 6];
    left.slot_out(before + 1).payload().read(&mut payload);
    assert_eq!(&payload, b"little");
    assert_eq!(left.endpoint.send.tail.load(Relaxed), tail, "the send buffer is not used");
    let lent = [&left.own().readable.0, &right.own().writable.0];
    assert!(lent.iter().all(|registration| !registration.is_lent()));
    assert_eq!(receive(&right, 100).0, b"little");
}
