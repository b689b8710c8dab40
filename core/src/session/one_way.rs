//! The proof that two processes have the two ends of one TCP connection, where bytes go in one direction only.
//! [`coins`](super::coins) need exchanges, and here are none. This proof is made of the same: acknowledgements without
//! data, which NAT passes on, and which a program in the middle does not.
//!
//! The receiver goes by turns. First it *settles*: it has its kernel acknowledge all that came. Then it *acts* on the
//! next bytes: for a one it has them acknowledged at once, and for a zero it leaves that to the kernel's timer. Both
//! times it tells the sender how many bytes it had then. The sender counts acknowledgements only in a *quiet moment*:
//! it has sent just so many bytes, so nothing is under way. No acknowledgement can come of itself then. The bit is what
//! the sender counts between the two moments.
//!
//! - First the bits are coins that the receiver flips and keeps secret. The sender says what it counted. That convinces
//!   the receiver: only the process that has the other end can know.
//! - Then the sender chooses each bit after the receiver has settled, and says nothing of what it counts. That
//!   convinces the sender: only the process that has the other end can do as it asked.
//!
//! The receiver acts only where an acknowledgement is due for sure: bytes came since all was acknowledged, and no
//! segment has left. So each coin has its effect, and each is one chance in two for somebody who guesses.
//!
//! A program in the middle may copy, splice, delay, or look all the time. In a quiet moment it has passed on all that
//! it has, so an acknowledgement at one side gives it nothing to do at the other. Its own kernel acknowledges
//! there, and knows nothing of the bits. Counts of bytes and of segments alone prove nothing: such a program passes on the
//! bytes, and where it is fast the segments too.

use super::coins::{Counts, Shown};
use super::proof::Need;
use super::sync::{AtomicU64, Ordering};

/// So many ones and so many zeros have to come through, without a wrong bit in between.
const ENOUGH: u32 = 16;
/// At most so many may be wrong: the kernel acknowledges by itself, too.
const MOST_MISSES: u32 = 8;
/// At most so many of a run may the receiver leave undone: it could choose those that suit it.
const MOST_UNDONE: u32 = 8;
/// The kernel puts an acknowledgement off for forty milliseconds at least. A later count (ns) tells nothing.
const SOON: u64 = 30_000_000;

/// The receiver's last act, and whose bits it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Nothing was said yet.
    Nothing,
    /// The sender takes part. The receiver may put acknowledgements off.
    Ready,
    /// The receiver did something, when it had so many bytes.
    Did { number: u32, bytes: u32, acted: bool, is_own: bool },
    /// The sender counted so many acknowledgements since it began, when the receiver had done that.
    Counted { number: u32, count: u32 },
    /// The sender wants this bit next, after the receiver has done that.
    Wants { number: u32, bit: bool },
}

/// Numbers have so many bits.
const NUMBERS: u32 = 0x0fff_ffff;

/// What an end says, in one word. It lies in memory that the peer can write: a wrong value convinces nobody.
#[repr(transparent)]
#[derive(Debug, Default)]
pub(crate) struct OneWayNote(AtomicU64);

impl OneWayNote {
    /// Release: a thread that reads it sees what this end did before.
    pub(super) fn say(&self, word: Word) {
        let (kind, number, value) = match word {
            Word::Nothing => (0, 0, 0),
            Word::Ready => (1, 0, 0),
            Word::Did { number, bytes, acted, is_own } => {
                (2 + u32::from(acted) + 2 * u32::from(is_own), number, bytes)
            }
            Word::Counted { number, count } => (6, number, count),
            Word::Wants { number, bit } => (7, number, u32::from(bit)),
        };
        let head = u64::from(kind << 28 | number & NUMBERS);
        self.0.store(head << 32 | u64::from(value), Ordering::Release);
    }

    /// Acquire.
    pub(super) fn read(&self) -> Word {
        let word = self.0.load(Ordering::Acquire);
        let (head, value) = ((word >> 32) as u32, word as u32);
        let number = head & NUMBERS;
        match head >> 28 {
            1 => Word::Ready,
            kind @ 2..=5 => {
                Word::Did { number, bytes: value, acted: kind & 1 == 1, is_own: kind >= 4 }
            }
            6 => Word::Counted { number, count: value },
            7 => Word::Wants { number, bit: value & 1 == 1 },
            _ => Word::Nothing,
        }
    }
}

#[cfg(test)]
impl OneWayNote {
    /// What a peer may write.
    pub(super) fn scribble(&self, word: u64) {
        self.0.store(word, Ordering::Relaxed);
    }
}

/// How many bits came through.
#[derive(Debug, Default)]
struct Bits {
    /// None have to.
    are_not_needed: bool,
    ones: u32,
    zeros: u32,
    misses: u32,
}

impl Bits {
    fn new(need: Need) -> Self {
        Bits { are_not_needed: need == Need::Nothing, ..Bits::default() }
    }

    fn count(&mut self, bit: bool, is_right: bool) {
        match (is_right, bit) {
            _ if self.is_enough() => {}
            (true, true) => self.ones += 1,
            (true, false) => self.zeros += 1,
            (false, _) => self.miss(),
        }
    }

    fn miss(&mut self) {
        if !self.is_enough() {
            *self = Bits { misses: self.misses + 1, ..Bits::default() };
        }
    }

    fn is_enough(&self) -> bool {
        self.are_not_needed || (self.ones >= ENOUGH && self.zeros >= ENOUGH)
    }

    fn shown(&self) -> Shown {
        if self.misses > MOST_MISSES {
            Shown::Different
        } else if self.is_enough() {
            Shown::Same
        } else {
            Shown::NotYet
        }
    }
}

/// What the receiver has its kernel do about bytes that are not acknowledged yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Nothing changes.
    Nothing,
    /// Acknowledge it now, and put off what comes next.
    Acknowledge,
    /// Put it off.
    PutOff,
    /// Acknowledge it, and what comes next, as the kernel does of itself.
    LetGo,
}

/// What the receiver did, and what its kernel counted then.
#[derive(Clone, Copy, Debug)]
struct Done {
    number: u32,
    at: u64,
    counts: Counts,
    /// The bit, if it acted.
    bit: Option<bool>,
    /// What the sender counted then, as it says.
    counted: Option<u32>,
    /// What the sender had counted when the receiver settled.
    settled: Option<u32>,
}

/// The end that bytes come to. Call [`next`](ProofReceiver::next) after each receive that left nothing unread, do as it says, and say so
/// ([`done`](ProofReceiver::done)).
#[derive(Debug)]
pub(crate) struct ProofReceiver {
    number: u32,
    last: Option<Done>,
    doing: Option<(Option<bool>, Option<u32>)>,
    bits: Bits,
}

impl ProofReceiver {
    /// It has done nothing yet.
    pub(crate) fn new(need: Need) -> Self {
        ProofReceiver { number: 0, last: None, doing: None, bits: Bits::new(need) }
    }

    /// What the receiver has to do now, at that time (ns). `coin` is a fresh one.
    pub(crate) fn next(&mut self, now: Counts, at: u64, coin: bool, peer: &OneWayNote) -> Act {
        let word = peer.read();
        self.hear(word, at);
        self.doing = None;
        if word == Word::Nothing {
            return if self.last.take().is_some() { Act::LetGo } else { Act::Nothing };
        }
        if self.last.is_some_and(|last| last.counts.received == now.received) {
            return Act::Nothing;
        }
        let bit = self.last.filter(|last| is_due(last, now)).and_then(|last| match word {
            _ if !self.bits.is_enough() => last.counted.map(|_| coin),
            Word::Wants { number, bit } if number == last.number => Some(bit),
            _ => None,
        });
        self.doing = Some((bit, self.last.and_then(|last| last.counted)));
        match bit {
            Some(false) => Act::PutOff,
            Some(true) | None => Act::Acknowledge,
        }
    }

    /// That was done: what the kernel counted before, and after.
    pub(crate) fn done(&mut self, before: Counts, after: Counts, at: u64, own: &OneWayNote) {
        let Some((bit, settled)) = self.doing.take() else { return };
        let sent = after.bare_out.wrapping_sub(before.bare_out);
        let is_as_meant = bit.is_none_or(|bit| sent == u32::from(bit));
        if after.received != before.received || after.sent != before.sent || !is_as_meant {
            // Nobody knows what is acknowledged now.
            self.last = None;
            return;
        }
        self.number = self.number.wrapping_add(1) & NUMBERS;
        let number = self.number;
        self.last = Some(Done { number, at, counts: after, bit, counted: None, settled });
        let is_own = !self.bits.is_enough();
        let bytes = after.received as u32;
        own.say(Word::Did { number, bytes, acted: bit.is_some(), is_own });
    }

    fn hear(&mut self, word: Word, at: u64) {
        let (Some(last), Word::Counted { number, count }) = (&mut self.last, word) else { return };
        if number != last.number || last.counted.is_some() {
            return;
        }
        last.counted = Some(count);
        if let (Some(bit), Some(before)) = (last.bit, last.settled) {
            if at.saturating_sub(last.at) <= SOON {
                self.bits.count(bit, count.wrapping_sub(before) == u32::from(bit));
            }
        }
    }

    /// What this end knows by now.
    pub(crate) fn shown(&self) -> Shown {
        self.bits.shown()
    }
}

/// An acknowledgement is due for sure: all was acknowledged when the receiver did what it did last, bytes came since, and no segment left.
fn is_due(last: &Done, now: Counts) -> bool {
    last.bit != Some(false)
        && now.received != last.counts.received
        && (now.sent, now.bare_out) == (last.counts.sent, last.counts.bare_out)
}

/// What the sender wants to see.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    number: u32,
    at: u64,
    counted: u32,
    bit: bool,
}

/// What the receiver says, read before this end's kernel is asked for its counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeardNote(Word);

/// The end that sends. Call [`hear`](ProofSender::hear) before each send, then ask the kernel, and call [`next`](ProofSender::next).
#[derive(Debug)]
pub(crate) struct ProofSender {
    takes_part: bool,
    /// Looks since a bit was last seen.
    in_vain: u32,
    heard: u32,
    /// The receiver knows what it has to.
    is_receiver_sure: bool,
    wanted: Option<Wanted>,
    undone: u32,
    bits: Bits,
}

impl ProofSender {
    /// It takes no part yet.
    pub(crate) fn new(need: Need) -> Self {
        let bits = Bits::new(need);
        let (takes_part, is_receiver_sure) = (false, false);
        ProofSender {
            takes_part,
            in_vain: 0,
            heard: 0,
            is_receiver_sure,
            wanted: None,
            undone: 0,
            bits,
        }
    }

    /// Takes part from now on.
    pub(crate) fn begin(&mut self, own: &OneWayNote) {
        self.takes_part = true;
        own.say(Word::Ready);
    }

    /// Takes no part any more: this end puts nothing off.
    pub(crate) fn rest(&mut self, own: &OneWayNote) {
        self.takes_part = false;
        own.say(Word::Nothing);
    }

    /// Whether it takes part.
    pub(crate) fn takes_part(&self) -> bool {
        self.takes_part
    }

    /// How many looks in a row told nothing.
    pub(crate) fn in_vain(&self) -> u32 {
        self.in_vain
    }

    /// Whether the receiver says something new, for which this may be the moment.
    pub(crate) fn is_news(&self, heard: HeardNote) -> bool {
        matches!(heard.0, Word::Did { number, .. } if number != self.heard)
    }

    /// Whether this end has counted what came of what the receiver did last, and sent nothing since.
    pub(crate) fn is_counted(&self, heard: HeardNote, now: Counts) -> bool {
        matches!(heard.0, Word::Did { number, bytes, .. } if number == self.heard && bytes == now.sent as u32)
    }

    /// What the receiver says.
    pub(crate) fn hear(peer: &OneWayNote) -> HeardNote {
        HeardNote(peer.read())
    }

    /// Looks before a send, at that time (ns). `coin` is a fresh one. True if the moment is quiet, and the receiver did something.
    pub(crate) fn next(
        &mut self,
        heard: HeardNote,
        now: Counts,
        at: u64,
        coin: bool,
        own: &OneWayNote,
    ) -> bool {
        self.in_vain = self.in_vain.saturating_add(1);
        let Word::Did { number, bytes, acted, is_own } = heard.0 else { return false };
        if !self.takes_part || number == self.heard || bytes != now.sent as u32 {
            return false;
        }
        self.heard = number;
        self.is_receiver_sure = !is_own;
        if acted {
            self.in_vain = 0;
        }
        if is_own {
            own.say(Word::Counted { number, count: now.bare_in });
        } else {
            self.judge(number, acted, now, at, coin, own);
        }
        true
    }

    fn judge(
        &mut self,
        number: u32,
        acted: bool,
        now: Counts,
        at: u64,
        coin: bool,
        own: &OneWayNote,
    ) {
        let wanted = self.wanted.take();
        let is_next = |wanted: &Wanted| wanted.number.wrapping_add(1) & NUMBERS == number;
        let is_acknowledged = match wanted.filter(|wanted| acted && is_next(wanted)) {
            Some(Wanted { at: since, counted, bit, .. }) if at.saturating_sub(since) <= SOON => {
                self.bits.count(bit, now.bare_in.wrapping_sub(counted) == u32::from(bit));
                bit
            }
            Some(wanted) => wanted.bit,
            None => {
                self.count_undone(wanted.is_some());
                !acted
            }
        };
        if is_acknowledged {
            self.wanted = Some(Wanted { number, at, counted: now.bare_in, bit: coin });
            own.say(Word::Wants { number, bit: coin });
        }
    }

    fn count_undone(&mut self, is_undone: bool) {
        if self.bits.ones + self.bits.zeros == 0 {
            self.undone = 0;
        }
        self.undone += u32::from(is_undone);
        if self.undone > MOST_UNDONE {
            self.undone = 0;
            self.bits.miss();
        }
    }

    /// Nothing that this end sends can show anything more.
    pub(crate) fn is_over(&self) -> bool {
        match self.bits.shown() {
            Shown::Same => self.is_receiver_sure,
            Shown::NotYet => false,
            Shown::Different => true,
        }
    }

    /// What this end knows by now.
    pub(crate) fn shown(&self) -> Shown {
        self.bits.shown()
    }
}
