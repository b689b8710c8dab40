//! Several processes of each end take turns under random schedules: they queue for control, move the
//! connection over a suspended session, are stopped, are killed at any step.
//!
//! Always: one controller of a direction at most; processes are served first in, first out; the stream whole and in
//! order; nothing registered by a process that does not control the socket, and nothing for RDMA at
//! either end while it moves; no deadlock.

mod end;
mod process;
mod provider;

use crate::rng::Rng;
use crate::schedules;
use end::End;
use process::{Chances, Family, Process};
use provider::{Kind, Provider};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Scans after which a suspended end takes its peer for dead.
const PATIENCE: u32 = 50;
const QUIET: usize = 60_000;
const MOST_STEPS: usize = 5_000_000;

struct World {
    ends: [End; 2],
    processes: [Vec<Process>; 2],
    /// Of each end, by token.
    passed: [[Vec<u32>; 2]; 2],
    provider: Provider,
    chances: Chances,
    rng: Rng,
    steps: usize,
    timed_out: u64,
}

impl World {
    fn new(rng: &mut Rng, kind: Kind) -> World {
        let slots = [4, 8, 16][rng.below(3)];
        let payload = rng.range(4, 60);
        let capacity = rng.range(1, 300);
        let mut end = |number| End::new(number, slots, payload, capacity, rng.below(1500) as u64);
        let ends = [end(0), end(1)];
        let processes = [0, 1].map(|end| {
            let count = [1, 2, 2, 3, 4][rng.below(5)];
            (0..count).map(|number| Process::new(end, number)).collect()
        });
        let chances = Chances {
            pause: [0, 30, 80][rng.below(3)],
            blocking: [0, 50, 100][rng.below(3)],
            give_up: [0, 0, 1, 10][rng.below(4)],
            rdma: [0, 30, 90][rng.below(3)],
            stop: [0, 0, 1][rng.below(3)],
            in_vain: [1, 5, 30][rng.below(3)],
        };
        World {
            ends,
            processes,
            passed: Default::default(),
            provider: Provider::new(kind),
            chances,
            rng: Rng::new(rng.next()),
            steps: 0,
            timed_out: 0,
        }
    }

    fn step(&mut self) {
        self.steps += 1;
        assert!(self.steps < MOST_STEPS, "it never ends: {}", self.describe());
        let e = self.rng.below(2);
        let chosen = self.rng.below(self.processes[e].len());
        let alive: Vec<bool> = self.processes[e].iter().map(|p| !p.is_dead()).collect();
        let token = self.processes[e][chosen].token();
        let waiting: Vec<Option<u32>> =
            self.processes[e].iter().map(|process| process.ticket(token)).collect();
        let (end, rng) = (&mut self.ends[e], &mut self.rng);
        let process = &mut self.processes[e][chosen];
        if process.stopped || rng.percent(self.chances.stop) {
            process.stopped = !process.is_dead() && !rng.percent(10);
        }
        if process.is_dead() || process.stopped || self.provider.broken {
            return;
        }
        let provider = &mut self.provider;
        if let Some(dead) = provider.lost {
            // Sooner or later an end hears of it; one that is suspended, only by waiting too long.
            let too_long = end.suspension.scan(PATIENCE);
            let suspended = dead != e && end.suspension.is_suspended_by_peer();
            provider.broken = too_long || (!suspended && rng.percent(2));
            self.timed_out += u64::from(too_long);
        }
        if rng.percent(50) {
            process.serve(end, provider, &alive, &self.chances, rng);
        } else {
            let passed = &mut self.passed[e][token];
            let mut family = Family { alive: &alive, waiting: &waiting, passed };
            process.step(end, provider, &mut family, &self.chances, rng);
        }
        self.check();
    }

    fn check(&self) {
        for end in &self.ends {
            let owner = self.provider.owner(end.number);
            for &(process, memory) in self.provider.registered(end.number) {
                assert_eq!(process, owner, "{memory:?} of a process without control");
                let moves = end.suspension.is_suspended();
                assert!(!moves || !memory.is_rdma(), "{memory:?} at the end that moves");
                let peer = &self.ends[1 - end.number].suspension;
                assert!(
                    !peer.is_suspended() || !memory.is_rdma(),
                    "{memory:?} while the peer moves"
                );
            }
            let both = self.ends.iter().all(|end| end.suspension.is_suspended());
            assert!(!both, "both ends move");
            assert!(end.session.credit() <= 16);
        }
    }

    fn kill(&mut self, e: usize, process: usize) {
        self.processes[e][process].die();
        self.provider.died(e, process);
    }

    fn effects(&self) -> u64 {
        let moved = |e: &End| e.read + e.written + u64::from(e.session.last_sent());
        self.ends.iter().map(moved).sum()
    }

    fn is_over(&self) -> bool {
        let [a, b] = &self.ends;
        a.read == b.total && b.read == a.total
    }

    /// Runs until all has arrived or nothing happens any more; true: all has.
    fn run(&mut self) -> bool {
        let (mut quiet, mut before) = (0, self.effects());
        while quiet < QUIET && !self.provider.broken {
            if self.is_over() {
                return true;
            }
            self.step();
            let now = self.effects();
            quiet = if now == before { quiet + 1 } else { 0 };
            before = now;
        }
        false
    }

    fn describe(&self) -> String {
        let ends = self.ends.iter().map(|end| {
            let processes = self.processes[end.number].iter().map(Process::describe);
            let registered = self.provider.registered(end.number);
            let processes = processes.collect::<Vec<_>>().join("; ");
            let owner = self.provider.owner(end.number);
            format!("\n{}\n  owner {owner}, {registered:?}\n  {processes}", end.describe())
        });
        ends.collect()
    }

    fn sum(&self, of: impl Fn(&Process) -> u64) -> u64 {
        self.processes.iter().flatten().map(of).sum()
    }
}

/// Both providers, with nobody killed.
fn take_turns(kind: Kind, happened: &[AtomicU64; 4], rng: &mut Rng) {
    let mut world = World::new(rng, kind);
    assert!(world.run(), "deadlock:{}", world.describe());
    let [suspensions, given_up, rebuilt, swaps] = happened;
    suspensions.fetch_add(world.sum(|p| p.suspensions), Relaxed);
    given_up.fetch_add(world.sum(|p| p.given_up), Relaxed);
    rebuilt.fetch_add(world.provider.rebuilt, Relaxed);
    let tokens = world.ends.iter().flat_map(|end| &end.tokens);
    let swapped = tokens.map(|token| u64::from(token.swaps())).sum();
    swaps.fetch_add(swapped, Relaxed);
}

/// D2, D4, D5, D7: processes that share the connection.
#[test]
fn processes_that_share_a_connection_take_turns() {
    let happened = Default::default();
    let many = schedules(500, |rng| take_turns(Kind::Shared, &happened, rng));
    let [suspensions, given_up, _, swaps] = happened.map(AtomicU64::into_inner);
    assert!(!many || suspensions > 0 && given_up > 0 && swaps > 0);
}

/// D8: the connection is torn down and built anew at every swap; no byte lost, none doubled.
#[test]
fn a_connection_that_is_rebuilt_for_each_process_loses_nothing() {
    let happened = Default::default();
    let many = schedules(500, |rng| take_turns(Kind::OfOneProcess, &happened, rng));
    let [suspensions, given_up, rebuilt, _] = happened.map(AtomicU64::into_inner);
    assert!(!many || suspensions > 0 && given_up > 0);
    assert_eq!(suspensions, rebuilt, "moved without a suspension");
}

/// D12: processes are killed at any step of anything. Where one of each end is left, and the connection
/// is shared, all that was written arrives.
#[test]
fn the_others_go_on_when_processes_are_killed() {
    let succeeded = AtomicU64::new(0);
    let many = schedules(500, |rng| {
        let mut world = World::new(rng, Kind::Shared);
        for _ in 0..rng.range(1, 6) {
            for _ in 0..rng.below(2000) {
                world.step();
            }
            let e = rng.below(2);
            let alive = |p: &&Process| !p.is_dead();
            let chosen = rng.below(world.processes[e].len());
            if world.processes[e].iter().filter(alive).count() > 1 {
                let in_the_middle = world.ends[e].suspension.is_asking();
                succeeded.fetch_add(in_the_middle.into(), Relaxed);
                world.kill(e, chosen);
            }
        }
        assert!(world.run(), "deadlock:{}", world.describe());
    });
    assert!(!many || succeeded.into_inner() > 0, "nobody was killed in the middle of a swap");
}

/// D12: a connection that belongs to a process ends with it, for a suspended peer when it has waited too
/// long; if that process was not in control, it goes on.
#[test]
fn a_connection_of_a_killed_process_ends() {
    let [broken, whole, timed_out] = [0; 3].map(AtomicU64::new);
    let many = schedules(500, |rng| {
        let mut world = World::new(rng, Kind::OfOneProcess);
        for _ in 0..rng.range(1, 4) {
            for _ in 0..rng.below(2000) {
                world.step();
            }
            if world.provider.lost.is_some() {
                break;
            }
            let e = rng.below(2);
            let chosen = rng.below(world.processes[e].len());
            world.kill(e, chosen);
        }
        let over = world.run();
        assert!(over || world.provider.broken, "deadlock:{}", world.describe());
        let count = if world.provider.broken { &broken } else { &whole };
        count.fetch_add(1, Relaxed);
        timed_out.fetch_add(world.timed_out, Relaxed);
    });
    let happened = [broken, whole, timed_out].map(AtomicU64::into_inner);
    assert!(!many || happened.iter().all(|&times| times > 0), "{happened:?}");
}
