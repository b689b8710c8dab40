//! Unit tests of the word that says which way a direction goes.

use super::{Direction, DirectionState};

/// The word of a direction that turned before anything was sent.
fn turned() -> Direction {
    let d = Direction::new();
    d.begin_turned();
    d
}

#[test]
fn a_direction_turns_when_the_receiver_is_ready() {
    let d = Direction::new();
    assert!(!d.turn() && !d.ring(), "the receiver does not look there");
    d.enter();
    assert!(d.take() && d.take() && !d.turn(), "it takes bytes at this moment");
    d.took();
    assert!(!d.turn());
    d.took();
    assert!(!d.ring(), "nothing lies there to ring for");
    assert!(d.turn() && !d.turn(), "once");
    assert!(!d.take(), "from now on it is known how many bytes there are");
    assert_eq!(d.state(), turned().state());
    assert!(d.ring());
    assert_eq!(d.state().rings, 1);
}

#[test]
fn who_leaves_before_it_turned_stays_on_tcp() {
    for recalled in [false, true] {
        let d = Direction::new();
        d.enter();
        if recalled {
            assert!(d.recall(d.state()));
        }
        assert!(!d.leave().left);
        assert!(!d.turn());
        let state = d.state();
        assert_eq!((state.rings, state.left, state.turned), (0, true, false));
    }
}

#[test]
fn whoever_comes_first_decides() {
    let d = turned();
    assert!(d.ring() && d.ring());
    assert!(d.recall(d.state()));
    assert!(!d.ring(), "recalled: the sender sends again instead");
    assert_eq!(d.state(), DirectionState { rings: 2, recalled: true, ..turned().state() });
    assert!(d.leave().recalled);
    assert_eq!(
        d.state(),
        DirectionState { rings: 2, left: true, recalled: true, ..turned().state() }
    );

    let d = turned();
    assert!(!d.leave().is_final());
    assert!(!d.recall(d.state()) && d.grant_recall().left, "too late to recall");
    assert!(!d.ring());
    assert!(d.leave().left, "once is enough");
    assert_eq!(d.state(), DirectionState { left: true, ..turned().state() });
}

#[test]
fn a_receiver_stands_in_for_a_sender_that_rests() {
    let d = turned();
    assert!(d.ring());
    assert!(d.recall(d.state()));
    assert!(d.claim() && !d.claim(), "one at a time");
    let before = d.leave();
    assert!(before.recalled && before.claimed && before.replayed);
    d.release();
    assert!(!d.claim(), "the sender has come to it");
    let all = DirectionState { rings: 1, left: true, recalled: true, ..turned().state() };
    assert_eq!(d.state(), DirectionState { replayed: true, ..all });
    assert!(!turned().claim(), "nothing was recalled");
}

#[test]
fn who_closed_is_recalled_only_by_who_knows_that() {
    let d = turned();
    assert!(d.ring());
    let before = d.state();
    assert!(!d.close().recalled);
    assert!(!d.recall(before), "what was sent before is to be read first");
    assert!(d.grant_recall().closed && !d.state().recalled && d.state().rings == 1);
    assert!(d.recall(d.state()));
    assert!(d.state().recalled && d.state().closed);

    let d = turned();
    assert!(d.pull());
    assert!(d.grant_recall().pulled && !d.state().recalled, "it comes again anyway");

    let d = turned();
    assert!(d.recall(d.state()));
    assert!(d.close().recalled, "it is to be sent again first");
    assert!(!d.state().closed);
}

#[test]
fn who_rang_is_recalled_only_by_who_has_looked_since() {
    let d = turned();
    let before = d.state();
    assert!(d.ring());
    assert!(!d.recall(before), "what it rings for may have come behind the look");
    assert!(d.recall(d.state()));
}

#[test]
fn a_sender_pulls_what_nobody_recalled() {
    let d = turned();
    assert!(d.ring());
    let before = d.state();
    assert!(d.pull());
    assert!(!d.recall(before) && !d.recall(d.state()), "it comes by itself");
    assert!(!d.leave().left && d.state().pulled);
    assert!(!d.pull(), "it has left");

    let d = turned();
    assert!(d.recall(d.state()));
    assert!(!d.pull(), "the receiver says from where on");
    assert!(!Direction::new().pull(), "nothing lies there");
}

#[test]
fn a_word_that_a_peer_made_up_is_counted_without_overflow() {
    const TURNED: u64 = 1 << 57;
    const RINGS: u64 = (1 << 48) - 1;
    for word in [0, RINGS, u64::MAX, !TURNED] {
        let direction = Direction::of_word(word);
        direction.took();
        direction.take();
    }
}
