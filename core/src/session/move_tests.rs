//! Unit tests of the way to the SAN and back: the turn, and what goes over TCP first on the way back.

use super::sync::AtomicU64;
use super::{
    end_reading, read_twice, resent, turn, Direction, Inbound, Misplaced, Outbound, OverTcp,
};
use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

const ONCE: fn(u32) -> bool = |_| false;

#[test]
fn a_sender_turns_behind_what_went_over_tcp() {
    let (word, at) = (Direction::new(), AtomicU64::new(0));
    assert_eq!(
        turn(&word, &at, || Some(7), ONCE),
        Outbound::Tcp,
        "the receiver does not look there"
    );
    word.enter();
    assert_eq!(turn(&word, &at, || None, ONCE), Outbound::Tcp, "nobody knows where that is");
    assert_eq!(word.while_taking(|| turn(&word, &at, || Some(7), ONCE)), Some(Outbound::Tcp));
    assert_eq!(turn(&word, &at, || Some(9), ONCE), Outbound::Turned(9));
    assert_eq!(at.load(Relaxed), 9);
    assert_eq!(turn(&word, &at, || Some(12), ONCE), Outbound::San);
    assert_eq!(word.while_taking(|| ()), None);
}

#[test]
fn a_position_that_no_stream_reaches_is_none() {
    let (word, at, over_tcp) = (Direction::new(), AtomicU64::new(u64::MAX), OverTcp::new());
    word.show_turned();
    assert_eq!(over_tcp.next(&word, &at, || Some(3)), Err(Misplaced));
    assert_eq!(over_tcp.next(&word, &at, || None), Err(Misplaced));
}

#[test]
fn a_turn_is_tried_again_as_often_as_is_wanted() {
    let (word, at, tried) = (Direction::new(), AtomicU64::new(0), Cell::new(0));
    word.enter();
    assert!(word.take());
    let again = |attempts| {
        tried.set(attempts);
        if attempts == 3 {
            word.took();
        }
        attempts < 5
    };
    assert_eq!(turn(&word, &at, || Some(1), again), Outbound::Turned(1));
    assert_eq!(tried.get(), 3);
}

#[test]
fn a_receiver_takes_what_went_over_tcp_and_no_byte_more() {
    let (word, at, over_tcp) = (Direction::new(), AtomicU64::new(0), OverTcp::new());
    let next = |taken| over_tcp.next(&word, &at, || taken);
    assert_eq!(next(Some(4)), Ok(Inbound::Tcp));
    word.enter();
    turn(&word, &at, || Some(9), ONCE);
    assert!(word.ring());
    over_tcp.begin(4);
    assert_eq!(next(Some(4)), Ok(Inbound::Before(5)));
    at.store(5, Relaxed);
    assert_eq!(next(Some(4)), Ok(Inbound::Before(5)), "it is read once");
    over_tcp.took(3);
    assert_eq!(next(None), Ok(Inbound::Before(2)), "the kernel counts no more");
    assert_eq!(next(Some(9)), Ok(Inbound::San(9)));
    assert_eq!(next(Some(10)), Err(Misplaced));
}

/// The looks that it takes, of which each finds bytes or not, and what became of it.
fn ends(word: &Direction, recalls_unread: bool, looks: &[bool]) -> (usize, bool) {
    let looked = Cell::new(0);
    let unread = || {
        let at = looked.replace(looked.get() + 1);
        if at == 1 && looks.len() > 2 {
            // It rings for what came behind the look.
            assert!(word.ring());
        }
        Ok::<_, ()>(looks[at])
    };
    let stops = || assert_eq!(looked.get(), 1);
    let ended = end_reading(word, recalls_unread, unread, stops, || unreachable!());
    (looked.get(), ended == Ok(true))
}

#[test]
fn reading_ends_after_a_last_look() {
    let turned = || {
        let word = Direction::new();
        word.begin_turned();
        word
    };
    assert_eq!(ends(&turned(), false, &[true]), (1, false));
    assert_eq!(ends(&turned(), false, &[false, false]), (2, true));
    assert_eq!(ends(&turned(), false, &[false, true]), (2, false));
    assert_eq!(ends(&turned(), false, &[false, false, false]), (3, true));
    assert_eq!(ends(&turned(), true, &[true, true]), (2, true));
    let left = turned();
    left.leave();
    assert_eq!(ends(&left, true, &[true]), (1, false), "it is to be read here");
    assert_eq!(ends(&left, false, &[false]), (1, true));
    assert!(!left.state().recalled);
    let closed = turned();
    closed.close();
    assert_eq!(ends(&closed, true, &[true]), (1, false), "nobody could send it again");
}

#[test]
fn how_much_was_sent_again_the_kernel_knows() {
    assert_eq!(resent(None, 10, false), Some(0), "nobody was here before");
    assert_eq!(resent(Some(14), 10, true), Some(4));
    assert_eq!(resent(Some(10), 10, true), Some(0));
    assert_eq!(resent(None, 10, true), None);
}

#[test]
fn a_receiver_follows_a_sender_that_sends_again_by_itself() {
    let word = Direction::new();
    word.begin_turned();
    assert!(word.pull());
    assert_eq!(ends(&word, true, &[true]), (1, false), "not before it has left");
    assert_eq!(ends(&word, false, &[false]), (1, false));
    word.leave();
    for all in [false, true] {
        let unread = || unreachable!("what lies here comes again");
        let ended = end_reading(&word, false, unread, || unreachable!(), || Ok::<_, ()>(all));
        assert_eq!(ended, Ok(all));
    }
}

#[test]
fn what_was_read_before_it_came_again_is_taken_off() {
    assert_eq!(read_twice(10, 10, 0), Some(0));
    assert_eq!(read_twice(10, 4, 0), Some(6));
    assert_eq!(read_twice(12, 4, 6), Some(2), "it read on meanwhile");
    assert_eq!(read_twice(10, 11, 0), None);
    assert_eq!(read_twice(10, 4, 7), None);
}
