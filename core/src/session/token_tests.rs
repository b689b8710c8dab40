//! The token, one step at a time; `model.rs` has the interleavings.

use super::token::{Claim, Refused, Step, Token, TokenTaken, Wake};

const A: Claim = Claim { process: 10, thread: 10 };
const A2: Claim = Claim { process: 10, thread: 11 };
const B: Claim = Claim { process: 20, thread: 20 };
const C: Claim = Claim { process: 30, thread: 30 };
const CLEAN: TokenTaken = TokenTaken { from_the_dead: false, swapped: false };
const SWAPPED: TokenTaken = TokenTaken { from_the_dead: false, swapped: true };

fn held_by(claim: Claim) -> Token {
    let token = Token::new();
    assert_eq!(token.try_take(claim), Ok(CLEAN));
    token
}

fn asleep(token: &Token, claim: Claim, ticket: &mut Option<u32>) -> u32 {
    match token.look(claim, ticket) {
        Step::Sleep(word) => word,
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_process_alone_neither_swaps_nor_wakes() {
    let token = held_by(A);
    assert_eq!(token.try_take(A), Err(Refused::Reentered));
    assert_eq!(token.try_take(A2), Err(Refused::Other));
    assert_eq!(token.give_back(), Wake::Nobody);
    assert_eq!(token.try_take(A2), Ok(CLEAN));
    assert_eq!(token.give_back(), Wake::Nobody);
    assert_eq!((token.swaps(), token.process()), (0, 10));
}

#[test]
fn d2_processes_are_served_first_in_first_out() {
    let token = held_by(A);
    let (mut b, mut c, mut a) = (None, None, None);
    asleep(&token, B, &mut b);
    asleep(&token, C, &mut c);
    assert_eq!(token.give_back(), Wake::All);
    // D6: the one that had it is behind, however fast it comes back.
    assert_eq!(token.try_take(A), Err(Refused::Other));
    asleep(&token, A, &mut a);
    asleep(&token, C, &mut c);
    assert_eq!(token.look(B, &mut b), Step::Taken(SWAPPED));
    assert_eq!(token.give_back(), Wake::All);
    asleep(&token, A, &mut a);
    assert_eq!(token.look(C, &mut c), Step::Taken(SWAPPED));
    assert_eq!(token.give_back(), Wake::All);
    assert_eq!(token.look(A, &mut a), Step::Taken(SWAPPED));
    assert_eq!(token.swaps(), 3);
    assert_eq!(token.process(), 10);
    // Somebody might have slept.
    assert_eq!(token.give_back(), Wake::One);
    assert_eq!(token.try_take(A), Ok(CLEAN));
    assert_eq!(token.give_back(), Wake::Nobody);
}

#[test]
fn threads_of_the_process_in_control_do_not_queue() {
    let token = held_by(A);
    let mut ticket = None;
    asleep(&token, A2, &mut ticket);
    assert_eq!(ticket, None);
    assert_eq!(token.give_back(), Wake::One);
    assert_eq!(token.look(A2, &mut ticket), Step::Taken(CLEAN));
    assert_eq!(token.swaps(), 0);
}

#[test]
fn a_dead_holder_is_noticed_and_the_first_in_the_queue_is_told() {
    let token = held_by(A);
    let (mut b, mut c) = (None, None);
    asleep(&token, B, &mut b);
    let word = asleep(&token, C, &mut c);
    assert_eq!(token.waited_in_vain(C, c, word, |_| true), Step::Again);
    assert_eq!(token.waited_in_vain(C, c, word, |thread| thread != 10), Step::WakeAll);
    let from_the_dead = TokenTaken { from_the_dead: true, swapped: true };
    assert_eq!(token.look(B, &mut b), Step::Taken(from_the_dead));
    assert_eq!(token.give_back(), Wake::All);
    assert_eq!(token.look(C, &mut c), Step::Taken(SWAPPED));
}

#[test]
fn one_that_does_not_come_is_passed_over_and_queues_again() {
    let token = held_by(A);
    let (mut b, mut c) = (None, None);
    asleep(&token, B, &mut b);
    asleep(&token, C, &mut c);
    assert_eq!(token.give_back(), Wake::All);
    let word = asleep(&token, C, &mut c);
    assert_eq!(token.waited_in_vain(C, c, word, |_| true), Step::WakeAll);
    assert_eq!(token.look(C, &mut c), Step::Taken(SWAPPED));
    asleep(&token, B, &mut b);
    assert_eq!(token.give_back(), Wake::One);
    // Its turn is over: it draws again, and nobody else waits.
    let mut steps = Vec::new();
    while !matches!(steps.last(), Some(Step::Taken(_))) {
        steps.push(token.look(B, &mut b));
        assert!(steps.len() < 10, "{steps:?}");
    }
    assert_eq!(token.process(), 20);
}

#[test]
fn a_thread_of_the_image_before_is_dead_although_its_id_lives() {
    let token = held_by(A);
    token.abandon(B.thread);
    assert_eq!(token.try_take(A), Err(Refused::Reentered));
    token.abandon(A.thread);
    assert_eq!(token.try_take(A), Err(Refused::Other));
    let mut ticket = None;
    let word = asleep(&token, A, &mut ticket);
    let step = token.waited_in_vain(A, ticket, word, |thread| thread < 1 << 22);
    assert_eq!(step, Step::Taken(TokenTaken { from_the_dead: true, swapped: false }));
}

#[test]
fn d3_who_only_looks_does_not_get_control() {
    let token = held_by(A);
    token.give_back();
    assert!(token.try_borrow(B.thread) && !token.try_borrow(C.thread));
    assert_eq!(token.try_take(B), Err(Refused::Reentered));
    assert_eq!(token.give_back(), Wake::Nobody);
    assert_eq!((token.process(), token.swaps()), (10, 0));
}

#[test]
fn a_claim_that_gives_up_leaves_its_place_to_the_next() {
    let token = held_by(A);
    let (mut b, mut c) = (None, None);
    asleep(&token, B, &mut b);
    asleep(&token, C, &mut c);
    token.give_up(b.unwrap());
    assert_eq!(token.give_back(), Wake::All);
    assert_eq!(token.look(C, &mut c), Step::Taken(SWAPPED));
    // Its turn has come already.
    let (mut a, mut b) = (None, None);
    asleep(&token, B, &mut b);
    asleep(&token, A, &mut a);
    assert_eq!(token.give_back(), Wake::All);
    token.give_up(b.unwrap());
    assert_eq!(token.look(A, &mut a), Step::Taken(SWAPPED));
    // And as the only one.
    let mut b = None;
    asleep(&token, B, &mut b);
    token.give_up(b.unwrap());
    token.give_back();
    let mut c = None;
    assert_eq!(token.look(C, &mut c), Step::Taken(SWAPPED));
}
