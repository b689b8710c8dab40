//! Deterministic simulation of two sessions over a simulated provider: random schedules of
//! several threads per side, sizes, delays, publication out of sequence order, crashes; in
//! `transfers.rs`, of two ends with RDMA; in `processes/`, of processes that share an end; in `moving/`, of connections that
//! go to the SAN and back.
//!
//! A failure prints its seed and how to replay it. `SANSHIM_SCHEDULES=n` sets how many schedules each
//! test runs, `SANSHIM_FIRST_SEED=n` the first one's seed, `SANSHIM_THREADS=n` how many run at a time.

mod link;
mod memory;
mod moving;
mod peer;
mod processes;
mod receiver;
mod rng;
mod sender;
mod side;
mod transfers;

use link::Link;
use rng::Rng;
use side::{Behaviour, Shape, Side};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// So many steps without any effect mean that nothing will ever happen again.
const QUIET: usize = 4000;
const MOST_STEPS: usize = 5_000_000;

struct World {
    sides: [Side; 2],
    /// `links[i]` carries what side i sends.
    links: [Link; 2],
    rng: Rng,
    steps: usize,
}

impl World {
    fn new(mut rng: Rng, shape: &Shape, behaviours: &[Behaviour; 2], hostile: usize) -> World {
        let link = |spoil| Link::new(shape.slots, shape.max_payload, shape.send_buffer, spoil);
        let mut sides = [0, 1].map(|i| Side::new(i, shape, &behaviours[i]));
        sides[0].honest_peer = hostile == 0;
        let seed = rng.next();
        World { sides, links: [link(0), link(hostile)], rng: Rng::new(seed), steps: 0 }
    }

    fn step(&mut self) -> bool {
        self.steps += 1;
        assert!(self.steps < MOST_STEPS, "it never ends");
        let number = self.rng.below(2);
        let [first, second] = &mut self.links;
        let (out, incoming) = if number == 0 { (first, second) } else { (second, first) };
        let side = &mut self.sides[number];
        let chosen = self.rng.below(side.threads() + 1);
        if chosen == side.threads() {
            return out.deliver(&mut self.rng);
        }
        side.step(chosen, out, incoming, &mut self.rng)
    }

    /// Runs until `done` or until nothing happens any more; true: done.
    fn run(&mut self, done: impl Fn(&World) -> bool) -> bool {
        let mut quiet = 0;
        while quiet < QUIET {
            if done(self) {
                return true;
            }
            quiet = if self.step() { 0 } else { quiet + 1 };
        }
        false
    }

    fn arrived(&self, to: usize) -> bool {
        self.sides[to].read == self.sides[1 - to].behaviour.total
    }

    fn run_to_the_end(&mut self) {
        let done = self.run(|world| world.arrived(0) && world.arrived(1));
        let [a, b] = &self.sides;
        assert!(
            done,
            "deadlock: written {} of {} and {} of {}, read {} and {}, credits {} and {}",
            a.written,
            a.behaviour.total,
            b.written,
            b.behaviour.total,
            a.read,
            b.read,
            a.session.credit(),
            b.session.credit()
        );
    }
}

fn shape(rng: &mut Rng) -> Shape {
    Shape {
        slots: [4, 8, 16][rng.below(3)],
        max_payload: rng.range(1, 64),
        send_buffer: if rng.percent(30) { 0 } else { rng.range(1, 256) },
    }
}

fn behaviour(rng: &mut Rng) -> Behaviour {
    Behaviour {
        threads: rng.range(1, 3),
        total: rng.below(1500) as u64,
        largest_write: [1, 8, 64, 300][rng.below(4)],
        largest_read: [1, 8, 64, 300][rng.below(4)],
        reads: [20, 50, 80][rng.below(3)],
        reading: true,
        ping: None,
        pong: false,
        late: rng.percent(30),
    }
}

fn number_from_environment(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}

/// Runs `schedule` with many seeds, or with the one of `SANSHIM_SEED`; true: with so many that what
/// is rare must have happened.
fn schedules<F: Fn(&mut Rng) + Sync>(count: u64, schedule: F) -> bool {
    let environment = number_from_environment;
    let first = environment("SANSHIM_FIRST_SEED").unwrap_or(0);
    let (first, count) = match environment("SANSHIM_SEED") {
        Some(seed) => (seed, 1),
        None => (first, environment("SANSHIM_SCHEDULES").unwrap_or(count)),
    };
    let next = AtomicU64::new(0);
    let run = || {
        while let Some(seed) = Some(next.fetch_add(1, Relaxed)).filter(|&n| n < count) {
            let seed = first + seed;
            let run = || schedule(&mut Rng::new(seed));
            if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
                next.store(count, Relaxed);
                eprintln!("failed; to see the same run again: {}", replay::<F>(seed));
                resume_unwind(panic);
            }
        }
    };
    let threads = environment("SANSHIM_THREADS").unwrap_or(1);
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        run();
        for other in others {
            other.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
    });
    count > 100
}

/// The command that runs one schedule of the test that `F` is a closure of.
fn replay<F>(seed: u64) -> String {
    let path = std::any::type_name::<F>().split("::").skip(1);
    let test: Vec<_> = path.take_while(|part| !part.starts_with('{')).collect();
    let command = "cargo test --release -p sanshim-core --test simulation -- --exact";
    format!("SANSHIM_SEED={seed} {command} {}", test.join("::"))
}

/// A1, A15, A16, A17: both directions, one way, any speed: every byte arrives, in order.
#[test]
fn streams_arrive_whole() {
    schedules(1000, |rng| {
        let mut behaviours = [behaviour(rng), behaviour(rng)];
        if rng.percent(40) {
            behaviours[rng.below(2)].total = 0;
        }
        World::new(Rng::new(rng.next()), &shape(rng), &behaviours, 0).run_to_the_end();
    });
}

/// A15, A16: request and response renew each other's credit.
#[test]
fn ping_pong_never_stalls() {
    schedules(500, |rng| {
        let mut behaviours = [behaviour(rng), behaviour(rng)];
        behaviours[0].ping = Some(rng.range(1, 100) as u64);
        behaviours[1].pong = true;
        behaviours[1].total = behaviours[0].total;
        World::new(Rng::new(rng.next()), &shape(rng), &behaviours, 0).run_to_the_end();
    });
}

/// Request and response in single messages need no credit update at all (A15).
#[test]
fn ping_pong_in_messages_needs_no_credit_update() {
    schedules(100, |rng| {
        let size = rng.range(1, 32) as u64;
        let end = Behaviour {
            threads: 1,
            total: size * 100,
            largest_write: 32,
            largest_read: 64,
            reads: 50,
            reading: true,
            ping: None,
            pong: false,
            late: false,
        };
        let mut behaviours = [end.clone(), end];
        behaviours[0].ping = Some(size);
        behaviours[1].pong = true;
        let shape = Shape { slots: 128, max_payload: 32, send_buffer: 0 };
        let mut world = World::new(Rng::new(rng.next()), &shape, &behaviours, 0);
        world.run_to_the_end();
        assert_eq!([world.sides[0].updates(), world.sides[1].updates()], [0, 0]);
    });
}

/// A19, A17: a side that does not read stops its peer's sending and nothing else; once it reads,
/// all arrives.
#[test]
fn a_side_that_never_reads_stops_only_its_own_direction() {
    schedules(400, |rng| {
        let mut shape = shape(rng);
        shape.send_buffer = rng.range(1, 256);
        let mut behaviours = [behaviour(rng), behaviour(rng)];
        behaviours[0].total = 3000;
        behaviours[1].reading = false;
        let mut world = World::new(Rng::new(rng.next()), &shape, &behaviours, 0);
        assert!(!world.run(|world| world.sides[0].written == 3000));
        let room = (shape.slots * shape.max_payload + shape.send_buffer) as u64;
        let [a, b] = &world.sides;
        assert!(a.written >= shape.send_buffer as u64 && a.written <= room);
        assert_eq!(b.read, 0);
        assert!(world.arrived(0), "the direction that is read stopped too");
        world.sides[1].behaviour.reading = true;
        world.run_to_the_end();
    });
}

/// A side that dies at any step: what it had published arrives, nothing else, and the other
/// side's own sends do no harm.
#[test]
fn what_a_dead_side_had_sent_arrives() {
    schedules(500, |rng| {
        let mut behaviours = [behaviour(rng), behaviour(rng)];
        let dying = rng.below(2);
        // A message reserved and never published ends the stream early: see `late`.
        behaviours[dying].late = false;
        let mut world = World::new(Rng::new(rng.next()), &shape(rng), &behaviours, 0);
        for _ in 0..rng.below(3000) {
            world.step();
        }
        world.sides[dying].kill_all();
        assert!(world.sides[dying].is_dead());
        world.run(|_| false);
        assert_eq!(world.sides[1 - dying].read, world.sides[dying].written);
    });
}

/// One process of a side dies at any step, with whatever lock it held; the others take over and
/// nothing is lost or doubled.
#[test]
fn a_dead_process_of_a_side_is_succeeded() {
    schedules(500, |rng| {
        let mut behaviours = [behaviour(rng), behaviour(rng)];
        for behaviour in &mut behaviours {
            behaviour.threads = 3;
            behaviour.late = false;
        }
        let mut world = World::new(Rng::new(rng.next()), &shape(rng), &behaviours, 0);
        for thread in 0..2 {
            for _ in 0..rng.below(1000) {
                world.step();
            }
            world.sides[rng.below(2)].kill(thread);
        }
        world.run_to_the_end();
    });
}

/// A peer that spoils its headers ends the connection at worst.
#[test]
fn a_hostile_peer_gets_an_error_at_worst() {
    let failed = AtomicU64::new(0);
    let many = schedules(500, |rng| {
        let behaviours = [behaviour(rng), behaviour(rng)];
        let hostile = rng.range(1, 30);
        let mut world = World::new(Rng::new(rng.next()), &shape(rng), &behaviours, hostile);
        // What we send after a lie of the peer may hit its unread messages: its own loss.
        world.sides[1].honest_peer = false;
        world.run(|world| world.sides[0].failed);
        failed.fetch_add(world.sides[0].failed.into(), Relaxed);
    });
    assert!(!many || failed.into_inner() > 0);
}
