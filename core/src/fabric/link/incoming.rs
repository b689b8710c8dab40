//! Takes frames in, in their order. The thread that takes the port's completions does this.

use super::body::Body;
use super::outgoing::Tell;
use super::state::{stage, CompletionTaker, Link};
use crate::fabric::frame::{self, FrameKind, FrameState};
use crate::provider::interface::Error;
use crate::provider::shm::Right;
use crate::session::{Header, Kind, HEADER_SIZE};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

/// A frame that may not come, or not with that.
struct Wrong;

impl CompletionTaker {
    /// No more may come for the send buffer than it holds.
    fn check_room(&self, body: &Body, count: u64) -> Result<(), Wrong> {
        let size = u64::from(body.segment.geometry().send_buffer);
        let head = body.segment.side(body.role).receiving.0.head.load(Acquire);
        let used = self.tail.wrapping_sub(head);
        if used.saturating_add(count) > size {
            Err(Wrong)
        } else {
            Ok(())
        }
    }

    /// True if it concerns a thread that sends.
    fn take_message(&mut self, body: &Body, payload: &[u8]) -> Result<bool, Wrong> {
        let (header, rest) = payload.split_at_checked(HEADER_SIZE).ok_or(Wrong)?;
        let word = |i: usize| {
            let bytes = [header[4 * i], header[4 * i + 1], header[4 * i + 2], header[4 * i + 3]];
            u32::from_le_bytes(bytes)
        };
        let words = [word(0), word(1), word(2), word(3)];
        let most = body.segment.geometry().message_size as usize - HEADER_SIZE;
        if words[0] != self.message || rest.len() > most || words[3] as usize != rest.len() {
            return Err(Wrong);
        }
        let slot = body.segment.slot(body.role.peer(), self.message, false);
        // A peer that sends without credit overwrites what it sent itself.
        slot.payload().write(rest);
        slot.publish(words);
        self.message = self.message.wrapping_add(1);
        Ok(is_for_sender(words))
    }

    fn take_bytes(&mut self, body: &Body, payload: &[u8]) -> Result<(), Wrong> {
        self.check_room(body, payload.len() as u64)?;
        let ring = body.segment.send_buffer(body.role.peer(), false);
        let mut rest = payload;
        while !rest.is_empty() {
            // Where nothing unread lies.
            let to = ring.stretch(self.tail, rest.len());
            to.write(&rest[..to.length()]);
            self.tail += to.length() as u64;
            rest = &rest[to.length()..];
        }
        self.publish_tail(body);
        Ok(())
    }

    fn note_written(&mut self, body: &Body, count: u64) -> Result<(), Wrong> {
        self.check_room(body, count)?;
        self.tail += count;
        self.publish_tail(body);
        Ok(())
    }

    fn publish_tail(&self, body: &Body) {
        body.segment.side(body.role.peer()).sending.0.tail.swap(self.tail, SeqCst);
    }
}

impl Link {
    /// A frame came over the queue pair in use. Called by the thread that takes the port's completions.
    pub(in crate::fabric) fn arrived(&self, bytes: &[u8]) {
        let wrong = match frame::decode(bytes) {
            Err(frame::Malformed) => Some(format!("{} bytes that are no frame", bytes.len())),
            Ok((kind, state, payload)) => {
                let applied = self.apply(kind, &state, payload);
                applied
                    .err()
                    .map(|Wrong| format!("a {kind:?} frame that may not come, or not with that"))
            }
        };
        if let Some(why) = wrong {
            self.refuse_peer(&why);
        }
    }

    /// The peer wrote so many bytes where it streams to. A write that tells of itself comes without the peer's state,
    /// and in the order of the frames.
    pub(in crate::fabric) fn peer_wrote(&self, count: u32) {
        let body = self.body.get().filter(|_| self.stage() == stage::OPEN && self.may_be_written());
        // SAFETY: the thread that takes the port's completions calls this, one at a time.
        let into = unsafe { &mut *self.into.get() };
        match body
            .ok_or(Wrong)
            .and_then(|body| into.note_written(body, count.into()).map(|()| body))
        {
            Ok(body) => self.wake(body, true, false),
            Err(Wrong) => self.refuse_peer("a write that may not come, or not of so many bytes"),
        }
    }

    /// Ends the connection of a peer that broke the protocol.
    #[cold]
    fn refuse_peer(&self, why: &str) {
        if self.failed.load(Relaxed) {
            return;
        }
        log::error!("link {:x}: the peer broke the protocol: {why}", self.id);
        if let Some(wire) = self.wire() {
            let _ = wire.pair.flush();
            // The peer may have nothing under way that would tell it.
            let _ = wire.connector.disconnect(0);
        }
        self.fail(Error::ConnectionReset);
    }

    fn apply(&self, kind: FrameKind, state: &FrameState, payload: &[u8]) -> Result<(), Wrong> {
        let makes_sense = match kind {
            FrameKind::Proof => self.heed_conclusion(payload),
            FrameKind::Entered => self.peer_entered(),
            FrameKind::Refused => self.note_refused(),
            FrameKind::Withdraw => self.heed_withdrawal(),
            FrameKind::Move => self.heed_move(payload),
            FrameKind::Moved => self.heed_moved(),
            FrameKind::Ring => self.take_ring(payload),
            FrameKind::State
            | FrameKind::Message
            | FrameKind::Bytes
            | FrameKind::Written
            | FrameKind::Turned
            | FrameKind::Pulled
            | FrameKind::Left
            | FrameKind::Ask
            | FrameKind::Answer
            | FrameKind::Lend
            | FrameKind::Recall
            | FrameKind::ReadLent
            | FrameKind::WroteLent => return self.apply_in_use(kind, state, payload),
        };
        if !makes_sense {
            return Err(Wrong);
        }
        // The peer tells nothing twice, and each of its frames tells all that it has read.
        if let Some(body) = self.body.get().filter(|_| self.stage() == stage::OPEN) {
            self.heed_state(body, state, (false, false));
        }
        Ok(())
    }

    /// Applies a frame that may come once both ends use the link.
    fn apply_in_use(
        &self,
        kind: FrameKind,
        state: &FrameState,
        payload: &[u8],
    ) -> Result<(), Wrong> {
        let body = self.body.get().filter(|_| self.stage() == stage::OPEN).ok_or(Wrong)?;
        let makes_sense = match kind {
            FrameKind::Turned => self.peer_turned(body, payload),
            FrameKind::Pulled => self.peer_pulled(body, payload),
            FrameKind::Left => self.peer_left(body, payload),
            FrameKind::Ask => self.peer_asks(body, state, payload),
            FrameKind::Answer => self.peer_answers(body, payload),
            FrameKind::Lend => self.note_lent(body, payload),
            FrameKind::Recall => self.heed_recall(body, payload),
            FrameKind::ReadLent => self.note_usage(body, Right::Read, payload),
            FrameKind::WroteLent => self.note_usage(body, Right::Write, payload),
            _ => true,
        };
        if !makes_sense {
            return Err(Wrong);
        }
        let mut room = false;
        // SAFETY: the thread that takes the port's completions calls this, one at a time.
        let into = unsafe { &mut *self.into.get() };
        match kind {
            FrameKind::Message => room |= into.take_message(body, payload)?,
            FrameKind::Bytes => {
                into.take_bytes(body, payload)?;
                self.consider_offer(body, into.tail);
            }
            FrameKind::Written => into.note_written(body, self.written(payload).ok_or(Wrong)?)?,
            _ => {}
        }
        self.heed_state(body, state, (kind != FrameKind::State, room));
        Ok(())
    }

    /// Publishes what the peer says of itself, and wakes the threads for which there is news, or room to send.
    fn heed_state(&self, body: &Body, state: &FrameState, (news, room): (bool, bool)) {
        let (more, more_room) = note_state(body, state);
        if news || room || more || more_room {
            self.wake(body, news || more, room || more_room);
        }
        if self.starved.load(Relaxed) {
            self.push(Tell::Due);
        }
    }
}

/// True if a thread that sends may wait for a message with this header (A5, A6).
fn is_for_sender(words: [u32; 4]) -> bool {
    Header::decode(words, u32::MAX).is_ok_and(|header| match header.kind {
        Kind::TransferComplete | Kind::Advertisement | Kind::SendInMessages | Kind::Rediscover => {
            true
        }
        // With an advertisement.
        Kind::Data => header.body_size() > 0,
        _ => false,
    })
}

/// Publishes what the peer says of itself, behind the data: whether that is news for this end, and whether it has room
/// to send again.
fn note_state(body: &Body, state: &FrameState) -> (bool, bool) {
    let (own, peer) = (body.segment.side(body.role), body.segment.side(body.role.peer()));
    let (sending, receiving) = (&peer.sending.0, &peer.receiving.0);
    // Before the end, by which it is judged.
    receiving.total.store(state.total, SeqCst);
    // The other bits are this end's own.
    let changed = |finished: u32| {
        let known = finished & FrameState::FINISHED_BITS;
        (known != state.finished).then_some(finished ^ known | state.finished)
    };
    let mut news = sending.finished.fetch_update(SeqCst, SeqCst, changed).is_ok();
    if sending.stalled.swap(state.stalled, SeqCst) != state.stalled {
        news = true;
    }
    let room = receiving.head.swap(state.head, SeqCst) != state.head && {
        let waiting = own.sending.0.tail.load(Relaxed).wrapping_sub(state.head);
        waiting <= u64::from(body.segment.geometry().send_buffer) / 2
    };
    (news, room)
}
