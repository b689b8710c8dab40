//! The modes: what a sender learns from how its receiver receives, and what it does then (A7, A8, A10, A11).

use super::*;

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
