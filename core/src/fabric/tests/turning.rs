//! How both ends come to use a link, or do not, and the turn of a direction.

use super::{ends, made, relative};
use crate::fabric::frame::{self, FrameKind};
use crate::provider::shm::{AgreementState, FAILED};
use crate::provider::simulation::lose_link;
use std::sync::atomic::Ordering::SeqCst;

#[test]
fn a_connector_goes_back_if_the_acceptor_has_not_entered() {
    let (from, to) = made("192.0.2.113", "192.0.2.114");
    assert!(from.enter());
    from.link.withdraw();
    assert!(!to.enter(), "it was asked back");
    assert_eq!(from.segment.agreement().state(), AgreementState::Confirmed, "it has no answer");
    from.link.poll();
    assert_eq!(from.segment.agreement().state(), AgreementState::Withdrawn);
    assert!(!from.link.has_failed() && !to.link.has_failed());
}

#[test]
fn a_connector_does_not_go_back_once_the_acceptor_has_entered() {
    let (from, to) = made("192.0.2.167", "192.0.2.168");
    assert!(from.enter() && to.enter());
    from.link.withdraw();
    to.link.poll();
    from.link.poll();
    assert_eq!(
        [from.segment.agreement().state(), to.segment.agreement().state()],
        [AgreementState::Settled; 2]
    );
    from.send(b"goes on");
    assert_eq!(to.receive(10), b"goes on");
}

#[test]
fn who_does_not_want_the_link_says_so_before_it_is_used() {
    for who_refuses in 0..2 {
        let (from, to) = made("192.0.2.169", "192.0.2.170");
        assert!(who_refuses == 1 || from.enter());
        let (who, other) = if who_refuses == 0 { (&to, &from) } else { (&from, &to) };
        assert!(who.segment.agreement().withdraw());
        who.link.refuse();
        other.link.poll();
        assert_eq!(other.segment.agreement().state(), AgreementState::Withdrawn);
        assert!(!to.enter());
    }
}

#[test]
fn without_an_answer_an_acceptor_that_entered_finds_the_link_broken() {
    let (from, to) = made("192.0.2.171", "192.0.2.172");
    assert!(from.enter() && to.enter());
    from.link.abandon_unanswered();
    assert_eq!(from.segment.agreement().state(), AgreementState::Withdrawn);
    assert_eq!(from.finished() & FAILED, 0, "it goes on over TCP");
    to.send(b"nobody takes it");
    to.link.poll();
    assert_eq!(to.finished() & FAILED, FAILED);
}

#[test]
fn a_link_that_breaks_before_both_use_it_is_no_failure() {
    let (from, to) = made("192.0.2.173", "192.0.2.174");
    lose_link("192.0.2.173".parse().unwrap());
    from.enter();
    from.link.poll();
    assert!(from.link.has_failed());
    assert_eq!(from.segment.agreement().state(), AgreementState::Withdrawn);
    assert_eq!(from.finished() & FAILED, 0);
    assert!(!to.enter());
}

#[test]
fn the_peer_hears_where_a_direction_turned_and_the_end_that_it_has() {
    let (a, b) = ends("192.0.2.175", "192.0.2.176");
    let one = relative(&a);
    let sending = &a.stream().own().sending.0;
    assert!(!a.link.make_turn_known());
    sending.turned_at.store(77, SeqCst);
    assert!(sending.direction.turn());
    assert!(!one.link.make_turn_known());
    while !a.link.make_turn_known() {}
    assert!(one.link.make_turn_known(), "its relatives as well");
    a.send(b"behind");
    assert_eq!(b.receive(10), b"behind");
    let picture = &b.stream().peer().sending.0;
    let word = picture.direction.state();
    assert!(word.turned && picture.turned_at.load(SeqCst) == 77);
    // Told again over another queue pair.
    for (at, good) in [(77u64, true), (78, false)] {
        let mut again = frame::encode(FrameKind::Turned, 8, &frame::FrameState::default()).to_vec();
        again.extend(at.to_le_bytes());
        b.link.arrived(&again);
        assert_eq!(b.link.has_failed(), !good);
    }
}
