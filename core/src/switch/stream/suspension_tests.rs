//! The suspended session between two ends that share memory.

use super::tests::die_sending;
use super::tests::receive;
use super::tests::send;
use super::tests::Ends;
use super::tests::GEOMETRY;
use super::Stream;
use crate::provider::shm::{Refusal, Right};
use crate::sys::lock_order::HookCall;
use crate::sys::process;

fn takes_in(stream: &Stream) {
    let _call = HookCall::begin();
    let _held = stream.lock_receive().unwrap();
    stream.absorb().unwrap();
}

/// The left end asks, and the right one answers.
fn suspend(ends: &Ends) {
    let (left, right) = (ends.left, ends.right);
    let _held = (left.lock_send().unwrap(), left.lock_receive().unwrap());
    assert!(left.ask_to_suspend().is_some());
    takes_in(&right);
    right.try_answer_suspension();
    left.look_for_suspension().unwrap();
    assert!(left.endpoint.suspension.is_suspended() && right.is_held_back());
}

fn resume(ends: &Ends) {
    let held = ends.left.lock_send().unwrap();
    ends.left.resume();
    drop(held);
    takes_in(&ends.right);
    assert!(!ends.left.is_held_back() && !ends.right.is_held_back());
}

#[test]
fn d5_what_is_sent_meanwhile_is_kept_as_far_as_there_is_room() {
    let ends = Ends::new();
    suspend(&ends);
    let before = ends.right.endpoint.session.last_sent();
    let (mut sent, most) = (0, GEOMETRY.send_buffer as usize);
    loop {
        match send(&ends.right, &[7; 1000]).bytes {
            0 => break,
            n => sent += n,
        }
    }
    assert_eq!((sent, ends.right.endpoint.session.last_sent()), (most, before));
    resume(&ends);
    assert_eq!(receive(&ends.left, 2 * most).0.len(), most);
    assert_eq!(send(&ends.right, b"then").bytes, 4);
    assert_eq!(receive(&ends.left, 9).0, b"then");
    assert_eq!(ends.right.endpoint.session.last_sent(), before + 1, "in a message again");
}

#[test]
fn d5_a_receive_gets_what_had_arrived_and_then_waits() {
    let ends = Ends::new();
    for _ in 0..10 {
        send(&ends.left, b"before");
    }
    suspend(&ends);
    let sent = ends.right.endpoint.session.last_sent();
    assert_eq!(receive(&ends.right, 100).0.len(), 60);
    assert_eq!(receive(&ends.right, 100).0.len(), 0);
    // A connection that is torn down now would lose a credit update; it is told afterwards.
    assert_eq!(ends.right.endpoint.session.last_sent(), sent);
    assert!(ends.right.endpoint.session.credit_update_due());
    resume(&ends);
    assert!(!ends.right.endpoint.session.credit_update_due());
    assert_eq!(ends.right.endpoint.session.last_sent(), sent + 1);
}

#[test]
fn d7_what_the_old_controller_had_posted_is_withdrawn() {
    let ends = Ends::new();
    let (mut posted, from) = ([0u8; 8], [9u8; 8]);
    for end in [&ends.left, &ends.right] {
        end.own().writable.0.register(1, posted.as_mut_ptr() as u64, 8, Right::Write);
    }
    suspend(&ends);
    for end in [&ends.left, &ends.right] {
        // SAFETY: these bytes are ours.
        let write = unsafe { end.own().writable.0.write(process::pid(), 1, 8, from.as_ptr(), 8) };
        assert_eq!(write, Err(Refusal::NotRegistered));
    }
    assert_eq!(posted, [0; 8]);
}

#[test]
fn d4_an_end_with_a_transfer_under_way_does_not_answer() {
    let Ends { left, right } = Ends::new();
    right.endpoint.send.transfers.begin(5000);
    let held = (left.lock_send().unwrap(), left.lock_receive().unwrap());
    assert!(left.ask_to_suspend().is_some());
    takes_in(&right);
    right.try_answer_suspension();
    left.look_for_suspension().unwrap();
    assert!(!left.endpoint.suspension.is_suspended() && right.is_held_back());
    right.endpoint.send.transfers.forget();
    right.try_answer_suspension();
    left.look_for_suspension().unwrap();
    assert!(left.endpoint.suspension.is_suspended());
    drop(held);
}

#[test]
fn d12_whoever_takes_over_from_the_dead_resumes() {
    for answers in [false, true] {
        let Ends { left, right } = Ends::new();
        die_sending(left, move || left.ask_to_suspend());
        takes_in(&right);
        if answers {
            right.try_answer_suspension();
        }
        send(&right, b"kept");
        assert_eq!(send(&left, b"next").bytes, 4);
        assert_eq!(receive(&right, 9).0, b"next");
        assert_eq!(receive(&left, 9).0, b"kept");
        assert!(!left.is_held_back() && !right.is_held_back());
    }
}

/// Both ends go on as if nothing had been.
fn goes_on(ends: &Ends) {
    let (left, right) = (ends.left, ends.right);
    for round in 0..3 {
        assert_eq!(send(&left, b"next").bytes, 4);
        assert_eq!(send(&right, b"back").bytes, 4);
        assert_eq!(receive(&right, 9).0, b"next", "round {round}");
        assert_eq!(receive(&left, 9).0, b"back", "round {round}");
    }
    assert!(!left.is_held_back() && !right.is_held_back());
    suspend(ends);
    resume(ends);
}

#[test]
fn d12_who_asks_may_die_at_any_step() {
    for step in 0..6 {
        let ends = Ends::new();
        let (left, right) = (ends.left, ends.right);
        let dies = std::thread::spawn(move || {
            std::mem::forget((left.lock_send().unwrap(), left.lock_receive().unwrap()));
            let steps: [&dyn Fn(); 5] = [
                &|| assert!(left.ask_to_suspend().is_some()),
                &|| takes_in(&right),
                &|| right.try_answer_suspension(),
                &|| left.look_for_suspension().unwrap(),
                &|| {
                    let _ = left.resume();
                },
            ];
            steps[..step].iter().for_each(|step| step());
        });
        dies.join().unwrap();
        goes_on(&ends);
    }
}

#[test]
fn d12_who_answers_may_die_before_it_notes_that() {
    let ends = Ends::new();
    let (left, right) = (ends.left, ends.right);
    let held = (left.lock_send().unwrap(), left.lock_receive().unwrap());
    assert!(left.ask_to_suspend().is_some());
    takes_in(&right);
    die_sending(right, move || {
        let answer = right.endpoint.suspension.answer().unwrap();
        assert!(right.send_control(&answer).is_ok());
    });
    // Its successor answers again, which is one answer too many.
    assert_eq!(send(&right, b"kept").bytes, 4);
    left.look_for_suspension().unwrap();
    assert!(left.endpoint.suspension.is_suspended());
    assert!(left.resume() || !left.is_held_back());
    drop(held);
    assert_eq!(receive(&right, 9).0, b"");
    assert_eq!(receive(&left, 9).0, b"kept");
    goes_on(&ends);
}
