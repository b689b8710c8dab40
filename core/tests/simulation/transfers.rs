//! Two ends with RDMA under random schedules: any mix of sizes, of blocking and non-blocking calls,
//! of read-only, write-only and full providers; scans, signals, failed operations, resizes and a
//! crash at any step.
//!
//! Always: the stream whole and in order; credit never negative and no buffer over-posted; one
//! owner of each buffer, which nobody touches after its call returned; everything deregistered at
//! the end; no deadlock.

use crate::link::Link;
use crate::peer::{Peer, Shape};
use crate::receiver::{own_byte, Receiver};
use crate::rng::Rng;
use crate::schedules;
use crate::sender::{Chances, Sender};
use sanshim_core::session::transfer::Abilities;
use sanshim_core::session::Mode;
use std::cell::Cell;

/// So many steps without any effect mean that nothing will ever happen again.
const QUIET: usize = 3000;
const MOST_STEPS: usize = 2_000_000;

struct World {
    peers: [Peer; 2],
    senders: [Sender; 2],
    receivers: [Receiver; 2],
    /// `links[i]` carries what end i sends.
    links: [Link; 2],
    rng: Rng,
    steps: usize,
    delivered: u64,
    /// The modes that the senders were seen in.
    modes: [bool; 4],
}

impl World {
    fn new(rng: &mut Rng, shape: &Shape, totals: [u64; 2], chances: &Chances) -> World {
        let link = || Link::new(shape.slots, shape.largest_payload as usize, shape.send_buffer, 0);
        let largest = |rng: &mut Rng| [20, 100, 300, 700][rng.below(4)];
        let blocking = |rng: &mut Rng| [0, 50, 90, 100][rng.below(4)];
        let mut world = World {
            peers: [0, 1].map(|number| Peer::new(number, shape)),
            senders: totals.map(|n| Sender::new(n, largest(rng), blocking(rng), chances)),
            receivers: [totals[1], totals[0]]
                .map(|n| Receiver::new(n, largest(rng), blocking(rng), chances)),
            links: [link(), link()],
            rng: Rng::new(rng.next()),
            steps: 0,
            delivered: 0,
            modes: [false; 4],
        };
        for peer in &mut world.peers {
            for (at, byte) in peer.incoming.iter_mut().enumerate() {
                *byte = own_byte(at);
            }
        }
        world
    }

    fn step(&mut self) {
        self.steps += 1;
        assert!(self.steps < MOST_STEPS, "it never ends: {}", self.describe());
        let number = self.rng.below(2);
        let [a, b] = &mut self.peers;
        let (me, other) = if number == 0 { (a, b) } else { (b, a) };
        let [a, b] = &mut self.links;
        let (out, inc) = if number == 0 { (a, b) } else { (b, a) };
        match self.rng.below(3) {
            0 => self.delivered += u64::from(out.deliver(&mut self.rng)),
            _ if me.dead => {}
            1 => self.senders[number].step(me, other, out, inc, &mut self.rng),
            _ => self.receivers[number].step(me, other, out, inc, &mut self.rng),
        }
        let sender = &self.senders[number];
        self.modes[sender.mode(&self.peers[number]) as usize] = true;
        for peer in &self.peers {
            assert!(usize::from(peer.session.posted()) <= peer.shape.slots);
            assert!(peer.session.credit() as usize <= peer.shape.slots);
        }
    }

    /// What only grows while anything happens.
    fn effects(&self) -> u64 {
        let peers = self.peers.iter().map(|peer| {
            let sent = u64::from(peer.session.last_sent()) + u64::from(peer.sending.scans());
            sent + peer.sent + peer.received
        });
        let returned = self.senders.iter().map(|sender| sender.returned);
        peers.chain(returned).sum::<u64>() + self.delivered
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
                "\n{i}: sender {}, receiver {}, credit {}, due {:?}, asking {}, send buffer {} free, \
                 rest {:?}, mode {:?}",
                self.senders[i].describe(),
                self.receivers[i].describe(),
                peer.session.credit(),
                peer.due,
                peer.resize.is_asking(),
                out.space(),
                peer.receiving.rest(),
                self.senders[i].mode(peer),
            )
        });
        ends.concat()
    }

    fn arrived(&self, to: usize) -> bool {
        self.receivers[to].verified == self.senders[1 - to].total
    }

    fn is_over(&self) -> bool {
        let idle = self.senders.iter().all(Sender::is_idle);
        idle && self.receivers.iter().all(Receiver::is_idle) && self.arrived(0) && self.arrived(1)
    }

    fn run_to_the_end(&mut self) {
        // The programs hang, if they do, although nothing interrupts or pauses them any more.
        let done = self.run(World::is_over);
        assert!(done, "deadlock:{}", self.describe());
        self.check_end();
    }

    fn check_end(&mut self) {
        for peer in &self.peers {
            assert!(peer.readable.is_closed() && peer.writable.is_closed(), "left registered");
            assert!(peer.receiving.advertised().is_none());
            assert!(!peer.send_locked && !peer.receive_locked);
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
        }
    }
}

fn abilities(rng: &mut Rng) -> Abilities {
    let (read, write) = [(true, true), (true, false), (false, true)][rng.below(3)];
    Abilities { threshold: [16, 64, 150][rng.below(3)], read, write }
}

fn shape(rng: &mut Rng) -> Shape {
    let payload = rng.range(40, 120) as u32;
    Shape {
        slots: [4, 8, 16][rng.below(3)],
        payload,
        largest_payload: payload * [1, 4][rng.below(2)],
        send_buffer: rng.range(1, 400),
        abilities: abilities(rng),
    }
}

fn chances(rng: &mut Rng) -> Chances {
    Chances {
        interrupt: [0, 0, 1, 5][rng.below(4)],
        scan: [1, 5, 30][rng.below(3)],
        fail: [0, 0, 3, 20][rng.below(4)],
        pause: [0, 50, 95][rng.below(3)],
    }
}

fn totals(rng: &mut Rng) -> [u64; 2] {
    let mut totals = [0, 1].map(|_| rng.below(4000) as u64);
    if rng.percent(40) {
        totals[rng.below(2)] = 0;
    }
    totals
}

/// S3–S5, S7, A3–A14: every byte arrives, in order, whatever the programs do.
#[test]
fn rdma_streams_arrive_whole() {
    let (reads, writes) = (Cell::new(0), Cell::new(0));
    let modes = Cell::new([false; 4]);
    let count = schedules(3000, |rng| {
        let (shape, chances, totals) = (shape(rng), chances(rng), totals(rng));
        let mut world = World::new(rng, &shape, totals, &chances);
        world.run_to_the_end();
        world.settle();
        reads.set(reads.get() + world.receivers.iter().map(|r| r.reads).sum::<u64>());
        writes.set(writes.get() + world.senders.iter().map(|s| s.writes).sum::<u64>());
        let seen = modes.get();
        modes.set([0, 1, 2, 3].map(|mode| seen[mode] || world.modes[mode]));
    });
    if count > 100 {
        assert!(reads.get() > 0 && writes.get() > 0, "no RDMA happened");
        assert_eq!(modes.get(), [true; 4], "{:?}", Mode::ALL);
    }
}

/// A9: small fragmented sends both ways: both ends ask for larger buffers, often at once.
#[test]
fn resizes_collide_and_end() {
    let grown = Cell::new(0);
    let count = schedules(300, |rng| {
        let mut shape = shape(rng);
        shape.largest_payload = shape.payload * 4;
        shape.send_buffer = rng.range(150, 400);
        shape.abilities.threshold = 400;
        let chances = chances(rng);
        let mut world = World::new(rng, &shape, [12_000, 12_000], &chances);
        for end in 0..2 {
            world.senders[end].largest = 2 * shape.payload as usize;
            world.senders[end].blocking = 100;
        }
        world.run_to_the_end();
        world.settle();
        let times = world.peers.iter().map(|peer| peer.resize.times_grown()).sum::<u32>();
        grown.set(grown.get() + times);
    });
    assert!(count < 100 || grown.get() > 0, "no resize happened");
}

/// An end that dies at any step: the other loses nothing that a send had returned for, gets nothing
/// that was not sent, and has all its memory back.
#[test]
fn rdma_with_a_dead_end_ends() {
    schedules(2000, |rng| {
        let (shape, chances, totals) = (shape(rng), chances(rng), totals(rng));
        let mut world = World::new(rng, &shape, totals, &chances);
        for _ in 0..rng.below(6000) {
            world.step();
        }
        let dying = rng.below(2);
        world.peers[dying].dead = true;
        let other = 1 - dying;
        let over = |world: &World| {
            world.receivers[other].is_stopped() && world.senders[other].is_stopped()
        };
        world.run(over);
        assert!(world.receivers[other].is_stopped(), "hangs:{}", world.describe());
        let got = world.receivers[other].verified;
        assert!(got >= world.senders[dying].returned, "lost:{}", world.describe());
        let peer = &world.peers[other];
        assert!(peer.readable.is_closed() && peer.writable.is_closed(), "left registered");
    });
}
