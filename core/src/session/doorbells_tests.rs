//! Unit tests of the word that counts doorbells and says over which way a direction goes.

use super::{Doorbells, Rung};

/// The word of a direction that turned before anything was sent.
fn turned() -> Doorbells {
    let d = Doorbells::new();
    d.begin_turned();
    d
}

#[test]
fn a_direction_turns_when_the_receiver_is_ready_and_no_doorbell_comes_before() {
    let d = Doorbells::new();
    assert!(!d.turn(7) && !d.promise(), "the receiver does not look there");
    d.enter();
    assert!(d.take() && d.take() && !d.turn(7), "it takes bytes at this moment");
    d.took();
    assert!(!d.turn(7));
    d.took();
    assert!(!d.promise(), "nothing but the stream goes over TCP before");
    assert!(d.turn(7) && !d.turn(9), "once");
    assert!(!d.take(), "from now on it is known how many bytes there are");
    assert_eq!(d.state(), Rung { bells: 7, ..turned().state() });
    assert!(d.promise());
    assert_eq!(d.state().bells, 8);
}

#[test]
fn who_leaves_before_it_turned_rings_no_doorbell() {
    for recalled in [false, true] {
        let d = Doorbells::new();
        d.enter();
        if recalled {
            assert!(d.recall(d.state()));
        }
        assert!(!d.leave().left);
        assert!(!d.turn(3), "it stays on TCP");
        let rung = d.state();
        assert_eq!((rung.bells, rung.left, rung.turned), (0, true, false));
    }
}

#[test]
fn whoever_comes_first_decides() {
    let d = turned();
    assert!(d.promise() && d.promise());
    d.rung();
    assert!(d.recall(d.state()));
    assert!(!d.promise(), "recalled: no doorbell may come any more");
    assert_eq!(d.state(), Rung { bells: 2, recalled: true, ..turned().state() });
    assert!(d.leave().recalled);
    assert_eq!(d.state(), Rung { bells: 2, left: true, recalled: true, ..turned().state() });

    let d = turned();
    assert!(!d.leave().is_final());
    assert!(!d.recall(d.state()) && d.grant_recall().left, "too late to recall");
    assert!(!d.promise());
    assert!(d.leave().left, "once is enough");
    assert_eq!(d.state(), Rung { bells: 1, left: true, ..turned().state() });
}

#[test]
fn a_receiver_stands_in_for_a_sender_that_rests() {
    let d = turned();
    assert!(d.promise());
    assert!(d.recall(d.state()) && !d.claim(), "in the middle of a doorbell");
    d.rung();
    assert!(d.claim() && !d.claim(), "one at a time");
    assert!(!d.resume(), "a doorbell that is owed is sent by who leaves");
    let before = d.leave();
    assert!(before.recalled && before.claimed && before.replayed);
    d.release();
    assert!(!d.claim(), "the sender has come to it");
    assert_eq!(
        d.state(),
        Rung { bells: 1, left: true, recalled: true, replayed: true, ..turned().state() }
    );
    assert!(!turned().claim(), "nothing was recalled");
}

#[test]
fn who_closed_is_recalled_only_by_who_knows_that() {
    let d = turned();
    assert!(d.promise());
    let before = d.state();
    assert!(!d.close().recalled);
    assert!(!d.recall(before), "what was sent before is to be read first");
    assert!(d.grant_recall().closed && !d.state().recalled && d.state().bells == 1);
    assert!(d.recall(d.state()));
    assert!(d.state().recalled && d.state().closed);

    let d = turned();
    assert!(d.recall(d.state()));
    assert!(d.close().recalled, "it is to be sent again first");
    assert!(!d.state().closed);
}

#[test]
fn who_promised_a_doorbell_is_recalled_only_by_who_has_looked_since() {
    let d = turned();
    let before = d.state();
    assert!(d.promise());
    assert!(!d.recall(before), "what it rings for may have come behind the look");
    d.rung();
    assert!(d.recall(d.state()));
}
