//! What the bytes of the TCP connection are, in one word for each direction. Until the turn to the SAN they are the stream
//! itself. Then they are doorbells. From the way back on they are the stream again. Both ends read and change the word,
//! and so agree at which byte one becomes the other. Must not move bytes.

use super::sync::{AtomicU64, Ordering};

const LEFT: u64 = 1 << 63;
const RECALLED: u64 = 1 << 62;
const CLOSED: u64 = 1 << 61;
const RINGING: u64 = 1 << 60;
const CLAIMED: u64 = 1 << 59;
const REPLAYED: u64 = 1 << 58;
/// The sender's bytes go over the SAN from some position on, which `BELLS` began with.
const TURNED: u64 = 1 << 57;
/// The receiver looks there, and no thread of its end waits in the kernel for bytes alone.
const ENTERED: u64 = 1 << 56;
/// One thread of the receiver's takes bytes off the TCP connection at this moment.
const TAKING: u64 = 1 << 48;
const MOST_TAKING: u64 = 0xff * TAKING;
const BELLS: u64 = TAKING - 1;

/// One direction's word: how many bytes its sender ever promised to put on the anchor, and which way the direction goes.
/// The bytes of the stream from before the turn are counted too.
///
/// A doorbell is promised before it is sent, and between the turn and the way back nothing but doorbells is sent. So a
/// receiver that takes no more bytes off than were promised never takes one of the stream.
///
/// It lies in memory that both ends can write. A wrong value spoils the peer's own stream.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Doorbells(AtomicU64);

/// What a [`Doorbells`] word says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rung {
    /// Bytes of the stream before the turn, and doorbells promised since; final once `left` or `recalled`.
    pub(crate) bells: u64,
    /// The sender's bytes go over the SAN.
    pub(crate) turned: bool,
    /// The receiver looks there.
    pub(crate) entered: bool,
    /// The sender left: what it had sent over the SAN before is to be read from there, then come
    /// the doorbells, then the rest of the stream over TCP.
    pub left: bool,
    /// The receiver has stopped reading from the SAN: the sender sends what was not read once more.
    pub(crate) recalled: bool,
    /// The sender closed: nobody is there any more who could send again.
    pub closed: bool,
    /// The sender is about to send a doorbell.
    pub(crate) ringing: bool,
    /// The receiver is sending again, over the sender's socket, what it recalled.
    pub claimed: bool,
    /// It has been: the kernel knows how much of it the sender need not send again.
    pub(crate) replayed: bool,
}

impl Rung {
    fn of(word: u64) -> Self {
        Rung {
            bells: word & BELLS,
            turned: word & TURNED != 0,
            entered: word & ENTERED != 0,
            left: word & LEFT != 0,
            recalled: word & RECALLED != 0,
            closed: word & CLOSED != 0,
            ringing: word & RINGING != 0,
            claimed: word & CLAIMED != 0,
            replayed: word & REPLAYED != 0,
        }
    }

    /// True if no further doorbell will be promised.
    pub(crate) fn is_final(self) -> bool {
        self.left || self.recalled
    }
}

impl Default for Doorbells {
    fn default() -> Self {
        Self::new()
    }
}

impl Doorbells {
    /// Nothing promised.
    pub(crate) const fn new() -> Self {
        Doorbells(AtomicU64::new(0))
    }

    /// The word now. Acquire: what the sender published before it left is seen.
    pub(crate) fn state(&self) -> Rung {
        Rung::of(self.0.load(Ordering::Acquire))
    }

    /// Changes the word by `change`, which gives `None` to leave it; the word before.
    fn update(&self, mut change: impl FnMut(u64) -> Option<u64>) -> Rung {
        let mut word = self.0.load(Ordering::SeqCst);
        while let Some(wanted) = change(word) {
            match self.0.compare_exchange_weak(word, wanted, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        Rung::of(word)
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
            takes.then_some(word + TAKING)
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
        self.update(|word| (word & MOST_TAKING != 0).then_some(word - TAKING));
    }

    /// The sender has put `position` bytes on the TCP connection, and what follows goes over the SAN. False if the
    /// receiver does not look there, takes bytes at this moment, or wants them over TCP: they go on there.
    pub(crate) fn turn(&self, position: u64) -> bool {
        let mut turned = false;
        self.update(|word| {
            let may = word & (ENTERED | TURNED | LEFT | RECALLED | MOST_TAKING) == ENTERED;
            turned = may;
            may.then_some((word & !BELLS) | (position & BELLS) | TURNED)
        });
        turned
    }

    /// Between hosts this is a picture of the sender's word. That says now that the direction turned, at this position.
    pub(crate) fn show_turned(&self, position: u64) {
        self.update(|word| Some((word & !BELLS) | (position & BELLS) | ENTERED | TURNED));
    }

    /// Nothing ever went over TCP.
    #[cfg(test)]
    pub(crate) fn begin_turned(&self) {
        self.show_turned(0);
    }

    /// The sender promises one doorbell, which it then must send; false if it must not any more. [`rung`](Self::rung)
    /// follows.
    pub(crate) fn promise(&self) -> bool {
        self.ring(1)
    }

    /// As [`promise`](Self::promise), for a doorbell that was promised before and not sent. False: whoever leaves
    /// sends it.
    pub(crate) fn resume(&self) -> bool {
        self.ring(0)
    }

    fn ring(&self, promised: u64) -> bool {
        let before = self.update(|word| {
            (word & (LEFT | RECALLED | TURNED) == TURNED).then_some((word + promised) | RINGING)
        });
        before.turned && !before.is_final()
    }

    /// The sender has sent what it promised, or found no room for it.
    pub(crate) fn rung(&self) {
        self.0.fetch_and(!RINGING, Ordering::SeqCst);
    }

    /// The sender leaves the SAN; what it sent there is visible before. The word before: unless
    /// the direction was recalled, or had never turned, one last doorbell was promised, which wakes the peer.
    pub(crate) fn leave(&self) -> Rung {
        self.update(|word| match word & (LEFT | RECALLED) {
            0 if word & TURNED != 0 => Some((word + 1) | LEFT),
            0 | RECALLED => Some(word | LEFT),
            _ => None,
        })
    }

    /// As [`leave`](Self::leave), where no doorbells are rung: none goes with it.
    pub(crate) fn leave_silently(&self) -> Rung {
        self.update(|word| (word & LEFT == 0).then_some(word | LEFT))
    }

    /// Between hosts this is a picture of the sender's word. That says now that the sender left, or was recalled, after
    /// so many doorbells.
    pub(crate) fn show(&self, bells: u64, left: bool) {
        let marks = if left { LEFT } else { RECALLED };
        self.update(|word| Some((word & !BELLS) | bells & BELLS | marks));
    }

    /// The receiver, which saw this before it last looked, has stopped reading from the SAN, and wants the rest over TCP.
    /// False where the sender has left, closed or promised a doorbell since: what it sent before that is to be read here.
    pub(crate) fn recall(&self, seen: Rung) -> bool {
        let mut recalled = false;
        self.update(|word| {
            let now = Rung::of(word);
            recalled = !now.is_final() && (now.closed, now.bells) == (seen.closed, seen.bells);
            recalled.then_some(word | RECALLED)
        });
        recalled
    }

    /// Between hosts: the receiver's end asks for that, and the sender's grants it, unless it left or closed. The word before.
    pub(crate) fn grant_recall(&self) -> Rung {
        self.update(|word| (word & (LEFT | RECALLED | CLOSED) == 0).then_some(word | RECALLED))
    }

    /// The receiver, which has recalled the direction, is about to send again in the sender's stead; false if the
    /// sender has come to it, or is in the middle of a doorbell. [`release`](Self::release) follows.
    pub(crate) fn claim(&self) -> bool {
        let mut claimed = false;
        self.update(|word| {
            let sender_rests = word & (LEFT | CLOSED | RINGING | CLAIMED) == 0;
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
    pub(crate) fn close(&self) -> Rung {
        self.update(|word| (word & (LEFT | RECALLED) == 0).then_some(word | CLOSED))
    }
}
