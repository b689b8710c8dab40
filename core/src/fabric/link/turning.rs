//! The ends tell each other of the turn of either direction from TCP to the link. The [switch](crate::switch) says at
//! which byte that is.

use super::body::Body;
use super::outgoing::Tell;
use super::sender::{Full, LinkSender};
use super::state::Link;
use crate::fabric::frame::FrameKind;
use crate::session::DirectionState;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

impl Link {
    /// Tells that this end turned, if its word says so.
    pub(super) fn send_turned(
        &self,
        out: &mut LinkSender,
        body: &Body,
        word: DirectionState,
    ) -> Result<(), Full> {
        let told = &self.returning.turned;
        if word.turned && told.load(Relaxed) == 0 {
            let at = body.segment.side(body.role).sending.0.turned_at.load(Acquire);
            self.send(out, FrameKind::Turned, &[&at.to_le_bytes()])?;
            told.store(self.posted.load(Relaxed), SeqCst);
        }
        Ok(())
    }

    /// The peer turned; false if that makes no sense. Over another queue pair it says so again.
    pub(super) fn peer_turned(&self, body: &Body, payload: &[u8]) -> bool {
        let Ok(at) = payload.try_into().map(u64::from_le_bytes) else { return false };
        let sending = &body.segment.side(body.role.peer()).sending.0;
        if sending.direction.state().turned {
            return sending.turned_at.load(Relaxed) == at;
        }
        sending.turned_at.store(at, Release);
        sending.direction.show_turned();
        true
    }

    /// Tells the peer's end that this one turned. True if it has heard. If not, it will in a moment. The peer does not
    /// take what goes over TCP after that for bytes from before the turn.
    pub(crate) fn make_turn_known(&self) -> bool {
        let Some(controller) = self.controller() else { return false };
        if !self.is_ours() {
            if !controller.is_turn_known() {
                self.kick_owner();
            }
            return controller.is_turn_known();
        }
        if !self.note_told_turn() {
            self.push(Tell::Certain);
            self.poll();
        }
        self.note_told_turn()
    }

    /// By the controlling process: true if the peer has heard, which is noted for relatives then.
    pub(super) fn note_told_turn(&self) -> bool {
        let is_known = self.is_heard(&self.returning.turned);
        if let Some(controller) = self.controller().filter(|_| is_known) {
            controller.note_turn_known();
        }
        is_known
    }
}
