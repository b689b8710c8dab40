//! The suspended session: its steps, and any schedule of two ends that both want it.

use super::suspend::Suspension;
use super::Control::{self, Resume, Suspend, Suspended};
use proptest::prelude::*;
use std::collections::VecDeque;

const CONNECTOR: bool = true;
const ACCEPTOR: bool = false;

fn takes(end: &Suspension, control: &Control, connector: bool) {
    assert_eq!(end.obey(control, connector), Ok(true), "{control:?}");
}

#[test]
fn d4_suspend_suspended_resume() {
    let (a, b) = (Suspension::default(), Suspension::default());
    assert!(!a.holds_back() && a.resumption().is_none());
    let asked = a.ask().expect("nothing is in its way");
    assert_eq!(asked, Suspend(1));
    assert!(a.holds_back() && !a.is_suspended());
    takes(&b, &asked, ACCEPTOR);
    assert!(b.holds_back());
    assert_eq!(b.answer(), Some(Suspended(1)));
    b.answered();
    assert_eq!(b.answer(), None);
    assert!(b.holds_back() && !b.is_suspended());
    takes(&a, &Suspended(1), CONNECTOR);
    assert!(a.is_suspended() && a.completed() == 1);
    assert_eq!(a.resumption(), Some(Resume(1)));
    a.resumed();
    takes(&b, &Resume(1), ACCEPTOR);
    assert!(!a.holds_back() && !b.holds_back());
}

#[test]
fn an_answer_that_comes_too_late_answers_nothing() {
    let (a, b) = (Suspension::default(), Suspension::default());
    takes(&b, &a.ask().expect("free"), ACCEPTOR);
    a.resumed();
    assert_eq!(a.ask(), Some(Suspend(2)));
    takes(&a, &Suspended(1), CONNECTOR);
    assert!(!a.is_suspended() && a.completed() == 0);
    takes(&b, &Resume(1), ACCEPTOR);
    assert_eq!(b.answer(), None, "nobody waits for it");
    takes(&b, &Suspend(2), ACCEPTOR);
    assert_eq!(b.answer(), Some(Suspended(2)));
}

#[test]
fn who_is_suspended_does_not_ask() {
    let b = Suspension::default();
    takes(&b, &Suspend(1), ACCEPTOR);
    assert_eq!(b.ask(), None);
    b.answered();
    assert_eq!(b.ask(), None);
    takes(&b, &Resume(1), ACCEPTOR);
    assert_eq!(b.ask(), Some(Suspend(1)));
}

#[test]
fn where_both_ask_at_once_the_acceptor_gives_way() {
    let (a, b) = (Suspension::default(), Suspension::default());
    let (from_a, from_b) = (a.ask().expect("free"), b.ask().expect("free"));
    takes(&a, &from_b, CONNECTOR);
    takes(&b, &from_a, ACCEPTOR);
    assert_eq!((a.answer(), b.answer()), (None, Some(Suspended(1))));
    assert!(b.gave_way() && b.ask().is_none());
    b.answered();
    takes(&a, &Suspended(1), CONNECTOR);
    a.resumed();
    takes(&b, &Resume(1), ACCEPTOR);
    assert!(b.gave_way() && b.holds_back(), "it still wants to");
    let again = b.ask().expect("its turn");
    assert_eq!(again, Suspend(2));
    takes(&a, &again, CONNECTOR);
    assert_eq!(a.answer(), Some(Suspended(2)));
}

#[test]
fn d12_who_takes_over_resumes_although_nobody_knows_what_was_sent() {
    let (a, b) = (Suspension::default(), Suspension::default());
    // It died before its request went out, and its successor before it could note that it had resumed.
    a.ask();
    assert_eq!(a.resumption(), Some(Resume(1)));
    takes(&b, &Resume(1), ACCEPTOR);
    takes(&b, &Resume(1), ACCEPTOR);
    a.resumed();
    assert!(!b.holds_back());
    takes(&b, &a.ask().expect("free"), ACCEPTOR);
    assert_eq!(b.answer(), Some(Suspended(2)));
}

#[test]
fn d12_a_peer_that_does_not_resume_is_noticed() {
    let b = Suspension::default();
    takes(&b, &Suspend(1), ACCEPTOR);
    assert!(!b.scan(0), "not suspended yet");
    b.answered();
    assert_eq!([0; 4].map(|_| b.scan(2)), [false, false, true, true]);
    takes(&b, &Resume(1), ACCEPTOR);
    assert!(!b.scan(0));
}

#[test]
fn numbers_that_nobody_sends_are_refused() {
    let end = Suspension::default();
    assert!(end.obey(&Suspend(0), CONNECTOR).is_err());
    assert!(end.obey(&Suspended(1), CONNECTOR).is_err(), "nothing was asked");
    takes(&end, &Suspend(7), CONNECTOR);
    for wrong in [Suspend(7), Suspend(6), Resume(6), Resume(7 + (1 << 31))] {
        assert!(end.obey(&wrong, CONNECTOR).is_err(), "{wrong:?}");
    }
    assert_eq!(end.obey(&Control::Rediscover, CONNECTOR), Ok(false));
    assert_eq!(end.answer(), Some(Suspended(7)), "an error changes nothing");
}

/// One end: its state, what is on its way to it, and what its processes are doing.
#[derive(Default)]
struct End {
    state: Suspension,
    inbox: VecDeque<Control>,
    /// A send or an RDMA transfer is under way.
    busy: bool,
    /// The next process is being given what the old one had.
    moving: bool,
    moved: u32,
}

/// One step of `ends[i]`.
fn step(ends: &mut [End; 2], i: usize, choice: u8) {
    let (left, right) = ends.split_at_mut(1);
    let (me, peer) = if i == 0 { (&mut left[0], &right[0]) } else { (&mut right[0], &left[0]) };
    let mut sent = Vec::new();
    match choice {
        0 | 1 => {
            if let Some(control) = me.inbox.pop_front() {
                takes(&me.state, &control, i == 0);
            }
        }
        2 if !me.state.holds_back() => me.busy = true,
        3 => me.busy = false,
        4 => {
            if let Some(answer) = me.state.answer().filter(|_| !me.busy) {
                sent.push(answer);
                me.state.answered();
            }
        }
        5 if !me.busy && (!me.state.is_asking() || me.state.gave_way()) => {
            sent.extend(me.state.ask());
        }
        6 if me.state.is_suspended() => {
            assert!(!me.busy && !peer.busy, "something is under way in a suspended session");
            assert!(!peer.moving && peer.state.holds_back(), "both move at once");
            // A connection that is torn down now loses what is on its way.
            assert!(me.inbox.is_empty() && peer.inbox.is_empty(), "{:?}", peer.inbox);
            me.moving = true;
            me.moved += 1;
        }
        // It is over, was given up, or its process died.
        7 => {
            if let Some(resumption) = me.state.resumption() {
                sent.push(resumption);
                me.state.resumed();
                me.moving = false;
            }
        }
        _ => {}
    }
    let peer = if i == 0 { &mut right[0] } else { &mut left[0] };
    peer.inbox.extend(sent);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever is asked, given up and left behind, in any order: nothing is under way while one end
    /// moves, never do both, and nothing is left suspended.
    #[test]
    fn d4_only_one_moves_and_nothing_is_under_way(
        steps in prop::collection::vec((0..2_usize, 0..8_u8), 0..400)
    ) {
        let mut ends = [End::default(), End::default()];
        for (i, choice) in steps {
            step(&mut ends, i, choice);
            for end in &ends {
                prop_assert!(!end.moving || end.state.is_suspended());
            }
        }
        for _ in 0..3 {
            for i in 0..2 {
                step(&mut ends, i, 7);
                ends[i].busy = false;
            }
            while ends.iter().any(|end| !end.inbox.is_empty()) {
                step(&mut ends, 0, 0);
                step(&mut ends, 1, 0);
            }
        }
        prop_assert!(ends.iter().all(|end| !end.state.holds_back()), "left suspended");
        // And another is possible.
        step(&mut ends, 1, 5);
        step(&mut ends, 0, 0);
        step(&mut ends, 0, 4);
        step(&mut ends, 1, 0);
        prop_assert!(ends[1].state.is_suspended());
    }
}
