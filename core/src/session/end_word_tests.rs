//! Unit tests of where an end's directions are, for every state and event, and of the word that says so.

use super::{EndWord, OutEvent, WayOut};

const FLAG: u32 = 1 << 4;
const OTHER: u32 = 1 << 27;

/// A word whose direction out is here.
fn sending(way: WayOut) -> EndWord {
    let word = EndWord::new();
    match way {
        WayOut::San => {}
        WayOut::Tcp => word.begin_on_tcp(),
        WayOut::Leaving => drop(word.step_out(OutEvent::OutInPart)),
        WayOut::Left => drop(word.step_out(OutEvent::Out)),
    }
    assert_eq!(word.state().way_out(), way);
    word
}

#[test]
fn what_goes_out_takes_these_steps_and_no_others() {
    use OutEvent::{Out, OutInPart, Turned};
    use WayOut::{Leaving, Left, San, Tcp};
    // From each of these to, by the three events.
    let steps = [
        (Tcp, [Some(San), Some(Leaving), Some(Left)]),
        (San, [None, Some(Leaving), Some(Left)]),
        (Leaving, [None, None, Some(Left)]),
        (Left, [None, None, None]),
    ];
    for (from, to) in steps {
        for (event, to) in [Turned, OutInPart, Out].into_iter().zip(to) {
            assert_eq!(from.step(event), to, "{from:?}, {event:?}");
            let word = sending(from);
            word.set(FLAG | OTHER);
            assert_eq!(word.step_out(event).map(|after| after.way_out()), to);
            let state = word.state();
            assert_eq!(state.way_out(), to.unwrap_or(from));
            assert_eq!(state.among(!0), FLAG | OTHER, "it concerns no flag");
        }
    }
}

#[test]
fn flags_concern_no_direction() {
    for way in [WayOut::San, WayOut::Tcp, WayOut::Leaving, WayOut::Left] {
        let word = sending(way);
        assert!(!word.state().has(!0));
        assert!(word.set(FLAG) && !word.set(FLAG) && word.set(FLAG | OTHER));
        assert!(word.state().has(FLAG) && word.state().has(OTHER | 1));
        assert_eq!(word.state().among(FLAG | 1), FLAG);
        assert!(word.clear(FLAG | 1) && !word.clear(FLAG));
        assert!(!word.set(0) && !word.clear(0));
        assert_eq!((word.state().way_out(), word.state().among(!0)), (way, OTHER));
    }
}

#[test]
fn an_end_at_rest_is_on_the_san_with_certain_flags() {
    let word = EndWord::new();
    assert!(word.state().is_on_san_with(0));
    word.set(FLAG);
    assert!(word.state().is_on_san_with(FLAG | OTHER) && !word.state().is_on_san_with(OTHER));
    for way in [WayOut::Tcp, WayOut::Leaving, WayOut::Left] {
        assert!(!sending(way).state().is_on_san_with(!0), "{way:?}");
    }
}
