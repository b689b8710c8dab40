//! The way back to TCP of a connection over a queue pair.
//!
//! On one host the ends agree by one word for each direction in shared memory
//! ([`Direction`](crate::session::Direction)). Here each end has a picture of the peer's word, and the sender's own
//! word decides. A receiver *asks* the sender to send again what it did not read. It reads nothing until the sender's
//! end has answered. A sender that *pulls* sends that again by itself, and tells from where on before it leaves.
//!
//! Links answer by themselves. The switch decides what is to be done, and in which order.

use super::body::Body;
use super::outgoing::Tell;
use super::sender::{Full, LinkSender};
use super::state::Link;
use crate::fabric::frame::{FrameKind, FrameState};
use crate::fabric::helper;
use crate::provider::shm::{Asked, RETURNED};
use crate::session::DirectionState;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// Encodes a sender's word: whether it sends again what was not read.
fn encode(word: DirectionState) -> [u8; 4] {
    u32::from(word.recalled).to_le_bytes()
}

fn decode(payload: &[u8]) -> Option<bool> {
    Some(u32::from_le_bytes(payload.try_into().ok()?) != 0)
}

impl Link {
    /// Asks the peer to send again over TCP what this end did not read, and is not going to read. The segment says how
    /// far this end came. A caller repeats this until the peer [answers](Self::answer), as the process that asked may
    /// have died.
    pub(crate) fn ask_again(&self) {
        if let Some(body) = self.body.get() {
            body.segment.side(body.role).receiving.0.ask(Asked::Pending);
            self.tell_return();
        }
    }

    /// The peer's answer to [`ask_again`](Self::ask_again): `None`, not yet. False: this end is to read here all that
    /// the peer sent.
    pub(crate) fn answer(&self) -> Option<bool> {
        let body = self.body.get()?;
        let [_, peer] = body.words();
        match body.asked() {
            _ if peer.recalled => Some(true),
            Asked::Denied => Some(false),
            _ if peer.left => Some(false),
            _ => None,
        }
    }

    /// The end's word changed, or what it asks for: the peer is told.
    pub(crate) fn tell_return(&self) {
        self.push(Tell::Certain);
        helper::wake_if_dormant();
    }

    /// True if the peer does not know all of it.
    pub(super) fn owes_return(&self, body: &Body) -> bool {
        let [own, _] = body.words();
        let told = &self.returning;
        (own.left && told.left.load(Acquire) == 0)
            || (body.asked() == Asked::Pending && !told.asked.load(Acquire))
    }

    /// Asks, before anything else: what this end publishes does not matter for that.
    pub(super) fn send_question(&self, out: &mut LinkSender, body: &Body) -> Result<(), Full> {
        let told = &self.returning;
        if body.asked() == Asked::Pending && !told.asked.load(Relaxed) {
            let receiving = &body.segment.side(body.role).receiving.0;
            let stopped_at = receiving.stopped_at.load(Acquire).to_le_bytes();
            self.send(out, FrameKind::Ask, &[&stopped_at])?;
            told.asked.store(true, SeqCst);
        }
        Ok(())
    }

    /// Tells that this end sends again by itself, and from where on. If its process dies before it has left, the peer takes
    /// nothing of that off TCP, and reads on in the segment.
    pub(super) fn send_pulled(
        &self,
        out: &mut LinkSender,
        body: &Body,
        word: DirectionState,
    ) -> Result<(), Full> {
        let told = &self.returning.pulled;
        if word.pulled && !told.load(Relaxed) {
            let from = body.segment.side(body.role).leaving.0.resent_from.load(Acquire);
            self.send(out, FrameKind::Pulled, &[&from.to_le_bytes()])?;
            told.store(true, SeqCst);
        }
        Ok(())
    }

    /// Tells that this end left, if its word said so before the data was looked at that was sent since.
    pub(super) fn send_left(&self, out: &mut LinkSender, word: DirectionState) -> Result<(), Full> {
        let told = &self.returning.left;
        if word.left && told.load(Relaxed) == 0 {
            self.send(out, FrameKind::Left, &[&encode(word)])?;
            told.store(self.posted.load(Relaxed), SeqCst);
        }
        Ok(())
    }

    /// The peer's word: it sends again by itself. False if that makes no sense.
    pub(super) fn peer_pulled(&self, body: &Body, payload: &[u8]) -> bool {
        let Ok(from) = payload.try_into().map(u64::from_le_bytes) else { return false };
        let peer = body.segment.side(body.role.peer());
        peer.leaving.0.resent_from.store(from, Release);
        peer.sending.0.direction.show_pulled();
        true
    }

    /// The peer's word: it sends over TCP from now on. False if that makes no sense.
    pub(super) fn peer_left(&self, body: &Body, payload: &[u8]) -> bool {
        let Some(recalled) = decode(payload) else { return false };
        let direction = &body.segment.side(body.role.peer()).sending.0.direction;
        if recalled {
            // Where the answer was lost on the way to another queue pair.
            direction.show_recalled();
        }
        direction.show_left();
        self.returns(body);
        true
    }

    /// The peer reads nothing more here. False if that makes no sense.
    pub(super) fn peer_asks(&self, body: &Body, state: &FrameState, payload: &[u8]) -> bool {
        let Ok(stopped_at) = payload.try_into().map(u64::from_le_bytes) else { return false };
        let own = &body.segment.side(body.role).sending.0.direction;
        let receiving = &body.segment.side(body.role.peer()).receiving.0;
        if !own.state().recalled {
            receiving.stopped_at.store(stopped_at, Relaxed);
            receiving.total.store(state.total, Relaxed);
            receiving.head.store(state.head, SeqCst);
            let before = own.grant_recall();
            // This comes before a woken thread leaves, and says so.
            self.due.fetch_or(1 << FrameKind::Answer as u32, SeqCst);
            if !before.left && !before.closed {
                self.returns(body);
            }
        }
        self.note(FrameKind::Answer);
        true
    }

    /// Answers the peer's question.
    pub(super) fn send_answer(&self, out: &mut LinkSender) -> Result<(), Full> {
        let word = self.body.get().map_or(DirectionState::default(), |body| body.words()[0]);
        self.send(out, FrameKind::Answer, &[&encode(word)])?;
        if word.recalled {
            self.returning.granted.store(self.posted.load(Relaxed), SeqCst);
        }
        Ok(())
    }

    /// The peer answers. False if that makes no sense.
    pub(super) fn peer_answers(&self, body: &Body, payload: &[u8]) -> bool {
        let Some(granted) = decode(payload) else { return false };
        let receiving = &body.segment.side(body.role).receiving.0;
        if receiving.asked() != Asked::Pending {
            // To a question that was asked again over another queue pair.
            return true;
        }
        if granted {
            let sending = &body.segment.side(body.role.peer()).sending.0;
            sending.direction.show_recalled();
            receiving.ask(Asked::Nothing);
        } else {
            receiving.ask(Asked::Denied);
        }
        self.returning.asked.store(false, SeqCst);
        self.wake(body, true, true);
        true
    }

    /// The end is to look: its peer goes back.
    fn returns(&self, body: &Body) {
        body.segment.side(body.role.peer()).sending.0.finished.fetch_or(RETURNED, SeqCst);
        self.wake(body, true, true);
        helper::wake_if_dormant();
    }

    /// This process has done what it can about that.
    pub(in crate::fabric) fn note_seen_to(&self) {
        self.returning.is_seen_to.store(true, Relaxed);
    }

    /// True if this end is to send again over TCP, and has not come to it.
    pub(in crate::fabric) fn is_returning(&self) -> bool {
        let is_due = |body: &Body| {
            let [own, _] = body.words();
            own.recalled && !own.left
        };
        self.is_ours()
            && !self.returning.is_seen_to.load(Relaxed)
            && self.body.get().is_some_and(is_due)
    }

    /// True if the peer may have to hear something still before the link ends.
    pub(crate) fn is_needed(&self) -> bool {
        self.is_taken() && !self.has_returned() && !self.is_refused()
    }

    /// True if the peer has heard what was told when so many requests were posted; zero: it was not told.
    pub(super) fn is_heard(&self, told: &AtomicU64) -> bool {
        let posted = told.load(Acquire);
        posted != 0 && self.completed.load(Acquire) >= posted
    }

    /// True if nothing is left for the link to carry, because both directions are TCP's: its end is no concern.
    pub(crate) fn has_returned(&self) -> bool {
        self.body.get().is_some_and(|body| {
            let [own, peer] = body.words();
            let told = &self.returning;
            // Later messages may be lost: the peer needs nothing more. Where the link broke, the peer has heard; or its end
            // finds that as well, and TCP tells of it.
            let peer_knows = !self.is_ours()
                || self.is_heard(&told.granted)
                || self.is_heard(&told.left)
                || self.failed.load(Acquire);
            own.is_final() && peer.is_final() && peer_knows
        })
    }
}
