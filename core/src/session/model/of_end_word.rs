//! Model check of an end's word: threads of the end that step its directions, and set flags, at the same time.

use super::end_word::EndWord;
use super::sync::{AtomicU32, Ordering};
use super::way_in::InEvent;
use super::way_out::{OutEvent, WayOut};
use super::{bounded, Reached};
use loom::sync::Arc;
use loom::thread;

const FLAG: u32 = 1 << 3;

/// A word, and what was done before its directions took a step: how far what goes out is, and what comes in.
#[derive(Debug)]
struct End {
    word: EndWord,
    out: AtomicU32,
    read: AtomicU32,
}

impl End {
    fn new() -> Arc<End> {
        let end = End { word: EndWord::new(), out: AtomicU32::new(0), read: AtomicU32::new(0) };
        // Makes the loom objects here, before any thread runs.
        end.word.state();
        end.out.load(Ordering::Relaxed);
        end.read.load(Ordering::Relaxed);
        Arc::new(end)
    }
}

/// The sender turns while another thread finds that the connection is over, and a third sets a flag: no step and no flag is
/// lost.
#[test]
fn no_step_and_no_flag_is_lost() {
    let reached = std::sync::Arc::new(Reached::default());
    let seen = reached.clone();
    bounded(3, move || {
        let end = End::new();
        end.word.begin_on_tcp();
        let turns = {
            let end = end.clone();
            thread::spawn(move || end.word.step_out(OutEvent::Turned).is_some())
        };
        let flags = {
            let end = end.clone();
            thread::spawn(move || end.word.set(FLAG))
        };
        let over = end.word.step_out(OutEvent::Out).expect("nobody else ends it");
        assert_eq!(over.way_out(), WayOut::Left);
        let (turned, was_new) = (turns.join().unwrap(), flags.join().unwrap());
        let state = end.word.state();
        assert!(was_new && state.has(FLAG));
        assert_eq!(state.way_out(), WayOut::Left);
        seen.note((u32::from(turned), u32::from(over.has(FLAG))));
    });
    assert_eq!(reached.states(), [(0, 0), (0, 1), (1, 0), (1, 1)]);
}

/// A thread that finds a direction in a state also finds all that was done before that state.
#[test]
fn a_look_sees_what_came_before_the_step() {
    let reached = std::sync::Arc::new(Reached::default());
    let seen = reached.clone();
    bounded(3, move || {
        let end = End::new();
        let look = {
            let end = end.clone();
            thread::spawn(move || (end.word.state().way_out(), end.out.load(Ordering::Relaxed)))
        };
        end.out.store(1, Ordering::Relaxed);
        end.word.step_out(OutEvent::OutInPart);
        end.out.store(2, Ordering::Relaxed);
        end.word.step_out(OutEvent::Out);
        let (way, out) = look.join().unwrap();
        let least = match way {
            WayOut::San | WayOut::Tcp => 0,
            WayOut::Leaving => 1,
            WayOut::Left => 2,
        };
        assert!(out >= least, "{way:?}, {out}");
        seen.note((way as u32, out));
    });
    let states = reached.states();
    assert!([(0, 0), (2, 1), (3, 2)].iter().all(|one| states.contains(one)), "{states:?}");
}

/// One thread leaves while another ends reading. The one that comes second, and it alone, finds that the end is back, with all
/// that the other did before: it gives the socket to the kernel.
#[test]
fn who_brings_the_second_direction_back_knows_it() {
    let reached = std::sync::Arc::new(Reached::default());
    let seen = reached.clone();
    bounded(3, move || {
        let end = End::new();
        let reads = {
            let end = end.clone();
            thread::spawn(move || {
                end.read.store(1, Ordering::Relaxed);
                let after = end.word.step_in(InEvent::ReadOut).expect("nobody else does");
                (after.is_back(), end.out.load(Ordering::Relaxed))
            })
        };
        end.out.store(1, Ordering::Relaxed);
        let left = end.word.step_out(OutEvent::Out).expect("nobody else does");
        let read = end.read.load(Ordering::Relaxed);
        let (reader_is_last, out) = reads.join().unwrap();
        assert!(left.is_back() != reader_is_last);
        assert!(!left.is_back() || read == 1);
        assert!(!reader_is_last || out == 1);
        seen.note((u32::from(left.is_back()), u32::from(reader_is_last)));
    });
    assert_eq!(reached.states(), [(0, 1), (1, 0)]);
}
