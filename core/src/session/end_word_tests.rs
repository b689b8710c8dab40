//! Unit tests of where an end's directions are, for every state and event, and of the word that says so.

use super::{EndWord, InEvent, OutEvent, WayIn, WayOut};

const FLAG: u32 = 1 << 4;
const OTHER: u32 = 1 << 27;
const WAYS_OUT: [WayOut; 4] = [WayOut::San, WayOut::Tcp, WayOut::Leaving, WayOut::Left];
const WAYS_IN: [WayIn; 4] = [WayIn::San, WayIn::Tcp, WayIn::Asking, WayIn::Back];

/// A word whose directions are here.
fn end(out: WayOut, way_in: WayIn) -> EndWord {
    let word = EndWord::new();
    word.begin_on_tcp();
    let _ = match out {
        WayOut::Tcp => None,
        WayOut::San => word.step_out(OutEvent::Turned),
        WayOut::Leaving => word.step_out(OutEvent::OutInPart),
        WayOut::Left => word.step_out(OutEvent::Out),
    };
    let _ = match way_in {
        WayIn::Tcp => None,
        WayIn::San => word.step_in(InEvent::Turned),
        WayIn::Asking => word.step_in(InEvent::Asked),
        WayIn::Back => word.step_in(InEvent::ReadOut),
    };
    assert_eq!((word.state().way_out(), word.state().way_in()), (out, way_in));
    word
}

/// Every word that an end may have, with two flags.
fn ends() -> impl Iterator<Item = (WayOut, WayIn, EndWord)> {
    WAYS_OUT.into_iter().flat_map(|out| {
        WAYS_IN.into_iter().map(move |way_in| {
            let word = end(out, way_in);
            word.set(FLAG | OTHER);
            (out, way_in, word)
        })
    })
}

/// Where a direction goes from here by these events.
fn way_out_after(from: WayOut) -> [(OutEvent, Option<WayOut>); 3] {
    use WayOut::{Leaving, Left, San, Tcp};
    let to = match from {
        Tcp => [Some(San), Some(Leaving), Some(Left)],
        San => [None, Some(Leaving), Some(Left)],
        Leaving => [None, None, Some(Left)],
        Left => [None, None, None],
    };
    [(OutEvent::Turned, to[0]), (OutEvent::OutInPart, to[1]), (OutEvent::Out, to[2])]
}

/// The same for what comes in.
fn way_in_after(from: WayIn) -> [(InEvent, Option<WayIn>); 5] {
    use WayIn::{Asking, Back, San, Tcp};
    let to = match from {
        Tcp => [Some(San), Some(Asking), None, None, Some(Back)],
        San => [None, Some(Asking), None, None, Some(Back)],
        Asking => [None, None, Some(Back), Some(Tcp), None],
        Back => [None, None, None, None, None],
    };
    [
        (InEvent::Turned, to[0]),
        (InEvent::Asked, to[1]),
        (InEvent::Granted, to[2]),
        (InEvent::Refused, to[3]),
        (InEvent::ReadOut, to[4]),
    ]
}

#[test]
fn each_direction_takes_its_steps_and_no_others() {
    for (out, event, to) in
        WAYS_OUT.iter().flat_map(|&way| way_out_after(way).map(|(event, to)| (way, event, to)))
    {
        assert_eq!(out.step(event), to, "{out:?}, {event:?}");
    }
    for (way_in, event, to) in
        WAYS_IN.iter().flat_map(|&way| way_in_after(way).map(|(event, to)| (way, event, to)))
    {
        assert_eq!(way_in.step(event), to, "{way_in:?}, {event:?}");
    }
}

#[test]
fn a_step_of_the_word_concerns_one_direction_and_no_flag() {
    for number in 0..3 {
        for (out, way_in, word) in ends() {
            let (event, to) = way_out_after(out)[number];
            assert_eq!(word.step_out(event).map(|after| after.way_out()), to);
            let state = word.state();
            assert_eq!((state.way_out(), state.way_in()), (to.unwrap_or(out), way_in));
            assert_eq!(state.among(!0), FLAG | OTHER);
        }
    }
    for number in 0..5 {
        for (out, way_in, word) in ends() {
            let (event, to) = way_in_after(way_in)[number];
            assert_eq!(word.step_in(event).map(|after| after.way_in()), to);
            let state = word.state();
            assert_eq!((state.way_out(), state.way_in()), (out, to.unwrap_or(way_in)));
            assert_eq!(state.among(!0), FLAG | OTHER);
        }
    }
}

#[test]
fn flags_concern_no_direction() {
    for (out, way_in, word) in ends() {
        assert!(word.clear(!0) && !word.state().has(!0));
        assert!(word.set(FLAG) && !word.set(FLAG) && word.set(FLAG | OTHER));
        assert!(word.state().has(FLAG) && word.state().has(OTHER | 1));
        assert_eq!(word.state().among(FLAG | 1), FLAG);
        assert!(word.clear(FLAG | 1) && !word.clear(FLAG));
        assert!(!word.set(0) && !word.clear(0));
        let state = word.state();
        assert_eq!((state.way_out(), state.way_in(), state.among(!0)), (out, way_in, OTHER));
    }
}

#[test]
fn the_word_says_what_holds_of_both_directions() {
    for (out, way_in, word) in ends() {
        let state = word.state();
        let is_on_san = (out, way_in) == (WayOut::San, WayIn::San);
        assert_eq!(state.is_on_san_with(FLAG | OTHER), is_on_san);
        assert!(!state.is_on_san_with(FLAG), "another one is set");
        let is_there_still =
            matches!(out, WayOut::San | WayOut::Tcp) && matches!(way_in, WayIn::San | WayIn::Tcp);
        assert_eq!(state.is_returning(), !is_there_still);
        assert_eq!(state.is_back(), (out, way_in) == (WayOut::Left, WayIn::Back));
    }
    assert!(EndWord::new().state().is_on_san_with(0));
}
