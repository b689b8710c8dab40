//! Receives that are advertised: writing into them, what wins where both ends act at once, and what is out of date (A6,
//! A12–A14).

use super::*;

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
