//! The proof for bytes in one direction, over simulated TCP: through NAT, which passes segments on, and through programs that pass
//! on bytes.

use super::chance::Chance;
use super::coins::{Counts, Shown};
use super::one_way::{Act, OneWayNote, ProofReceiver, ProofSender, Word};
use super::proof::Need;
use proptest::prelude::*;

/// One TCP connection whose bytes go from one end to the other, as the kernels at its ends have it.
#[derive(Clone, Copy)]
struct Connection {
    bytes: u64,
    acknowledgements: u32,
    /// Segments that the receiving kernel has not acknowledged.
    due: u32,
    /// The receiving kernel puts that off.
    puts_off: bool,
}

impl Connection {
    /// Counts that wrap soon.
    fn new() -> Self {
        let bytes = u64::from(u32::MAX) - 500;
        Connection { bytes, acknowledgements: u32::MAX - 5, due: 0, puts_off: false }
    }

    /// A segment goes, and the program at the other end reads it.
    fn send(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.due += 1;
        // A second one is never put off.
        if !self.puts_off || self.due > 1 {
            self.acknowledge();
        }
    }

    fn acknowledge(&mut self) {
        if std::mem::take(&mut self.due) > 0 {
            self.acknowledgements = self.acknowledgements.wrapping_add(1);
        }
    }

    fn at_sender(&self) -> Counts {
        Counts { sent: self.bytes, received: 9, bare_out: 3, bare_in: self.acknowledgements }
    }

    fn at_receiver(&self) -> Counts {
        Counts { sent: 9, received: self.bytes, bare_out: self.acknowledgements, bare_in: 3 }
    }
}

const MILLISECOND: u64 = 1_000_000;

/// Two processes, of which one believes that its bytes go to the other. What they say lies in the notes.
struct Pair {
    sender: ProofSender,
    receiver: ProofReceiver,
    notes: [OneWayNote; 2],
    chance: Chance,
    now: u64,
}

impl Pair {
    fn new(seed: u64) -> Self {
        let notes = <[OneWayNote; 2]>::default();
        let mut sender = ProofSender::new(Need::Proof);
        sender.begin(&notes[0]);
        let (receiver, chance) = (ProofReceiver::new(Need::Proof), Chance(seed));
        Pair { sender, receiver, notes, chance, now: 7 * MILLISECOND }
    }

    /// The sending process is about to send.
    fn send(&mut self, connection: &Connection) {
        let heard = ProofSender::hear(&self.notes[1]);
        let coin = self.chance.one_in(2);
        self.sender.next(heard, connection.at_sender(), self.now, coin, &self.notes[0]);
    }

    /// The receiving process has received all that came.
    fn receive(&mut self, connection: &mut Connection) {
        let before = connection.at_receiver();
        let coin = self.chance.one_in(2);
        match self.receiver.next(before, self.now, coin, &self.notes[0]) {
            Act::Nothing => return,
            Act::PutOff => {}
            Act::Acknowledge => {
                connection.acknowledge();
                connection.puts_off = true;
            }
            Act::LetGo => {
                connection.acknowledge();
                connection.puts_off = false;
            }
        }
        self.receiver.done(before, connection.at_receiver(), self.now, &self.notes[1]);
    }

    fn shown(&self) -> [Shown; 2] {
        [self.sender.shown(), self.receiver.shown()]
    }
}

/// So many messages over one connection, with pauses (ms) between them. `disturb` runs before each receive.
fn stream(
    seed: u64,
    messages: u32,
    pause: u64,
    mut disturb: impl FnMut(&mut Chance, &mut Connection),
) -> [Shown; 2] {
    let (mut pair, mut connection, mut chance) =
        (Pair::new(seed), Connection::new(), Chance(seed ^ 5));
    for _ in 0..messages {
        pair.now += pause * MILLISECOND;
        if pause >= 40 {
            // The kernel's timer.
            connection.acknowledge();
        }
        pair.send(&connection);
        connection.send(1 + chance.next() % 1000);
        disturb(&mut chance, &mut connection);
        pair.receive(&mut connection);
    }
    pair.shown()
}

#[test]
fn both_ends_of_one_stream_are_convinced() {
    for seed in 0..300 {
        for pause in [0, 1, 20] {
            assert_eq!(stream(seed, 250, pause, |_, _| {}), [Shown::Same; 2], "{seed} {pause}");
        }
    }
}

#[test]
fn a_kernel_that_acknowledges_by_itself_now_and_then_is_forgiven() {
    for seed in 0..300 {
        let shown = stream(seed, 1000, 1, |chance, connection| {
            if chance.one_in(60) {
                connection.acknowledge();
            }
        });
        assert_eq!(shown, [Shown::Same; 2], "{seed}");
    }
}

#[test]
fn an_end_that_needs_no_proof_takes_part_in_the_peers() {
    for seed in 0..100 {
        for end in 0..2 {
            let (mut pair, mut connection) = (Pair::new(seed), Connection::new());
            if end == 0 {
                pair.receiver = ProofReceiver::new(Need::Nothing);
            } else {
                pair.sender = ProofSender::new(Need::Nothing);
                pair.sender.begin(&pair.notes[0]);
            }
            for _ in 0..120 {
                pair.send(&connection);
                connection.send(100);
                pair.receive(&mut connection);
            }
            assert_eq!(pair.shown(), [Shown::Same; 2], "{seed}");
            assert!(pair.sender.is_over());
        }
    }
}

#[test]
fn an_end_that_is_convinced_stays_so() {
    let mut before = [Shown::NotYet; 2];
    for messages in (0..2000).step_by(100) {
        let shown = stream(16, messages, 1, |chance, connection| {
            if chance.one_in(60) {
                connection.acknowledge();
            }
        });
        assert!((0..2).all(|end| before[end] != Shown::Same || shown[end] == Shown::Same));
        before = shown;
    }
    assert_eq!(before, [Shown::Same; 2]);
}

#[test]
fn acknowledgements_out_of_turn_are_misses() {
    let (mut pair, mut connection) = (Pair::new(3), Connection::new());
    for _ in 0..2000 {
        pair.send(&connection);
        connection.send(100);
        pair.receive(&mut connection);
        // Between what the receiver did and what the sender counts.
        connection.acknowledge();
    }
    assert_eq!(pair.shown()[1], Shown::Different);
}

#[test]
fn a_slow_stream_shows_nothing_and_the_same_stream_later_does() {
    for seed in 0..100 {
        let (mut pair, mut connection) = (Pair::new(seed), Connection::new());
        for message in 0..700 {
            let is_slow = message < 400;
            pair.now += if is_slow { 50 } else { 1 } * MILLISECOND;
            if is_slow {
                connection.acknowledge();
                // A timer that fires ends what was asked for.
                connection.puts_off = false;
                assert_eq!(pair.shown(), [Shown::NotYet; 2]);
            }
            pair.send(&connection);
            connection.send(100);
            pair.receive(&mut connection);
        }
        assert_eq!(pair.shown(), [Shown::Same; 2], "{seed}");
    }
}

#[test]
fn a_stream_without_quiet_moments_shows_nothing() {
    let (mut pair, mut connection) = (Pair::new(8), Connection::new());
    for _ in 0..2000 {
        pair.send(&connection);
        connection.send(100);
        // The next one is on its way before the receiver has done anything.
        pair.send(&connection);
        let seen = connection;
        connection.send(100);
        let before = seen.at_receiver();
        if pair.receiver.next(before, pair.now, true, &pair.notes[0]) != Act::Nothing {
            connection.acknowledge();
            pair.receiver.done(before, before, pair.now, &pair.notes[1]);
        }
    }
    assert_eq!(pair.shown(), [Shown::NotYet; 2]);
}

/// What the kernel of a program in the middle does with what its program has read.
#[derive(Clone, Copy, Debug)]
enum Middle {
    AtOnce,
    PutsOff,
    ByChance,
    /// What the receiver's kernel does, a message later.
    Late,
}

/// The sender's connection leads to a program that passes its bytes on over another one.
fn through_a_program(seed: u64, middle: Middle, delays: bool) -> [Shown; 2] {
    let (mut near, mut far) = (Connection::new(), Connection::new());
    let (mut pair, mut chance) = (Pair::new(seed), Chance(seed ^ 0x5eed));
    let (mut passed_on, mut acknowledged) = (0, 0);
    for _ in 0..3000 {
        pair.now += MILLISECOND;
        pair.send(&near);
        near.puts_off = !matches!(middle, Middle::AtOnce);
        near.send(1 + chance.next() % 1000);
        let is_now = match middle {
            Middle::AtOnce | Middle::PutsOff => false,
            Middle::ByChance => chance.one_in(2),
            Middle::Late => far.acknowledgements != acknowledged,
        };
        acknowledged = far.acknowledgements;
        if is_now {
            near.acknowledge();
        }
        if !(delays && chance.one_in(3)) {
            far.send(near.bytes - Connection::new().bytes - passed_on);
            passed_on = near.bytes - Connection::new().bytes;
            pair.receive(&mut far);
        }
        if !pair.shown().contains(&Shown::NotYet) {
            break;
        }
    }
    pair.shown()
}

#[test]
fn a_program_that_passes_bytes_on_convinces_nobody() {
    for seed in 0..300 {
        for middle in [Middle::AtOnce, Middle::PutsOff, Middle::ByChance, Middle::Late] {
            for delays in [false, true] {
                let shown = through_a_program(seed, middle, delays);
                assert_eq!(shown[1], Shown::Different, "{seed} {middle:?} {delays}");
                assert_ne!(shown[0], Shown::Same, "{seed} {middle:?} {delays}");
            }
        }
    }
}

/// A process that does not have the sender's other end, but does what a receiver would and claims each bit.
fn false_receiver(seed: u64, is_due: impl Fn(&mut Chance, u32) -> bool, chooses: bool) -> Shown {
    let (mut pair, mut connection) = (Pair::new(seed), Connection::new());
    let mut chance = Chance(seed ^ 0xfa15e);
    connection.puts_off = true;
    for number in 0..3000 {
        pair.now += MILLISECOND;
        pair.send(&connection);
        connection.send(100);
        connection.due = 1;
        let acknowledges = is_due(&mut chance, number);
        if acknowledges {
            connection.acknowledge();
        }
        let wanted = match pair.notes[0].read() {
            Word::Wants { number: after, bit } if after + 1 == number => Some(bit),
            _ => None,
        };
        // It knows how many bytes there are, and perhaps what the true receiver's kernel does.
        let acted = wanted.is_some_and(|bit| !chooses || bit == acknowledges);
        let bytes = connection.bytes as u32;
        pair.notes[1].say(Word::Did { number, bytes, acted, is_own: false });
        if pair.sender.shown() != Shown::NotYet {
            break;
        }
    }
    pair.sender.shown()
}

#[test]
fn who_does_not_have_the_other_end_cannot_do_as_the_sender_asks() {
    for seed in 0..300 {
        for chooses in [false, true] {
            let shown = false_receiver(seed, |_, _| true, chooses);
            assert_eq!(shown, Shown::Different, "{seed} {chooses}");
            let shown = false_receiver(seed, |chance, _| chance.one_in(2), chooses);
            assert_eq!(shown, Shown::Different, "{seed} {chooses}");
        }
    }
}

#[test]
fn who_does_not_have_the_other_end_cannot_tell_what_the_receiver_did() {
    for seed in 0..300 {
        let (mut pair, mut connection) = (Pair::new(seed), Connection::new());
        let (mut chance, mut count) = (Chance(seed ^ 0xf00), 0u32);
        for _ in 0..3000 {
            pair.now += MILLISECOND;
            if let Word::Did { number, .. } = pair.notes[1].read() {
                count = count.wrapping_add((chance.next() % 2) as u32);
                pair.notes[0].say(Word::Counted { number, count });
            }
            connection.send(100);
            pair.receive(&mut connection);
        }
        assert_eq!(pair.receiver.shown(), Shown::Different, "{seed}");
    }
}

#[test]
fn acknowledgements_are_put_off_for_a_sender_that_takes_part_alone() {
    let (mut connection, mut receiver) = (Connection::new(), ProofReceiver::new(Need::Proof));
    let notes = <[OneWayNote; 2]>::default();
    for _ in 0..100 {
        connection.send(100);
        assert_eq!(receiver.next(connection.at_receiver(), 7, true, &notes[0]), Act::Nothing);
    }
    let mut pair = Pair::new(1);
    for _ in 0..20 {
        pair.send(&connection);
        connection.send(100);
        pair.receive(&mut connection);
    }
    assert!(connection.puts_off);
    pair.sender.rest(&pair.notes[0]);
    connection.send(100);
    pair.receive(&mut connection);
    assert!(!connection.puts_off && connection.due == 0);
}

proptest! {
    #[test]
    fn what_is_said_is_what_is_heard(number in 0u32..1 << 28, value: u32, flags in 0u8..4) {
        let (acted, is_own) = (flags & 1 == 1, flags & 2 == 2);
        for word in [
            Word::Nothing,
            Word::Ready,
            Word::Did { number, bytes: value, acted, is_own },
            Word::Counted { number, count: value },
            Word::Wants { number, bit: acted },
        ] {
            let note = OneWayNote::default();
            note.say(word);
            prop_assert_eq!(note.read(), word);
        }
    }

    /// Whatever the peer's memory has, nothing happens but that it convinces nobody.
    #[test]
    fn any_words_convince_nobody(words: Vec<u64>, seed: u64) {
        let (mut pair, mut connection) = (Pair::new(seed), Connection::new());
        for word in words {
            for note in &pair.notes {
                note.scribble(word);
            }
            pair.send(&connection);
            connection.send(word % 2000 + 1);
            pair.receive(&mut connection);
        }
        prop_assert!(!pair.shown().contains(&Shown::Same));
    }
}
