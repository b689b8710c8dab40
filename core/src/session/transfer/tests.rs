//! One test per requirement: both halves of a direction, their control messages passed by hand
//! through their encoding.

mod ends;

use super::*;
use crate::session::control::{Advertisement, Available, Complete, Control};
use crate::session::error::ProtocolError;
use crate::session::header::{Header, Kind};
use crate::session::mode::{Behaviour, Mode};
use ends::Ends;
use std::cell::Cell;

const BOTH: Abilities = Abilities { threshold: 2048, read: true, write: true };
const READ_ONLY: Abilities = Abilities { write: false, ..BOTH };
const WRITE_ONLY: Abilities = Abilities { read: false, ..BOTH };
const LARGE: u64 = 64 << 10;
const FIRST: u32 = 1024;
const REST: u32 = LARGE as u32 - FIRST;

#[test]
fn a2_the_threshold_is_the_providers() {
    for abilities in [BOTH, READ_ONLY, WRITE_ONLY] {
        let ends = Ends::new(abilities);
        assert_eq!(ends.plan(2047), Plan::Messages);
        assert_ne!(ends.plan(2048), Plan::Messages);
    }
    assert_eq!(Ends::new(Abilities::NONE).plan(LARGE), Plan::Messages);
    let neither = Abilities { read: false, write: false, ..BOTH };
    assert_eq!(Ends::new(neither).plan(LARGE), Plan::Messages);
}

#[test]
fn a3_discovery_sends_the_first_part_with_the_amount_and_waits() {
    for abilities in [BOTH, WRITE_ONLY] {
        let ends = Ends::new(abilities);
        let readable = abilities.read;
        assert_eq!(ends.plan(LARGE), Plan::Announce { readable, first_part: true });
        let key = ends.announce();
        assert_eq!(ends.progress(), Progress::Waiting);
        let rest = ends.receiving.rest().expect("it was told");
        assert_eq!((rest.key, rest.length, rest.taken, rest.after), (key, REST, 0, 2));
        assert_eq!(rest.address.is_some(), readable);
    }
}

#[test]
fn a3_a_send_that_does_not_wait_never_lends_its_memory() {
    let ends = Ends::new(BOTH);
    assert_eq!(ends.sending.plan(LARGE, 0, false, BOTH), Plan::Messages);
    let large = Ends::in_mode(WRITE_ONLY, Mode::LargeReceive);
    assert_eq!(large.sending.plan(LARGE, 0, false, WRITE_ONLY), Plan::Messages);
    let advertised = large.post(large.receiving.call(true), 4096);
    large.pass(Control::Advertisement(advertised));
    assert_eq!(large.sending.plan(LARGE, 0, false, WRITE_ONLY), Plan::Write(advertised));
}

#[test]
fn a4_after_two_scans_without_a_posted_receive_the_rest_goes_in_messages() {
    for abilities in [BOTH, WRITE_ONLY] {
        let ends = Ends::new(abilities);
        let key = ends.announce();
        assert!(!ends.sending.scan(0));
        assert!(ends.sending.scan(0));
        assert_eq!(ends.sending.end(End::Scanned), None);
        ends.pass(Control::RestInMessages(key, 0));
        assert_eq!(ends.receiving.rest(), None);
        assert_eq!(ends.sending.observer().seen(), [0, 0, 1]);
        assert_eq!(ends.sending.scans(), 2);
    }
}

#[test]
fn a4_progress_between_two_scans_begins_the_count_again() {
    let ends = Ends::new(BOTH);
    ends.announce();
    assert!(!ends.sending.scan(0));
    assert!(!ends.sending.scan(100));
    assert!(!ends.sending.scan(100));
    assert!(!ends.sending.scan(200));
    assert!(!ends.sending.scan(200));
    assert!(ends.sending.scan(200));
    ends.sending.end(End::Scanned);
    ends.announce();
    assert!(!ends.sending.scan(0), "the next transfer has two of its own");
    ends.sending.await_more();
    assert!(!ends.sending.scan(0), "and again after a part was written");
    assert!(ends.sending.scan(0));
}

#[test]
fn a4_what_the_sender_says_was_taken_must_be_true() {
    let ends = Ends::new(BOTH);
    let key = ends.announce();
    ends.read(ends.receiving.call(false), 500, LARGE);
    let wrong = ends.try_pass(Control::RestInMessages(key, 499));
    assert!(matches!(wrong, Err(ProtocolError::Body { field: "bytes", .. })), "{wrong:?}");
    ends.pass(Control::RestInMessages(key, 500));
    assert_eq!(ends.receiving.rest(), None);
}

#[test]
fn a5_a_receive_too_small_for_rdma_asks_for_messages_once() {
    for abilities in [BOTH, WRITE_ONLY] {
        let ends = Ends::new(abilities);
        let key = ends.announce();
        assert_eq!(ends.receiving.post(2047, true, abilities), Posting::SendInMessages(key));
        assert_eq!(ends.receiving.post(2047, true, abilities), Posting::Nothing);
        assert_eq!(ends.receiving.post(LARGE, true, abilities), Posting::Nothing, "it is refused");
        ends.pass(Control::SendInMessages(key, false));
        assert_eq!(ends.progress(), Progress::InMessages);
        ends.sending.end(End::Refused);
        ends.pass(Control::RestInMessages(key, 0));
        assert_eq!(ends.sending.observer().seen(), [0, 0, 1]);
        assert_ne!(ends.plan(LARGE), Plan::Messages, "this transfer, not the next");
    }
}

#[test]
fn a5_a_receiver_that_cannot_do_rdma_refuses_for_ever() {
    let ends = Ends::new(BOTH);
    let key = ends.announce();
    ends.pass(Control::SendInMessages(key, true));
    assert_eq!(ends.progress(), Progress::InMessages);
    assert!(ends.sending.forbidden());
    assert_eq!(ends.plan(LARGE), Plan::Messages);
}

#[test]
fn a5_a_receive_that_does_not_stay_posted_is_not_advertised() {
    let ends = Ends::new(WRITE_ONLY);
    let key = ends.announce();
    assert_eq!(ends.receiving.post(LARGE, false, WRITE_ONLY), Posting::SendInMessages(key));
}

#[test]
fn a6_the_sender_writes_exactly_what_is_posted_and_goes_on_as_more_is() {
    let ends = Ends::new(WRITE_ONLY);
    ends.announce();
    let call = ends.receiving.call(false);
    ends.take_first_part(call);
    let mut left = REST;
    while left > 0 {
        let a = ends.post(call, 10_000);
        assert!(!a.directly);
        assert_eq!(ends.receiving.post(LARGE, true, WRITE_ONLY), Posting::Nothing, "one at a time");
        ends.pass(Control::Advertisement(a));
        assert_eq!(ends.progress(), Progress::Advertised(a));
        let bytes = left.min(a.length);
        ends.write(&a, bytes);
        assert_eq!(ends.progress(), Progress::Waiting, "it is used up");
        left -= bytes;
        assert_eq!(ends.receiving.rest().map_or(0, |rest| rest.length - rest.taken), left);
        ends.sending.await_more();
    }
    ends.sending.end(End::Written { directly: false });
    assert_eq!(ends.sending.observer().seen(), [0, 1, 0]);
    assert_eq!(ends.sending.advertisements(), (7, 0));
}

#[test]
fn a6_the_advertisement_says_whether_the_receive_came_before_the_data() {
    for directly in [true, false] {
        let ends = Ends::new(WRITE_ONLY);
        let call = ends.receiving.call(directly);
        ends.announce();
        ends.take_first_part(call);
        assert_eq!(ends.post(call, 4096).directly, directly);
    }
    // A receive that waited takes the first part; another one, later, the rest.
    let ends = Ends::new(WRITE_ONLY);
    ends.announce();
    ends.take_first_part(ends.receiving.call(true));
    assert!(!ends.post(ends.receiving.call(false), 4096).directly);
}

#[test]
fn a6_bytes_written_into_what_was_never_advertised_are_an_error() {
    let ends = Ends::new(WRITE_ONLY);
    let complete = Complete { key: 1, bytes: 1, behaviour: None };
    assert!(ends.try_pass(Control::TransferComplete(complete)).is_err());
}

#[test]
fn a7_a_large_receive_that_waited_for_the_data() {
    let ends = Ends::new(BOTH);
    for (times, mode) in [(1, None), (2, None), (3, Some(Mode::LargeReceive))] {
        let call = ends.receiving.call(true);
        ends.announce();
        ends.take_first_part(call);
        assert_eq!(ends.read_all(call, LARGE), mode, "time {times}");
    }
}

#[test]
fn a7_a_small_receive_then_a_large_one() {
    let ends = Ends::new(BOTH);
    for (times, mode) in [(1, None), (2, None), (3, Some(Mode::SmallThenLarge))] {
        let small = ends.receiving.call(true);
        ends.announce();
        ends.take_first_part(small);
        let large = ends.receiving.call(false);
        assert_eq!(ends.read_all(large, LARGE), mode, "time {times}");
    }
}

#[test]
fn a7_a_large_receive_that_found_the_announcement_waiting() {
    let ends = Ends::new(BOTH);
    for mode in [None, None, Some(Mode::SmallThenLarge)] {
        ends.announce();
        let call = ends.receiving.call(false);
        ends.take_first_part(call);
        assert_eq!(ends.read_all(call, LARGE), mode);
    }
}

#[test]
fn a7_small_receives() {
    let ends = Ends::new(BOTH);
    for (times, mode) in [(1, None), (2, None), (3, Some(Mode::SmallReceive))] {
        ends.announce();
        let call = ends.receiving.call(true);
        ends.take_first_part(call);
        assert_eq!(ends.read(call, 1000, 1000), None);
        assert_eq!(ends.read_all(ends.receiving.call(false), LARGE), mode, "time {times}");
    }
}

#[test]
fn a8_in_small_receive_mode_everything_goes_in_messages() {
    let ends = Ends::in_mode(BOTH, Mode::SmallReceive);
    assert_eq!(ends.plan(LARGE), Plan::Messages);
    assert_eq!(ends.receiving.post(100, true, BOTH), Posting::Nothing);
    assert_eq!(ends.receiving.post(LARGE, false, BOTH), Posting::Nothing, "it does not stay");
}

#[test]
fn a8_a_large_posted_receive_leads_both_ends_back_to_discovery() {
    let ends = Ends::in_mode(BOTH, Mode::SmallReceive);
    assert_eq!(ends.receiving.post(LARGE, true, BOTH), Posting::Rediscover);
    assert_eq!(ends.receiving.post(LARGE, true, BOTH), Posting::Nothing, "asked once");
    ends.pass(Control::Rediscover);
    assert_eq!(ends.sending.learn(), Some(Mode::Discovery));
    assert_eq!(ends.sending.learn(), None);
    ends.pass(Control::EnterMode(Mode::Discovery, false));
    assert_eq!(ends.plan(LARGE), Plan::Announce { readable: true, first_part: true });
    // Next time it asks again.
    ends.pass(Control::EnterMode(Mode::SmallReceive, false));
    assert_eq!(ends.receiving.post(LARGE, true, BOTH), Posting::Rediscover);
}

#[test]
fn a8_a_mode_that_was_measured_is_not_asked_to_change() {
    let ends = Ends::in_mode(BOTH, Mode::SmallReceive);
    ends.pass(Control::EnterMode(Mode::SmallReceive, true));
    assert_eq!(ends.receiving.post(LARGE, true, BOTH), Posting::Nothing);
}

#[test]
fn a10_small_then_large_with_read_carries_the_descriptor_in_the_first_message() {
    let ends = Ends::in_mode(BOTH, Mode::SmallThenLarge);
    assert_eq!(ends.plan(LARGE), Plan::Announce { readable: true, first_part: true });
    ends.announce();
    ends.take_first_part(ends.receiving.call(true));
    assert!(ends.receiving.rest().is_some_and(|rest| rest.address == Some(0x1000)));
    assert_eq!(ends.read_all(ends.receiving.call(false), LARGE), None);
    assert_eq!(ends.sending.observer().mode(), Mode::SmallThenLarge);
}

#[test]
fn a10_small_then_large_without_read_waits_for_the_large_receive() {
    let ends = Ends::in_mode(WRITE_ONLY, Mode::SmallThenLarge);
    assert_eq!(ends.plan(LARGE), Plan::Announce { readable: false, first_part: true });
    ends.announce();
    ends.take_first_part(ends.receiving.call(true));
    let a = ends.post(ends.receiving.call(false), LARGE as u32);
    ends.pass(Control::Advertisement(a));
    assert_eq!(ends.progress(), Progress::Advertised(a));
    ends.write(&a, REST);
    assert_eq!(ends.sending.end(End::Written { directly: a.directly }), None);
    assert_eq!(ends.sending.observer().mode(), Mode::SmallThenLarge);
    assert_eq!(ends.receiving.rest(), None);
    assert_eq!(ends.sent, ends.received);
}

#[test]
fn a11_the_passive_sender_writes_large_sends_into_advertised_receives() {
    let ends = Ends::in_mode(WRITE_ONLY, Mode::LargeReceive);
    assert_eq!(ends.plan(LARGE), Plan::Await, "it announces nothing");
    ends.sending.await_advertisement();
    assert_eq!(ends.progress(), Progress::Waiting);
    for _ in 0..3 {
        let a = ends.post(ends.receiving.call(true), 4096);
        assert!(a.directly);
        ends.pass(Control::Advertisement(a));
        assert_eq!(ends.plan(100), Plan::Messages, "a small send");
        assert_eq!(ends.plan(LARGE), Plan::Write(a));
        assert_eq!(ends.progress(), Progress::Advertised(a));
        ends.write(&a, 4096);
        assert_eq!(ends.sending.end(End::Written { directly: a.directly }), None);
        assert_eq!(ends.receiving.advertised(), None);
    }
}

#[test]
fn a11_the_receiver_advertises_no_small_or_passing_receive() {
    let ends = Ends::in_mode(BOTH, Mode::LargeReceive);
    assert_eq!(ends.receiving.post(2047, true, BOTH), Posting::Nothing);
    assert_eq!(ends.receiving.post(LARGE, false, BOTH), Posting::Nothing);
    assert!(matches!(ends.receiving.post(LARGE, true, BOTH), Posting::Advertise(_)));
}

#[test]
fn a11_another_behaviour_leads_back_to_discovery() {
    let ends = Ends::in_mode(BOTH, Mode::LargeReceive);
    ends.announce();
    let call = ends.receiving.call(false);
    assert_eq!(ends.read(call, 100, 100), None);
    assert_eq!(ends.read_all(ends.receiving.call(false), LARGE), Some(Mode::Discovery));
}

/// Where there is no RDMA read the sender waits for large receives, and is told that none come.
#[test]
fn a11_a_small_receive_leads_back_to_discovery_at_once() {
    let ends = Ends::in_mode(WRITE_ONLY, Mode::LargeReceive);
    ends.sending.await_advertisement();
    assert_eq!(ends.progress(), Progress::Waiting);
    assert_eq!(ends.receiving.post(100, true, WRITE_ONLY), Posting::Rediscover);
    assert_eq!(ends.receiving.post(100, true, WRITE_ONLY), Posting::Nothing, "it is asked once");
    ends.pass(Control::Rediscover);
    assert_eq!(ends.progress(), Progress::InMessages);
    assert_eq!(ends.sending.learn(), Some(Mode::Discovery));
    let readable = Ends::in_mode(BOTH, Mode::LargeReceive);
    assert_eq!(readable.receiving.post(100, true, BOTH), Posting::Nothing, "it announces");
}

#[test]
fn a11_a_receive_that_followed_an_indication_leads_back_to_discovery() {
    let ends = Ends::in_mode(WRITE_ONLY, Mode::LargeReceive);
    let a = ends.post(ends.receiving.call(false), 4096);
    assert!(!a.directly);
    ends.pass(Control::Advertisement(a));
    ends.write(&a, 4096);
    let end = End::Written { directly: a.directly };
    assert_eq!(ends.sending.end(end), Some(Mode::Discovery));
}

#[test]
fn a11_a_deadlock_that_a_scan_finds_leads_back_to_discovery() {
    let ends = Ends::in_mode(WRITE_ONLY, Mode::LargeReceive);
    ends.sending.await_advertisement();
    assert!(!ends.sending.scan(0));
    assert!(ends.sending.scan(0));
    assert_eq!(ends.sending.end(End::Scanned), Some(Mode::Discovery));
}

#[test]
fn a12_an_advertisement_that_crosses_the_announcement_wins() {
    let ends = Ends::in_mode(BOTH, Mode::LargeReceive);
    // Both go at once: the announcement carries no data that would make the other out of date.
    assert_eq!(ends.plan(LARGE), Plan::Announce { readable: true, first_part: false });
    let a = ends.post(ends.receiving.call(true), LARGE as u32);
    let key = ends.announce();
    assert!(ends.receiving.advertised().is_some(), "so the receiver does not read");
    ends.pass(Control::Advertisement(a));
    assert_eq!(ends.progress(), Progress::Advertised(a));
    ends.write(&a, LARGE as u32);
    assert_eq!(ends.sending.end(End::Written { directly: true }), None);
    assert_eq!(ends.receiving.rest(), None, "all that was announced came by RDMA write");
    assert_eq!(ends.sent, ends.received);
    // A completion of the ignored descriptor changes nothing.
    let c = Complete { key, bytes: 0, behaviour: Some(Behaviour::LargeReceive) };
    ends.pass(Control::TransferComplete(c));
    assert_eq!(ends.progress(), Progress::Waiting);
}

#[test]
fn a12_a_receiver_that_knows_of_the_data_reads_and_does_not_advertise() {
    for mode in [Mode::LargeReceive, Mode::SmallThenLarge] {
        let ends = Ends::in_mode(BOTH, mode);
        ends.announce();
        // It came between the receive's look and its wait: the wait ends at once, and it is read.
        assert_eq!(ends.receiving.post(LARGE, true, BOTH), Posting::Nothing, "{mode:?}");
        assert_eq!(ends.receiving.advertised(), None);
        assert_eq!(ends.progress(), Progress::Waiting);
        let call = ends.receiving.call(false);
        ends.read_all(call, LARGE);
    }
}

#[test]
fn a12_read_in_large_receive_mode_where_write_is_missing() {
    let ends = Ends::in_mode(READ_ONLY, Mode::LargeReceive);
    assert_eq!(ends.receiving.post(LARGE, true, READ_ONLY), Posting::Nothing);
    let call = ends.receiving.call(true);
    ends.announce();
    assert_eq!(ends.read_all(call, LARGE), None);
    assert_eq!(ends.sending.observer().mode(), Mode::LargeReceive);
}

#[test]
fn a13_an_advertisement_rides_on_a_data_message() {
    // Receive-send: the receive is posted, then a small send carries its advertisement.
    let ends = Ends::in_mode(BOTH, Mode::LargeReceive);
    let a = ends.post(ends.receiving.call(true), 8192);
    let data = Header {
        sequence: 5,
        last_received: 4,
        posted: 12,
        kind: Kind::Data,
        flags: 0,
        length: 100,
    };
    let words = data.advertising().encode();
    let header = Header::decode(words, 1520).expect("it fits");
    assert_eq!((header.data_size(), header.body_size()), (100, 32));
    let body = Control::Advertisement(a).encode();
    let control = Control::decode(header.kind, &body);
    assert_eq!(control, Ok(Some(Control::Advertisement(a))));
    ends.pass(Control::Advertisement(a));
    assert_eq!(ends.plan(LARGE), Plan::Write(a));
}

#[test]
fn a12_a_sender_that_has_an_advertisement_announces_nothing() {
    let ends = Ends::in_mode(BOTH, Mode::LargeReceive);
    for _ in 0..2 {
        let a = ends.post(ends.receiving.call(true), 8192);
        ends.pass(Control::Advertisement(a));
        assert_eq!(ends.plan(LARGE), Plan::Write(a));
        ends.write(&a, 8192);
        ends.sending.end(End::Written { directly: true });
    }
    assert_eq!(ends.sending.advertisements(), (2, 0));
}

#[test]
fn a14_an_advertisement_that_data_has_overtaken_is_dropped() {
    let ends = Ends::in_mode(WRITE_ONLY, Mode::LargeReceive);
    let a = ends.post(ends.receiving.call(true), 8192);
    // A small send crosses it and lands in that receive.
    ends.sent.set(100);
    ends.pass(Control::Advertisement(a));
    assert_eq!(ends.plan(LARGE), Plan::Await);
    assert_eq!(ends.sending.advertisements(), (0, 1));
    ends.received.set(100);
    ends.receiving.withdrawn(0);
    let next = ends.post(ends.receiving.call(true), 8192);
    ends.pass(Control::Advertisement(next));
    assert_eq!(ends.plan(LARGE), Plan::Write(next));
}

#[test]
fn a14_an_advertisement_that_a_small_send_makes_out_of_date_is_not_used_later() {
    let ends = Ends::in_mode(WRITE_ONLY, Mode::LargeReceive);
    let a = ends.post(ends.receiving.call(true), 8192);
    ends.pass(Control::Advertisement(a));
    assert_eq!(ends.plan(100), Plan::Messages);
    ends.sent.set(100);
    assert_eq!(ends.plan(LARGE), Plan::Await);
}

#[test]
fn a14_an_advertisement_is_used_once_and_its_number_comes_once() {
    let ends = Ends::in_mode(WRITE_ONLY, Mode::LargeReceive);
    let a = ends.post(ends.receiving.call(true), 8192);
    ends.pass(Control::Advertisement(a));
    ends.sending.used(a.key, false);
    assert_eq!(ends.plan(LARGE), Plan::Await, "it was found withdrawn");
    let again = ends.try_pass(Control::Advertisement(a));
    assert!(matches!(again, Err(ProtocolError::Body { field: "number", .. })), "{again:?}");
}

#[test]
fn s4_s5_numbers_that_never_were_or_come_again_are_errors_of_their_message() {
    let ends = Ends::new(BOTH);
    let key = ends.announce();
    let read = Complete { key: key + 1, bytes: 1, behaviour: Some(Behaviour::LargeReceive) };
    let written = Complete { key: 1, bytes: 1, behaviour: None };
    let available = Available { key, rest: 1, address: None };
    let wrong = [
        Control::TransferComplete(read),
        Control::SendInMessages(key + 1, false),
        Control::TransferComplete(written),
        Control::DataAvailable(available),
    ];
    for control in wrong {
        let error = ends.try_pass(control).expect_err("a wrong number");
        let ProtocolError::Body { kind, field: "number", .. } = error else { panic!("{error}") };
        assert_eq!(kind, control.kind());
    }
    let ends = Ends::in_mode(WRITE_ONLY, Mode::LargeReceive);
    let again = Control::Advertisement(ends.post(ends.receiving.call(true), 4096));
    ends.pass(again);
    let error = ends.try_pass(again).expect_err("the same number twice");
    assert!(matches!(error, ProtocolError::Body { kind: Kind::Advertisement, .. }));
}

#[test]
fn a12_what_was_written_before_an_announcement_is_no_part_of_it() {
    let ends = Ends::in_mode(BOTH, Mode::LargeReceive);
    let a = ends.post(ends.receiving.call(true), 4096);
    ends.pass(Control::Advertisement(a));
    assert_eq!(ends.plan(LARGE), Plan::Write(a));
    ends.sending.used(a.key, true);
    ends.sent.set(4096);
    let complete = Complete { key: a.key, bytes: 4096, behaviour: None };
    ends.pass(Control::TransferComplete(complete));
    // The next piece is announced before the receiver took its buffer back.
    let key = ends.announce();
    ends.receiving.withdrawn(4096);
    assert_eq!(ends.receiving.rest().map(|rest| rest.taken), Some(0));
    ends.pass(Control::RestInMessages(key, 0));
}

#[test]
fn d12_what_a_receiver_had_read_when_it_died_is_lost_and_no_more() {
    let call = Call { number: 1, directly: false };
    // The provider knows.
    let ends = Ends::new(READ_ONLY);
    ends.announce();
    assert_eq!(ends.read(call, 1000, LARGE), None);
    ends.receiving.recover(|_| Some(1500));
    assert_eq!(ends.receiving.bytes(), 1500);
    assert_eq!(ends.receiving.rest().map(|rest| rest.taken), Some(1500));
    ends.receiving.recover(|_| Some(REST));
    assert_eq!(ends.receiving.bytes(), REST.into());
    assert_eq!(ends.receiving.rest(), None);
    // It was taken back since: the sender knows.
    let key = ends.announce();
    ends.receiving.recover(|_| None);
    assert_eq!(ends.receiving.bytes(), REST.into());
    ends.pass(Control::RestInMessages(key, 700));
    assert_eq!(ends.receiving.bytes(), u64::from(REST) + 700);
    ends.announce();
    ends.receiving.recover(|_| None);
    ends.pass(Control::DataAvailable(Available { key: key + 2, rest: 10, address: None }));
    assert_eq!(ends.receiving.bytes(), 2 * u64::from(REST) + 700);
}

#[test]
fn d12_what_a_dead_receiver_read_is_told_even_after_the_transfer_was_found_over() {
    let ends = Ends::new(READ_ONLY);
    let key = ends.announce();
    ends.receiving.recover(|_| None);
    // A read finds it taken back.
    ends.receiving.close();
    assert_eq!(ends.receiving.rest(), None);
    ends.pass(Control::RestInMessages(key, 700));
    assert_eq!(ends.receiving.bytes(), 700);
    ends.pass(Control::RestInMessages(key, 700));
    assert_eq!(ends.receiving.bytes(), 700, "once");
}

#[test]
fn d12_what_was_counted_for_a_dead_thread_may_be_counted_again() {
    let ends = Ends::new(BOTH);
    let key = ends.announce();
    let again = Available { key, rest: REST, address: Some(0x1000) };
    let sequence = ends.receiving.rest().unwrap().after;
    assert_eq!(ends.receiving.available(&again, sequence), Ok(()), "the same message");
    assert!(ends.receiving.available(&again, sequence + 1).is_err(), "another");
    for _ in 0..2 {
        ends.sending.read(300);
        assert_eq!(ends.sending.bytes(), 300);
    }
    ends.sending.writes(7, 100);
    assert_eq!(ends.sending.writing(), Some((7, 100)));
    for _ in 0..2 {
        ends.sending.wrote(50);
        assert_eq!(ends.sending.bytes(), 350);
    }
    ends.sending.used(7, true);
    assert_eq!(ends.sending.writing(), None);
    ends.sending.read(300);
    assert_eq!(ends.sending.bytes(), 350, "what was written since counts");
}

#[test]
fn a12_what_was_announced_is_over_once_an_advertisement_won() {
    let ends = Ends::in_mode(BOTH, Mode::LargeReceive);
    let a = ends.post(ends.receiving.call(true), 4096);
    ends.announce();
    ends.pass(Control::Advertisement(a));
    assert_eq!(ends.progress(), Progress::Advertised(a));
    ends.sending.forget();
    // The sender stops after that: nothing else would tell the receiver.
    ends.write(&a, 4096);
    assert_eq!(ends.receiving.rest(), None);
}
