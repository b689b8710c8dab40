//! Which way the bytes of one direction go, in one word that both ends read and change: over TCP until the turn, over
//! the SAN until the way back, then over TCP again. This module moves no bytes.

use super::sync::{AtomicU64, Ordering};

const LEFT: u64 = 1 << 63;
const RECALLED: u64 = 1 << 62;
const CLOSED: u64 = 1 << 61;
/// The sender sends again over TCP what its receiver had not read, and leaves.
const PULLED: u64 = 1 << 60;
const CLAIMED: u64 = 1 << 59;
const REPLAYED: u64 = 1 << 58;
/// The sender's bytes go over the SAN from some position on.
const TURNED: u64 = 1 << 57;
/// The receiver looks there, and no thread of its end waits in the kernel for bytes alone.
const ENTERED: u64 = 1 << 56;
/// One thread of the receiver's takes bytes off the TCP connection at this moment.
const TAKING: u64 = 1 << 48;
const MOST_TAKING: u64 = 0xff * TAKING;
const RINGS: u64 = TAKING - 1;

/// One direction's word: which way the direction goes, and how often its sender was about to ring for what it sent over
/// the SAN.
///
/// The rings are counted so that a receiver which recalls the direction knows whether anything was rung for since it
/// last looked. The count wraps around after 2^48 rings.
///
/// The word lies in memory that both ends can write. A wrong value spoils the peer's own stream.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Direction(AtomicU64);

/// What a [`Direction`] word says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DirectionState {
    /// How often the sender was about to ring; final once `left` or `recalled`.
    pub(crate) rings: u64,
    /// The sender's bytes go over the SAN.
    pub(crate) turned: bool,
    /// The receiver looks there.
    pub(crate) entered: bool,
    /// The sender left: the receiver reads what was sent over the SAN before from there, and the rest of the stream from
    /// TCP.
    pub left: bool,
    /// The receiver has stopped reading from the SAN: the sender sends what was not read once more.
    pub(crate) recalled: bool,
    /// The sender takes back what was not read, and sends it over TCP by itself, from a position on that it published. The
    /// receiver follows once the sender has left.
    pub(crate) pulled: bool,
    /// The sender closed: no process is there any more that could send again.
    pub closed: bool,
    /// The receiver is sending again, over the sender's socket, what it recalled.
    pub claimed: bool,
    /// It has been: the kernel knows how much of it the sender need not send again.
    pub(crate) replayed: bool,
}

impl DirectionState {
    fn of(word: u64) -> Self {
        DirectionState {
            rings: word & RINGS,
            turned: word & TURNED != 0,
            entered: word & ENTERED != 0,
            left: word & LEFT != 0,
            recalled: word & RECALLED != 0,
            pulled: word & PULLED != 0,
            closed: word & CLOSED != 0,
            claimed: word & CLAIMED != 0,
            replayed: word & REPLAYED != 0,
        }
    }

    /// True if the sender rings no more for what lies on the SAN.
    pub(crate) fn is_final(self) -> bool {
        self.left || self.recalled
    }
}

impl Default for Direction {
    fn default() -> Self {
        Self::new()
    }
}

impl Direction {
    /// Over TCP, before the turn.
    pub(crate) const fn new() -> Self {
        Direction(AtomicU64::new(0))
    }

    /// A word that a peer made up.
    #[cfg(test)]
    #[allow(dead_code, reason = "the models and the simulation compile this file too")]
    pub(crate) fn of_word(word: u64) -> Self {
        Direction(AtomicU64::new(word))
    }

    /// The word now. Acquire: what the sender published before it left is seen.
    pub(crate) fn state(&self) -> DirectionState {
        DirectionState::of(self.0.load(Ordering::Acquire))
    }

    /// Changes the word by `change`, which gives `None` to leave it; the word before.
    fn update(&self, mut change: impl FnMut(u64) -> Option<u64>) -> DirectionState {
        let mut word = self.0.load(Ordering::SeqCst);
        while let Some(wanted) = change(word) {
            match self.0.compare_exchange_weak(word, wanted, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        DirectionState::of(word)
    }

    /// The receiver looks at the SAN from now on: the sender may turn.
    pub(crate) fn enter(&self) {
        self.0.fetch_or(ENTERED, Ordering::SeqCst);
    }

    /// The receiver is about to take bytes of the stream off the TCP connection, without waiting there; false if the
    /// sender has turned, and so said how many there are. [`took`](Self::took) follows.
    pub(crate) fn take(&self) -> bool {
        let mut takes = false;
        self.update(|word| {
            takes = word & TURNED == 0 && word & MOST_TAKING != MOST_TAKING;
            takes.then(|| word + TAKING)
        });
        takes
    }

    /// As [`take`](Self::take), by `receive`; `None` if the sender has turned.
    pub(crate) fn while_taking<T>(&self, receive: impl FnOnce() -> T) -> Option<T> {
        self.take().then(|| {
            let received = receive();
            self.took();
            received
        })
    }

    /// It has taken them.
    pub(crate) fn took(&self) {
        self.update(|word| (word & MOST_TAKING != 0).then(|| word - TAKING));
    }

    /// From now on the sender's bytes go over the SAN. False if the receiver does not look there, takes bytes at this
    /// moment, or wants them over TCP: they go on there.
    pub(crate) fn turn(&self) -> bool {
        let mut turned = false;
        self.update(|word| {
            let may = word & (ENTERED | TURNED | LEFT | RECALLED | MOST_TAKING) == ENTERED;
            turned = may;
            may.then_some(word | TURNED)
        });
        turned
    }

    /// Between hosts this is a picture of the sender's word. That says now that the direction turned.
    pub(crate) fn show_turned(&self) {
        self.update(|word| Some(word | ENTERED | TURNED));
    }

    /// Nothing ever went over TCP.
    #[cfg(test)]
    pub(crate) fn begin_turned(&self) {
        self.show_turned();
    }

    /// The sender is about to ring for what it sent over the SAN. False: the direction goes back to TCP, and the end
    /// that leaves tells the receiver.
    pub(crate) fn ring(&self) -> bool {
        let before = self.update(|word| {
            let may = word & (LEFT | RECALLED | TURNED) == TURNED;
            may.then_some((word & !RINGS) | (word.wrapping_add(1) & RINGS))
        });
        before.turned && !before.is_final()
    }

    /// The sender is about to send again over TCP what is unread, and then to leave; false if the receiver recalled that.
    pub(crate) fn pull(&self) -> bool {
        let mut pulled = false;
        self.update(|word| {
            pulled = word & (LEFT | RECALLED | TURNED) == TURNED;
            pulled.then_some(word | PULLED)
        });
        pulled
    }

    /// The sender leaves the SAN; what it sent there is visible before. The word before.
    pub(crate) fn leave(&self) -> DirectionState {
        self.update(|word| (word & LEFT == 0).then_some(word | LEFT))
    }

    /// Between hosts this is a picture of the sender's word. That says now that the sender was recalled.
    pub(crate) fn show_recalled(&self) {
        self.update(|word| Some(word | RECALLED));
    }

    /// The same: it pulled.
    pub(crate) fn show_pulled(&self) {
        self.update(|word| Some(word | PULLED));
    }

    /// The same: it left.
    pub(crate) fn show_left(&self) {
        self.update(|word| Some(word | LEFT));
    }

    /// The receiver, which saw this before it last looked, has stopped reading from the SAN, and wants the rest over TCP.
    /// False where the sender has left, pulled, closed or rung since: what it sent before that is to be read here.
    pub(crate) fn recall(&self, seen: DirectionState) -> bool {
        let mut recalled = false;
        self.update(|word| {
            let now = DirectionState::of(word);
            let is_as_seen = (now.closed, now.rings) == (seen.closed, seen.rings);
            recalled = !now.is_final() && !now.pulled && is_as_seen;
            recalled.then_some(word | RECALLED)
        });
        recalled
    }

    /// Between hosts: the receiver's end asks for that, and the sender's grants it, unless it left, pulled or closed. The
    /// word before.
    pub(crate) fn grant_recall(&self) -> DirectionState {
        let goes_another_way = LEFT | RECALLED | PULLED | CLOSED;
        self.update(|word| (word & goes_another_way == 0).then_some(word | RECALLED))
    }

    /// The receiver, which has recalled the direction, is about to send again in the sender's stead; false if the
    /// sender has come to it. [`release`](Self::release) follows.
    pub(crate) fn claim(&self) -> bool {
        let mut claimed = false;
        self.update(|word| {
            let sender_rests = word & (LEFT | CLOSED | CLAIMED) == 0;
            claimed = sender_rests && word & RECALLED != 0;
            claimed.then_some(word | CLAIMED | REPLAYED)
        });
        claimed
    }

    /// The receiver has done what it could.
    pub(crate) fn release(&self) {
        self.0.fetch_and(!CLAIMED, Ordering::SeqCst);
    }

    /// The sender closes, and what it sent lies where it is read from: it can not be recalled any more. The word
    /// before: if the direction was recalled nothing changes, and the sender has to send again first.
    pub(crate) fn close(&self) -> DirectionState {
        self.update(|word| (word & (LEFT | RECALLED) == 0).then_some(word | CLOSED))
    }
}
