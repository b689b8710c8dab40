//! The suspended session (D4, D5, D7). Before control of an end moves to another process, both ends finish what is
//! under way and release their RDMA memory. Nothing new begins before control has moved.
//!
//! The end whose control moves asks (Suspend), waits for the answer (Suspended), moves, and resumes (Resume). It may
//! resume at any time before as well: then nothing was suspended. Each request has a number, so that the end recognises
//! an answer that comes too late. This module releases no memory, does not wait, and knows no clock.
//!
//! The state lies in memory that the processes of one end share and the peer cannot write. So a process that takes over
//! from one that died in the middle goes on: [`Suspension::resumption`].

use super::control::Control;
use super::error::ProtocolError;
use super::header::Kind;
use super::sync::{AtomicU32, AtomicU64, Ordering};

/// Nothing is suspended by this request, which may be of the past.
const OVER: u64 = 0;
/// Asked, not answered.
const ASKED: u64 = 1;
/// Answered: the session is suspended.
const SUSPENDED: u64 = 2;
/// The peer asked at once and goes first. This end does not answer. The next request, or Resume, ends this.
const GAVE_WAY: u64 = 3;
/// The peer's: it gives way to ours.
const DISREGARDED: u64 = 4;

const fn pack(number: u32, phase: u64) -> u64 {
    (number as u64) << 32 | phase
}

const fn number(word: u64) -> u32 {
    (word >> 32) as u32
}

const fn phase(word: u64) -> u64 {
    word & 0xffff_ffff
}

/// What one end knows of suspensions. Zeroed memory is a valid start.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Suspension {
    /// Our newest request: number in the upper half, phase in the lower.
    ours: AtomicU64,
    /// The peer's newest request, alike.
    theirs: AtomicU64,
    /// Scans since that was answered; see [`Suspension::scan`].
    scans: AtomicU32,
    /// How often a request of ours was answered in time. Receive lock.
    completed: AtomicU32,
}

fn change(word: &AtomicU64, decide: impl Fn(u64) -> Option<u64>) -> bool {
    word.fetch_update(Ordering::AcqRel, Ordering::Acquire, decide).is_ok()
}

impl Suspension {
    /// Asks: the message to send at once. `None`: the peer's request holds, wait until it resumes.
    /// Both locks, three credits: the answer's buffer does not matter, but Resume must be able
    /// to follow without one, and it leaves the last (A17).
    pub fn ask(&self) -> Option<Control> {
        if matches!(phase(self.theirs.load(Ordering::Acquire)), ASKED | SUSPENDED) {
            return None;
        }
        let next = number(self.ours.load(Ordering::Acquire)).wrapping_add(1);
        // This comes before the request is sent: a process that takes over from us resumes, whether it was sent or not.
        self.ours.store(pack(next, ASKED), Ordering::Release);
        Some(Control::Suspend(next))
    }

    /// True once the peer answered our request: it has nothing under way and no RDMA memory.
    #[inline]
    pub fn is_suspended(&self) -> bool {
        phase(self.ours.load(Ordering::Acquire)) == SUSPENDED
    }

    /// True if our request gave way to the peer's: ask again when that is over, or resume.
    #[inline]
    pub fn gave_way(&self) -> bool {
        phase(self.ours.load(Ordering::Acquire)) == GAVE_WAY
    }

    /// True from our request to its end.
    #[inline]
    pub fn is_asking(&self) -> bool {
        phase(self.ours.load(Ordering::Acquire)) != OVER
    }

    /// The message that ends our request, answered or not, if it may be sent now: not while the
    /// peer moves, to which we gave way. Send it and call [`resumed`](Self::resumed).
    pub fn resumption(&self) -> Option<Control> {
        let ours = self.ours.load(Ordering::Acquire);
        (phase(ours) != OVER && !self.is_suspended_by_peer()).then(|| Control::Resume(number(ours)))
    }

    /// [`resumption`](Self::resumption) was sent. Send lock.
    pub fn resumed(&self) {
        change(&self.ours, |ours| Some(pack(number(ours), OVER)));
    }

    /// The answer that the peer waits for: to be sent once no send and no RDMA is under way here and
    /// no memory is lent, followed by [`answered`](Self::answered).
    #[inline]
    pub fn answer(&self) -> Option<Control> {
        let theirs = self.theirs.load(Ordering::Acquire);
        (phase(theirs) == ASKED).then(|| Control::Suspended(number(theirs)))
    }

    /// [`answer`](Self::answer) was sent. Send lock.
    pub fn answered(&self) {
        self.scans.store(0, Ordering::Relaxed);
        change(&self.theirs, |theirs| {
            (phase(theirs) == ASKED).then(|| pack(number(theirs), SUSPENDED))
        });
    }

    /// True from a request, of either end, to its end: no message but this module's is sent, not even a
    /// credit update, and once the peer's was answered none at all; no RDMA begins, no receive is posted for it. Sends are kept in the send buffer (D5).
    #[inline]
    pub fn holds_back(&self) -> bool {
        self.is_asking() || matches!(phase(self.theirs.load(Ordering::Acquire)), ASKED | SUSPENDED)
    }

    /// True while the peer moves: its request was answered, and is not over.
    pub fn is_suspended_by_peer(&self) -> bool {
        phase(self.theirs.load(Ordering::Acquire)) == SUSPENDED
    }

    /// A periodic look at a session that the peer suspended. True: the peer did not resume within `most` of them (D12).
    /// The provider knows what that means: where the processes share the connection nothing is lost, and where it was
    /// torn down it ends.
    pub fn scan(&self, most: u32) -> bool {
        if !self.is_suspended_by_peer() {
            return false;
        }
        let scans = self.scans.load(Ordering::Relaxed).saturating_add(1);
        self.scans.store(scans, Ordering::Relaxed);
        scans > most
    }

    /// Changes with every request of either end.
    #[inline]
    pub(crate) fn stamp(&self) -> u32 {
        let [ours, theirs] = [&self.ours, &self.theirs].map(|word| word.load(Ordering::Acquire));
        number(ours).wrapping_add(number(theirs))
    }

    /// How often a request of ours was answered in time.
    pub fn completed(&self) -> u32 {
        self.completed.load(Ordering::Relaxed)
    }

    /// Takes in a control message; false: it concerns something else. `connector`: we called connect.
    /// Receive lock.
    ///
    /// # Errors
    /// [`ProtocolError`] if no honest peer sends this number.
    pub fn obey(&self, control: &Control, connector: bool) -> Result<bool, ProtocolError> {
        match *control {
            Control::Suspend(n) => self.asked(n, connector)?,
            Control::Suspended(n) => self.was_answered(n)?,
            Control::Resume(n) => self.was_resumed(n)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn asked(&self, n: u32, connector: bool) -> Result<(), ProtocolError> {
        let newest = number(self.theirs.load(Ordering::Acquire));
        if n.wrapping_sub(newest) as i32 <= 0 {
            return Err(wrong_number(Kind::Suspend, n));
        }
        let ours = self.ours.load(Ordering::Acquire);
        if connector && phase(ours) == ASKED {
            self.theirs.store(pack(n, DISREGARDED), Ordering::Release);
            return Ok(());
        }
        // Before ours changes: in between nothing new must begin.
        self.theirs.store(pack(n, ASKED), Ordering::Release);
        change(&self.ours, |ours| (phase(ours) == ASKED).then(|| pack(number(ours), GAVE_WAY)));
        Ok(())
    }

    fn was_answered(&self, n: u32) -> Result<(), ProtocolError> {
        let ours = self.ours.load(Ordering::Acquire);
        if (number(ours).wrapping_sub(n) as i32) < 0 {
            return Err(wrong_number(Kind::Suspended, n));
        }
        // It comes too late, or twice because the peer's process died meanwhile: nobody waits for it.
        if change(&self.ours, |ours| (ours == pack(n, ASKED)).then(|| pack(n, SUSPENDED))) {
            self.completed.store(self.completed().wrapping_add(1), Ordering::Relaxed);
        }
        Ok(())
    }

    fn was_resumed(&self, n: u32) -> Result<(), ProtocolError> {
        // A number that is newer: its Suspend was not sent before its process died.
        if n.wrapping_sub(number(self.theirs.load(Ordering::Acquire))) as i32 >= 0 {
            self.theirs.store(pack(n, OVER), Ordering::Release);
            return Ok(());
        }
        Err(wrong_number(Kind::Resume, n))
    }
}

fn wrong_number(kind: Kind, number: u32) -> ProtocolError {
    ProtocolError::Body { kind, field: "number", value: number.into() }
}
