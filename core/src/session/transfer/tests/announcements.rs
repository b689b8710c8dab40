//! Data that is announced: when it is, and what becomes of it where the receiver does not read it (S4, S5, A2–A5).

use super::*;

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
