//! Two ends with RDMA under random schedules: two senders and two receivers at each, any mix of
//! sizes, of blocking and non-blocking calls, and of ends with RDMA read, write, both or neither;
//! scans, signals, failed operations, resizes, and a crash at any step.
//!
//! Always: the stream whole and in order; credit never negative and no buffer over-posted; one
//! owner of each buffer, which nobody touches after its call returned; everything deregistered at
//! the end; no deadlock.

use crate::link::Link;
use crate::peer::{Peer, Shape, Turn, THREADS};
use crate::receiver::{own_byte, Receiver};
use crate::rng::Rng;
use crate::schedules;
use crate::sender::{Chances, Sender};
use sanshim_core::session::transfer::Abilities;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// So many steps without any effect mean that nothing will ever happen again.
const QUIET: usize = 30_000;
const MOST_STEPS: usize = 5_000_000;

struct World {
    peers: [Peer; 2],
    senders: [[Sender; THREADS]; 2],
    receivers: [[Receiver; THREADS]; 2],
    /// `links[i]` carries what end i sends.
    links: [Link; 2],
    rng: Rng,
    steps: usize,
    delivered: u64,
    /// The modes, by number, that a sender was seen in.
    modes: [bool; 4],
    /// So many steps of threads of each kind, at each end, until one that holds its lock is killed.
    kills: [[Option<usize>; 2]; 2],
}

impl World {
    fn new(rng: &mut Rng, shape: &Shape, totals: [u64; 2], chances: &Chances) -> World {
        let [a, b] = totals;
        let link = || Link::new(shape.slots, shape.largest_payload as usize, shape.send_buffer, 0);
        let alike = abilities(rng);
        let mixed = rng.percent(30);
        let mut peer = |number, totals| {
            let abilities = if mixed { abilities(rng) } else { alike };
            let mut peer = Peer::new(number, shape, abilities, totals);
            peer.short_of_memory = rng.below(3) as u32;
            for (at, byte) in peer.incoming.iter_mut().enumerate() {
                *byte = own_byte(at);
            }
            peer
        };
        let peers = [peer(0, [a, b]), peer(1, [b, a])];
        let mut thread = |number| {
            let largest = [20, 100, 300, 700];
            let blocking = [0, 50, 90, 100];
            let mut any = |of: [usize; 4]| of[rng.below(4)];
            let sender = Sender::new(number, any(largest), any(blocking), chances);
            (sender, Receiver::new(number, any(largest), any(blocking), chances))
        };
        let [[a, b], [c, d]] = [0, 1].map(|_| [0, 1].map(&mut thread));
        let mut receivers = [[a.1, b.1], [c.1, d.1]];
        if rng.percent(20) {
            // Small receives are seldom all large by chance, and lead to another mode.
            receivers.iter_mut().flatten().for_each(Receiver::receives_much);
        }
        World {
            peers,
            senders: [[a.0, b.0], [c.0, d.0]],
            receivers,
            links: [link(), link()],
            rng: Rng::new(rng.next()),
            steps: 0,
            delivered: 0,
            modes: [false; 4],
            kills: [[None; 2]; 2],
        }
    }

    /// Kills a thread that holds its lock, if it is time; whoever of its end comes next takes that over.
    fn kill(kills: &mut Option<usize>, die: impl FnOnce() -> bool) -> bool {
        match kills {
            Some(0) if die() => *kills = None,
            Some(steps) => {
                *steps = steps.saturating_sub(1);
                return false;
            }
            None => return false,
        }
        true
    }

    fn step(&mut self) {
        self.steps += 1;
        assert!(self.steps < MOST_STEPS, "it never ends: {}", self.describe());
        let number = self.rng.below(2);
        let [a, b] = &mut self.peers;
        let (me, other) = if number == 0 { (a, b) } else { (b, a) };
        let [a, b] = &mut self.links;
        let (out, inc) = if number == 0 { (a, b) } else { (b, a) };
        let chosen = self.rng.below(3 * THREADS);
        let mut turn = Turn { me, other, out, inc, rng: &mut self.rng };
        match (chosen / THREADS, chosen % THREADS) {
            (0, _) => self.delivered += u64::from(turn.out.deliver(turn.rng)),
            _ if turn.me.dead => {}
            (kind, thread) => {
                let (sender, receiver) =
                    (&mut self.senders[number][thread], &mut self.receivers[number][thread]);
                let kills = &mut self.kills[number][kind - 1];
                if turn.rng.percent(20) {
                    turn.me.succeed_the_dead(turn.other);
                }
                match kind {
                    1 if Self::kill(kills, || sender.die(&mut turn)) => {}
                    1 => sender.step(&mut turn),
                    _ if Self::kill(kills, || receiver.die(&mut turn)) => {}
                    _ => receiver.step(&mut turn),
                }
            }
        }
        self.modes[self.peers[number].sending.observer().mode() as usize] = true;
        for peer in &self.peers {
            let unread = peer.session.expected().wrapping_sub(peer.next_read) as usize;
            assert!(usize::from(peer.session.posted()) + unread <= peer.shape.slots, "over-posted");
            assert!(peer.session.credit() as usize <= peer.shape.slots);
        }
        for [peer, sender] in [[0, 1], [1, 0]].map(|ends| ends.map(|end| &self.peers[end])) {
            let (key, moved) = sender.announced;
            let rest = peer.receiving.rest().filter(|rest| rest.key == key);
            assert!(rest.is_none_or(|rest| rest.taken <= moved), "of what was announced {rest:?}");
        }
    }

    /// What only grows while anything happens.
    fn effects(&self) -> u64 {
        let peers = self.peers.iter().map(|peer| {
            let sent = u64::from(peer.session.last_sent()) + u64::from(peer.sending.scans());
            sent + peer.sent + peer.received + peer.returned
        });
        peers.sum::<u64>() + self.delivered
    }

    fn run(&mut self, done: impl Fn(&World) -> bool) -> bool {
        let (mut quiet, mut before) = (0, self.effects());
        while quiet < QUIET {
            if done(self) {
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
        let ends = [0, 1].map(|i| {
            let (peer, out) = (&self.peers[i], &self.links[i]);
            format!(
                "\n{i}: senders {:?}, receivers {:?}, sent {} of {}, received {} of {}, credit {}, due \
                 {:?}, asking {}, send buffer {} free, rest {:?}, advertised {:?}, mode {:?}, {:?}",
                self.senders[i].each_ref().map(Sender::describe),
                self.receivers[i].each_ref().map(Receiver::describe),
                peer.sent,
                peer.total,
                peer.received,
                peer.arrived.len(),
                peer.session.credit(),
                peer.due,
                peer.resize.is_asking(),
                out.space(),
                peer.receiving.rest(),
                peer.receiving.advertised(),
                peer.sending.observer().mode(),
                peer.abilities,
            )
        });
        ends.concat()
    }

    fn senders(&self) -> impl Iterator<Item = &Sender> {
        self.senders.iter().flatten()
    }

    fn receivers(&self) -> impl Iterator<Item = &Receiver> {
        self.receivers.iter().flatten()
    }

    fn is_over(&self) -> bool {
        let idle = self.senders().all(Sender::is_idle) && self.receivers().all(Receiver::is_idle);
        idle && self.peers.iter().all(|peer| peer.delivered == peer.arrived.len() as u64)
    }

    fn run_to_the_end(&mut self) {
        // The programs hang, if they do, although nothing interrupts or pauses them any more.
        let done = self.run(World::is_over);
        assert!(done, "deadlock:{}", self.describe());
        let [a, b] = &mut self.peers;
        a.succeed_the_dead(b);
        b.succeed_the_dead(a);
        self.check_end();
    }

    fn check_end(&mut self) {
        for peer in &self.peers {
            assert!(peer.readable.is_closed() && peer.writable.is_closed(), "left registered");
            assert!(peer.receiving.advertised().is_none());
            assert!(!peer.send_locked && !peer.receive_locked);
            assert!(peer.arrived.iter().all(|&arrived| arrived));
        }
    }

    /// Both ends take in and send all that is still due; nothing is left half done.
    fn settle(&mut self) {
        for _ in 0..200 {
            for number in 0..2 {
                let [a, b] = &mut self.links;
                let (out, inc) = if number == 0 { (a, b) } else { (b, a) };
                while out.deliver(&mut self.rng) {}
                let peer = &mut self.peers[number];
                peer.absorb(inc);
                peer.update_credit(out);
                peer.send_due(out);
                if peer.resize.has_answer() {
                    peer.obey_resize(out);
                }
            }
        }
        for peer in &self.peers {
            assert!(!peer.due.any(), "still due: {}", self.describe());
            assert!(!peer.resize.is_asking(), "asks for ever: {}", self.describe());
            assert_eq!(peer.receiving.rest(), None, "nothing is announced any more");
        }
    }
}

fn abilities(rng: &mut Rng) -> Abilities {
    let operations = [(true, true), (true, true), (true, false), (false, true), (false, false)];
    let (read, write) = operations[rng.below(operations.len())];
    Abilities { threshold: [16, 64, 150][rng.below(3)], read, write }
}

fn shape(rng: &mut Rng) -> Shape {
    let payload = rng.range(40, 120) as u32;
    Shape {
        slots: [4, 8, 16][rng.below(3)],
        payload,
        largest_payload: payload * [1, 4][rng.below(2)],
        send_buffer: rng.range(1, 400),
    }
}

fn chances(rng: &mut Rng) -> Chances {
    Chances {
        interrupt: [0, 0, 1, 5][rng.below(4)],
        scan: [1, 5, 30][rng.below(3)],
        fail: [0, 0, 3, 20][rng.below(4)],
        pause: [0, 50, 95][rng.below(3)],
        settle: [0, 0, 2][rng.below(3)],
    }
}

fn totals(rng: &mut Rng) -> [u64; 2] {
    let mut totals = [0, 1].map(|_| rng.below(4000) as u64);
    if rng.percent(40) {
        totals[rng.below(2)] = 0;
    }
    totals
}

/// S3–S5, A3–A14: every byte arrives, in order, whatever the programs do.
#[test]
fn rdma_streams_arrive_whole() {
    let happened: [AtomicU64; 9] = Default::default();
    let [reads, writes, scans, dropped, rides, modes @ ..] = &happened;
    let many = schedules(1500, |rng| {
        let (shape, chances, totals) = (shape(rng), chances(rng), totals(rng));
        let mut world = World::new(rng, &shape, totals, &chances);
        world.run_to_the_end();
        world.settle();
        reads.fetch_add(world.receivers().map(|r| r.reads).sum(), Relaxed);
        writes.fetch_add(world.senders().map(|s| s.writes).sum(), Relaxed);
        for peer in &world.peers {
            scans.fetch_add(peer.sending.scans().into(), Relaxed);
            dropped.fetch_add(peer.sending.advertisements().1.into(), Relaxed);
            rides.fetch_add(peer.rides, Relaxed);
        }
        for (mode, seen) in modes.iter().zip(world.modes) {
            mode.fetch_add(seen.into(), Relaxed);
        }
    });
    assert!(!many || happened.iter().all(|times| times.load(Relaxed) > 0), "{happened:?}");
}

/// A9: small fragmented sends both ways: both ends ask for larger buffers, often at once.
#[test]
fn resizes_collide_and_end() {
    let (grown, collisions) = (AtomicU64::new(0), AtomicU64::new(0));
    let many = schedules(300, |rng| {
        let mut shape = shape(rng);
        shape.largest_payload = shape.payload * 4;
        shape.send_buffer = rng.range(150, 400);
        let chances = chances(rng);
        let mut world = World::new(rng, &shape, [12_000, 12_000], &chances);
        for peer in &mut world.peers {
            peer.abilities.threshold = 400;
        }
        for sender in world.senders.iter_mut().flatten() {
            sender.largest = 2 * shape.payload as usize;
            sender.blocking = 100;
        }
        world.run_to_the_end();
        world.settle();
        for peer in &world.peers {
            grown.fetch_add(peer.resize.times_grown().into(), Relaxed);
            collisions.fetch_add(peer.collisions, Relaxed);
        }
    });
    assert!(!many || grown.into_inner() > 0, "no resize happened");
    assert!(!many || collisions.into_inner() > 0, "no requests met");
}

/// D9, D12: threads that die with a lock, as processes do that share the end: nothing is sent twice or
/// missing, and only what a receiver had taken is lost with it.
#[test]
fn rdma_goes_on_after_threads_that_died_with_a_lock() {
    let killed: [AtomicU64; 2] = Default::default();
    let many = schedules(1000, |rng| {
        let (shape, mut chances, totals) = (shape(rng), chances(rng), totals(rng));
        chances.settle = 0;
        let mut world = World::new(rng, &shape, totals, &chances);
        for kills in world.kills.iter_mut().flatten() {
            *kills = rng.percent(60).then(|| rng.below(300));
        }
        let before = world.kills;
        world.run_to_the_end();
        world.settle();
        for (kind, killed) in killed.iter().enumerate() {
            let gone = (0..2)
                .filter(|&end| before[end][kind].is_some() && world.kills[end][kind].is_none());
            killed.fetch_add(gone.count() as u64, Relaxed);
        }
    });
    assert!(!many || killed.iter().all(|times| times.load(Relaxed) > 0), "{killed:?}");
}

/// An end that dies at any step: the other loses nothing that a send had returned for, gets nothing
/// that was not sent, and has all its memory back.
#[test]
fn rdma_with_a_dead_end_ends() {
    schedules(1000, |rng| {
        let (shape, chances, totals) = (shape(rng), chances(rng), totals(rng));
        let mut world = World::new(rng, &shape, totals, &chances);
        for _ in 0..rng.below(12_000) {
            world.step();
        }
        let dying = rng.below(2);
        world.peers[dying].dead = true;
        let other = 1 - dying;
        let over = |world: &World| {
            let stopped = world.senders[other].iter().all(Sender::is_stopped);
            stopped && world.receivers[other].iter().all(Receiver::is_stopped)
        };
        let ends = world.run(over);
        assert!(ends, "hangs:{}", world.describe());
        let (dead, peer) = (&world.peers[dying], &world.peers[other]);
        assert!(peer.delivered >= dead.returned, "lost:{}", world.describe());
        let whole = peer.arrived.iter().take_while(|&&arrived| arrived).count() as u64;
        assert_eq!(whole, peer.delivered, "a gap:{}", world.describe());
        assert!(peer.readable.is_closed() && peer.writable.is_closed(), "left registered");
    });
}
