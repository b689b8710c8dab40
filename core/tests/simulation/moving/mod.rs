//! A connection moves to the SAN and back, any number of times, while both ends send and receive; and an end dies at any step of
//! that: in the middle of agreeing, of the turn, of a ring, of the way back. What decides is the session's own files, each
//! of whose atomic operations is a step here, as is each system call.
//!
//! Always: each stream whole and in order, and after a death all of it that was sent before; nobody asleep for ever.

#![allow(unreachable_pub, dead_code, clippy::duplicate_mod)]

mod back;
mod end;
mod kernel;
mod schedule;
mod segment;
mod sync;
mod transfer;

#[path = "../../../src/session/agreement.rs"]
mod agreement;
#[path = "../../../src/session/direction.rs"]
mod direction;
#[path = "../../../src/session/end_word.rs"]
mod end_word;
#[path = "../../../src/session/select_counter.rs"]
mod select_counter;
#[path = "../../../src/session/turn.rs"]
mod turn;
#[path = "../../../src/session/way_back.rs"]
mod way_back;
#[path = "../../../src/session/way_in.rs"]
mod way_in;
#[path = "../../../src/session/way_out.rs"]
mod way_out;

use crate::rng::Rng;
use crate::schedules;
use end::{Behaviour, End, Place};
use kernel::Kernel;
use schedule::{Ended, Schedule};
use segment::CAPACITY;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

fn behaviour(rng: &mut Rng, recalls: bool) -> Behaviour {
    Behaviour {
        total: rng.range(1, 200) as u64,
        largest: [1, 4, 16, 60][rng.below(4)],
        moves: [10, 40, 100][rng.below(3)],
        returns: [0, 5, 40][rng.below(3)],
        waits: false,
        recalls,
        pulls: [0, 50, 100][rng.below(3)],
        overfills: rng.percent(20),
        declines: if rng.percent(30) { 20 } else { 0 },
    }
}

/// One schedule, in which an end dies at this step.
fn run(rng: &mut Rng, dies: Option<(usize, usize)>) -> ([End; 2], Ended) {
    let most = [8, 60][rng.below(2)];
    let mut room = rng.range(2, most);
    let recalls = rng.percent(30);
    let mut behaviours = [behaviour(rng, recalls), behaviour(rng, recalls)];
    if !recalls && rng.percent(40) {
        // One sends and waits for what its peer makes of it, without a call; that only receives. What is sent again has
        // room: the rest would go with the next call.
        room += CAPACITY as usize + 2;
        let sends = rng.below(2);
        behaviours[sends].waits = true;
        behaviours[1 - sends].total = 0;
    }
    let [first, second] = behaviours;
    let kernel = Kernel::new(room, room.div_ceil(2));
    let place = Arc::new(Place::default());
    let ends = [End::new(0, place.clone(), first), End::new(1, place, second)];
    let [a, b] = &ends;
    let [from_a, from_b] = [a.behaviour.total, b.behaviour.total];
    let ended = Schedule::new(Rng::new(rng.next()), kernel, dies).run([
        Box::new(|| a.send_all()),
        Box::new(|| a.receive_all(from_b)),
        Box::new(|| b.send_all()),
        Box::new(|| b.receive_all(from_a)),
    ]);
    (ends, ended)
}

#[test]
fn a_connection_goes_there_and_back() {
    let (turns, returns, pulls) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let many = schedules(400, |rng| {
        let (ends, _) = run(rng, None);
        for (end, other) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
            assert_eq!(end.sent.load(Relaxed), end.behaviour.total);
            assert_eq!(other.read(), end.behaviour.total);
            turns.fetch_add(end.turns.load(Relaxed), Relaxed);
            returns.fetch_add(end.returned.load(Relaxed), Relaxed);
            pulls.fetch_add(end.pulled.load(Relaxed), Relaxed);
        }
    });
    let happened = [turns, returns, pulls].map(AtomicU32::into_inner);
    assert!(!many || happened.iter().all(|&times| times > 30), "{happened:?}");
}

/// D2, D12, and what TCP does: whatever an end had sent when it was killed arrives, and then the end.
#[test]
fn an_end_that_dies_on_its_way() {
    let stages = Mutex::new(BTreeSet::new());
    let many = schedules(2000, |rng| {
        let scale = [100, 400, 1500, 5000][rng.below(4)];
        let dies = (rng.below(2), rng.below(scale));
        let (ends, ended) = run(rng, Some(dies));
        let Some(dead) = ended.dead else { return };
        let (dead, other) = (&ends[dead], &ends[1 - dead]);
        stages.lock().unwrap().insert(dead.stage());
        let (sent, read) = (dead.sent.load(Relaxed), other.read());
        assert!(
            read <= dead.attempted.load(Relaxed),
            "{read} bytes, of which some were never sent"
        );
        // TCP too loses what a reset overtakes; and who is dead sends nothing again.
        let is_whole = ended.lost == 0 && !other.behaviour.recalls && !dead.behaviour.overfills;
        assert!(!is_whole || read >= sent, "{read} of {sent} bytes");
        assert!(other.ended.load(Relaxed) || read == dead.behaviour.total, "it saw no end");
    });
    const ALL: [&str; 11] = [
        "advertised",
        "confirmed",
        "entered",
        "left",
        "offered",
        "on tcp",
        "read out",
        "san",
        "taken",
        "turned",
        "turned by the peer",
    ];
    let stages: Vec<_> = stages.into_inner().unwrap().into_iter().collect();
    assert!(!many || ALL.iter().all(|stage| stages.contains(stage)), "only {stages:?}");
}
