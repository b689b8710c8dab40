//! Coins over simulated TCP: through NAT, which passes segments on, and through programs that pass on bytes.

use super::chance::Chance;
use super::{Coins, Counts, Shown, Sight};

/// One end of a TCP connection as its kernel has it.
#[derive(Clone, Copy, Default)]
struct Kernel {
    sent: u64,
    received: u64,
    bare_out: u32,
    bare_in: u32,
    /// It put an acknowledgement off.
    owes: bool,
}

impl Kernel {
    fn counts(&self) -> Counts {
        Counts {
            sent: self.sent,
            received: self.received,
            bare_out: self.bare_out,
            bare_in: self.bare_in,
        }
    }
}

/// A connection between two kernels.
#[derive(Clone, Copy, Default)]
struct Connection([Kernel; 2]);

impl Connection {
    fn acknowledge(&mut self, end: usize) {
        if std::mem::take(&mut self.0[end].owes) {
            self.0[end].bare_out += 1;
            self.0[1 - end].bare_in += 1;
        }
    }

    fn send(&mut self, end: usize, bytes: u64) {
        self.0[end].owes = false;
        self.0[end].sent += bytes;
        self.0[1 - end].received += bytes;
        self.0[1 - end].owes = true;
    }
}

/// Two processes that believe to have one connection, and what they say to each other.
struct Pair {
    coins: [Coins; 2],
    sights: [Sight; 2],
    shown: [Shown; 2],
    chance: Chance,
}

impl Pair {
    fn new(seed: u64, ends: [&Kernel; 2]) -> Self {
        Pair {
            coins: ends.map(|end| Coins::new(end.counts())),
            sights: Default::default(),
            shown: [Shown::NotYet; 2],
            chance: Chance(seed),
        }
    }

    /// The process at this end is about to transfer something on its connection.
    fn step(&mut self, end: usize, connection: &mut Connection, at: usize) {
        let (own, peer) = (&self.sights[end], &self.sights[1 - end]);
        if self.shown[end] != Shown::Different {
            self.shown[end] = self.coins[end].look(connection.0[at].counts(), own, peer);
        }
        let before = connection.0[at].counts();
        if self.chance.next() % 2 == 1 {
            connection.acknowledge(at);
        }
        self.coins[end].flipped(before, connection.0[at].counts());
    }

    fn is_decided(&self) -> bool {
        !self.shown.contains(&Shown::NotYet)
    }
}

/// Requests and answers over one connection: what both ends believe after so many.
fn exchange(seed: u64, rounds: u32, mut disturb: impl FnMut(u32, &mut Connection)) -> [Shown; 2] {
    let mut connection = Connection::default();
    let mut pair = Pair::new(seed, [&connection.0[0], &connection.0[1]]);
    for round in 0..rounds {
        pair.step(0, &mut connection, 0);
        connection.send(0, 7);
        disturb(round, &mut connection);
        // It receives, and then answers.
        pair.step(1, &mut connection, 1);
        pair.step(1, &mut connection, 1);
        connection.send(1, 100);
        pair.step(0, &mut connection, 0);
        if pair.is_decided() {
            break;
        }
    }
    pair.shown
}

#[test]
fn both_ends_of_one_connection_are_convinced() {
    for seed in 0..200 {
        assert_eq!(exchange(seed, 200, |_, _| {}), [Shown::Same; 2], "{seed}");
    }
}

#[test]
fn a_kernel_that_acknowledges_by_itself_now_and_then_is_forgiven() {
    for seed in 0..200 {
        // Between the coin and the data, as a timer may: the peer sees one that was not counted.
        let shown = exchange(seed, 400, |round, connection| {
            if round % 60 == 59 {
                connection.acknowledge(1);
            }
        });
        assert_eq!(shown, [Shown::Same; 2], "{seed}");
    }
}

#[test]
fn a_kernel_that_puts_nothing_off_shows_nothing() {
    let shown = exchange(1, 2000, |_, connection| connection.acknowledge(1));
    assert_ne!(shown[1], Shown::Same);
}

/// The first end's connection leads to a program that passes its bytes on, over the second.
fn through_a_program(seed: u64, acknowledges: impl Fn(&mut Chance) -> bool) -> [Shown; 2] {
    let (mut near, mut far) = (Connection::default(), Connection::default());
    let mut pair = Pair::new(seed, [&near.0[0], &far.0[1]]);
    let mut chance = Chance(seed ^ 0x5eed);
    for _ in 0..2000 {
        pair.step(0, &mut near, 0);
        near.send(0, 7);
        // The kernel of the program in the middle may put off what it owes, or not.
        if acknowledges(&mut chance) {
            near.acknowledge(1);
        }
        far.send(0, 7);
        pair.step(1, &mut far, 1);
        far.send(1, 100);
        if acknowledges(&mut chance) {
            far.acknowledge(0);
        }
        near.send(1, 100);
        if pair.is_decided() {
            break;
        }
    }
    pair.shown
}

#[test]
fn a_program_that_passes_bytes_on_convinces_nobody() {
    for seed in 0..500 {
        for shown in [
            through_a_program(seed, |_| false),
            through_a_program(seed, |_| true),
            through_a_program(seed, |chance| chance.next() % 2 == 0),
        ] {
            assert_eq!(shown, [Shown::Different; 2], "{seed}");
        }
    }
}

#[test]
fn another_connection_of_the_same_length_convinces_nobody() {
    for seed in 0..500 {
        let mut two = [Connection::default(); 2];
        // The first end of one connection, and the second of the other.
        let mut pair = Pair::new(seed, [&two[0].0[0], &two[1].0[1]]);
        for _ in 0..2000 {
            pair.step(0, &mut two[0], 0);
            two.iter_mut().for_each(|one| one.send(0, 7));
            pair.step(1, &mut two[1], 1);
            two.iter_mut().for_each(|one| one.send(1, 100));
            if pair.is_decided() {
                break;
            }
        }
        assert_eq!(pair.shown, [Shown::Different; 2], "{seed}");
    }
}

#[test]
fn a_peer_that_guesses_convinces_nobody() {
    for seed in 0..500 {
        let mut connection = Connection::default();
        let mut pair = Pair::new(seed, [&connection.0[0], &connection.0[1]]);
        let mut guessed = Counts { sent: 0, received: 0, bare_out: 0, bare_in: 0 };
        for _ in 0..2000 {
            connection.send(1, 100);
            pair.step(0, &mut connection, 0);
            connection.send(0, 7);
            guessed.received = connection.0[0].sent;
            guessed.bare_in += (pair.chance.next() % 2) as u32;
            pair.sights[1].say(guessed);
            if pair.shown[0] != Shown::NotYet {
                break;
            }
        }
        assert_eq!(pair.shown[0], Shown::Different, "{seed}");
    }
}

#[test]
fn bytes_in_one_direction_show_nothing() {
    let mut connection = Connection::default();
    let mut pair = Pair::new(3, [&connection.0[0], &connection.0[1]]);
    for _ in 0..300 {
        pair.step(0, &mut connection, 0);
        connection.send(0, 1000);
        pair.step(1, &mut connection, 1);
    }
    assert_eq!(pair.shown[1], Shown::Different, "nothing was sent by it");
    assert_ne!(pair.shown[0], Shown::Same);
}
