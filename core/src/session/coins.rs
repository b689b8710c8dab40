//! The proof that two processes have the two ends of one TCP connection, whatever their addresses look like: coins that
//! one end flips and that only the other end of the connection sees.
//!
//! An end that has received bytes may put off their acknowledgement. It flips a coin. For a one the kernel sends the
//! acknowledgement at once, as a segment without data. For a zero the acknowledgement rides on the data that this end
//! sends next. The kernel of the peer counts the segments without data that arrive, and the peer says how many there
//! were when it had received so many bytes ([`Sight`]). NAT passes each segment on, whatever it does to the addresses. A
//! program in the middle passes on bytes, never acknowledgements. A process that does not have the other end sees
//! neither, and can only guess. Both ends flip coins of their own, in exchanges that happen anyway, and each is
//! convinced by its own alone.
//!
//! An end says what it saw, never what it flipped. So a peer has nothing to copy the answer from.

use super::sync::{AtomicU64, Ordering};

/// So many coins have to show a one, and so many a zero, without a coin in between that shows something else.
const ENOUGH: u32 = 16;
/// At most so many may show something else: the kernel acknowledges by itself, too.
const MOST_MISSES: u32 = 8;
/// How often an end looks at most, also for a peer that is not convinced yet. Not each look ends an exchange.
const MOST_LOOKS: u32 = 1024;
/// After so many looks so few exchanges at least have told something, or none will: bytes go in one direction only.
const SOME_LOOKS: u32 = 256;
const SOME_EXCHANGES: u32 = 8;

/// What the kernel counts at one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Bytes that this end ever sent.
    pub(crate) sent: u64,
    /// Bytes that ever arrived.
    pub(crate) received: u64,
    /// Segments without data that this end sent.
    pub(crate) bare_out: u32,
    /// Segments without data that arrived.
    pub(crate) bare_in: u32,
}

/// What the coins have shown so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// The peer has the other end.
    Same,
    /// It does not, or nothing can show that it does.
    Different,
    /// More exchanges are needed.
    NotYet,
}

/// What an end says that it saw: how many segments without data had arrived when it first had so many bytes. One word,
/// so that both numbers belong together. It lies in memory that the peer can write: a wrong value convinces nobody.
#[repr(transparent)]
#[derive(Debug, Default)]
pub(crate) struct Sight(AtomicU64);

impl Sight {
    /// Says it. Release: nothing that this end learns later is in it.
    pub(super) fn say(&self, counts: Counts) {
        let word = u64::from(counts.received as u32) << 32 | u64::from(counts.bare_in);
        self.0.store(word, Ordering::Release);
    }

    /// The lowest 32 bits of the bytes, and the segments. Acquire.
    fn read(&self) -> (u32, u32) {
        let word = self.0.load(Ordering::Acquire);
        ((word >> 32) as u32, word as u32)
    }
}

/// The coins of one end. Call [`look`](Coins::look) before each transfer, then flip a coin and say so
/// ([`flipped`](Coins::flipped)).
#[derive(Debug)]
pub(crate) struct Coins {
    looks: u32,
    /// Bytes that had arrived at the last look.
    received: u64,
    /// After the last coin: bytes sent, and segments without data.
    flipped: Option<(u64, u32)>,
    /// The bytes that were sent since, which the peer did not say yet that it has; and the segments without data that
    /// went before them.
    awaited: Option<(u64, u32)>,
    /// Segments without data of both ends when they last agreed on what was sent: this end's, and what the peer saw.
    agreed: Option<(u32, u32)>,
    /// Since then a coin made the kernel send one.
    has_shown_one: bool,
    ones: u32,
    zeros: u32,
    misses: u32,
    /// How often both ends agreed on what was sent.
    exchanges: u32,
}

impl Coins {
    /// None are flipped yet. `now` is what the kernel counts.
    pub(crate) fn new(now: Counts) -> Self {
        Coins {
            looks: 0,
            received: now.received,
            flipped: None,
            awaited: None,
            agreed: None,
            has_shown_one: false,
            ones: 0,
            zeros: 0,
            misses: 0,
            exchanges: 0,
        }
    }

    /// Looks before a transfer: says what arrived, and holds what the peer says against the coins.
    pub(crate) fn look(&mut self, now: Counts, own: &Sight, peer: &Sight) -> Shown {
        self.looks += 1;
        self.compare(now, peer.read());
        if now.received != self.received {
            self.received = now.received;
            own.say(now);
        }
        let is_hopeless = self.looks > SOME_LOOKS && self.exchanges < SOME_EXCHANGES;
        if self.misses > MOST_MISSES || self.looks > MOST_LOOKS || is_hopeless {
            Shown::Different
        } else if self.is_convinced() {
            Shown::Same
        } else {
            Shown::NotYet
        }
    }

    fn is_convinced(&self) -> bool {
        self.ones >= ENOUGH && self.zeros >= ENOUGH
    }

    fn compare(&mut self, now: Counts, (has, saw): (u32, u32)) {
        if let Some((_, before)) = self.flipped.filter(|(sent, _)| *sent != now.sent) {
            self.awaited = Some((now.sent, before));
        }
        let Some((_, sent)) = self.awaited.filter(|(bytes, _)| *bytes as u32 == has) else {
            return;
        };
        self.awaited = None;
        self.exchanges += 1;
        if let Some((sent_before, saw_before)) = self.agreed.replace((sent, saw)) {
            self.judge(sent.wrapping_sub(sent_before), saw.wrapping_sub(saw_before));
        }
        self.has_shown_one = false;
    }

    /// Judges a coin: so many segments without data went between two moments, and so many the peer saw.
    fn judge(&mut self, sent: u32, saw: u32) {
        if self.is_convinced() {
            return;
        }
        if sent != saw {
            self.misses += 1;
            (self.ones, self.zeros) = (0, 0);
        } else if self.has_shown_one {
            self.ones += 1;
        } else {
            // For a zero the kernel might have sent none as well: nobody else can tell.
            self.zeros += 1;
        }
    }

    /// A coin was flipped, and the kernel told to do as it says: what it counted before that, and after.
    pub(crate) fn flipped(&mut self, before: Counts, after: Counts) {
        self.has_shown_one |= after.bare_out == before.bare_out.wrapping_add(1);
        self.flipped = Some((after.sent, after.bare_out));
    }
}
