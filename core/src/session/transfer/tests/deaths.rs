//! What counts as sent and received where a thread died in the middle (D12).

use super::*;

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
