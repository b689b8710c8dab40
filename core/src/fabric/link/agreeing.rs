//! Both ends agree whether they use a link that stands. The connector's end enters first, then the acceptor's. The
//! connector's end may go back until the acceptor's has entered. After that the acceptor's end says which of the two
//! came first.

use super::body::Body;
use super::controller::Controller;
use super::outgoing::Tell;
use super::state::{stage, Link};
use crate::fabric::frame::FrameKind;
use crate::fabric::helper;
use crate::provider::interface::Error;
use crate::provider::shm::{AgreementState, Geometry, Role, Segment};
use crate::sys::{file, process};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::SeqCst;

impl Link {
    /// Makes the end's segment, which the link unmaps when it ends. Once, before anything can come.
    pub(in crate::fabric) fn make_segment(
        &self,
        geometry: Geometry,
        role: Role,
    ) -> Result<(), Error> {
        let made = Segment::create(geometry).map_err(|_| Error::InsufficientResources);
        let (segment, fd) = made?;
        file::close(fd);
        segment.agreement().decide(AgreementState::Taken);
        self.give_segment(segment, role);
        Ok(())
    }

    pub(in crate::fabric) fn give_segment(&self, segment: Segment, role: Role) {
        let body = Body { segment, role, controller: AtomicPtr::default() };
        body.have_link_rung();
        let _ = self.body.set(body);
        if self.has_failed() {
            self.tell_failed();
        }
    }

    /// The end's segment.
    pub(crate) fn segment(&self) -> Option<Segment> {
        self.body.get().map(|body| body.segment)
    }

    /// The end is about to enter. Its processes find out by `controller` which of them controls the link. Called once.
    ///
    /// # Safety
    ///
    /// `controller` is in memory that fork relatives share, and valid until the link lets go of the
    /// [`Users`](super::Users) it was closed with.
    pub(crate) unsafe fn attach(&self, controller: &Controller) {
        if let Some((_, mailbox)) = helper::mailbox() {
            controller.begin(mailbox, process::pid());
        }
        if let Some(body) = self.body.get() {
            body.controller.store(std::ptr::from_ref(controller).cast_mut(), SeqCst);
        }
    }

    /// The end has entered: its segment says so, and it looks there for what the peer sends.
    pub(crate) fn say_entered(&self) {
        let Some(body) = self.body.get() else { return };
        let now = match body.role {
            Role::Connector => stage::ENTERED,
            Role::Acceptor => stage::OPEN,
        };
        if self.stage() != stage::MADE {
            return;
        }
        // This end may have turned already. A thread that finds the new stage, and so sends that, finds this word too and
        // sends it first.
        let word = 1 << FrameKind::Entered as u32;
        self.due.fetch_or(word, SeqCst);
        match self.stage.compare_exchange(stage::MADE, now, SeqCst, SeqCst) {
            Ok(_) => self.push(Tell::Due),
            Err(_) => drop(self.due.fetch_and(!word, SeqCst)),
        }
    }

    /// The peer's end entered. False if it may not. Called by the thread that takes the port's completions.
    pub(super) fn peer_entered(&self) -> bool {
        let Some(body) = self.body.get() else { return false };
        let may = match body.role {
            Role::Connector => matches!(self.stage(), stage::ENTERED | stage::REFUSED),
            Role::Acceptor => matches!(self.stage(), stage::MADE | stage::REFUSED),
        };
        // Before the state, after which this end may turn.
        body.segment.side(body.role).sending.0.direction.enter();
        let has_entered = may && body.segment.agreement().enter(body.role.peer());
        if has_entered && body.role == Role::Connector {
            let _ = self.stage.compare_exchange(stage::ENTERED, stage::OPEN, SeqCst, SeqCst);
        }
        self.wake(body, true, true);
        self.push(Tell::Due);
        may
    }

    /// This end will not use it.
    pub(crate) fn refuse(&self) {
        let refused =
            |from| self.stage.compare_exchange(from, stage::REFUSED, SeqCst, SeqCst).is_ok();
        if refused(stage::MADE) || refused(stage::ENTERED) {
            self.note(FrameKind::Refused);
        }
    }

    /// Notes that the peer's end will not use the link. False if it does use it. Called by the thread that takes the
    /// port's completions.
    pub(super) fn note_refused(&self) -> bool {
        let Some(body) = self.body.get() else { return false };
        let is_back = body.segment.agreement().withdraw();
        if is_back {
            self.stage.store(stage::REFUSED, SeqCst);
        }
        self.wake(body, true, true);
        is_back
    }

    /// Connector's end: has entered, and goes back unless the acceptor's has as well. The answer decides the segment's
    /// state.
    pub(crate) fn withdraw(&self) {
        if let Some(controller) = self.controller().filter(|_| !self.is_ours()) {
            controller.ask_to_withdraw();
            return self.kick_owner();
        }
        self.note(FrameKind::Withdraw);
    }

    /// Heeds that the connector's end wants to go back. False if that makes no sense. If this end entered, its message
    /// that it did is on its way, or there. Called by the thread that takes the port's completions.
    pub(super) fn heed_withdrawal(&self) -> bool {
        let Some(body) = self.body.get().filter(|body| body.role == Role::Acceptor) else {
            return false;
        };
        if body.segment.agreement().withdraw() {
            self.refuse();
        }
        true
    }

    /// No answer comes, and this end goes on over TCP: one that entered all the same finds the link broken.
    pub(crate) fn abandon_unanswered(&self) {
        if self.body.get().is_some_and(|body| body.segment.agreement().withdraw()) {
            self.stage.store(stage::REFUSED, SeqCst);
            self.fail(Error::TimedOut);
            self.while_nobody_sends(|_| {
                if let Some(wire) = self.wire() {
                    let _ = wire.connector.disconnect(0);
                }
            });
        }
    }

    pub(in crate::fabric) fn note(&self, kind: FrameKind) {
        self.due.fetch_or(1 << kind as u32, SeqCst);
        self.push(Tell::Due);
    }

    /// True if both ends use it, as the relatives' memory says, which this process's copy may not.
    pub(in crate::fabric) fn is_taken(&self) -> bool {
        self.body
            .get()
            .is_some_and(|body| body.segment.agreement().state() == AgreementState::Settled)
    }

    /// True if the ends agreed not to use it: no process may have it any more.
    pub(crate) fn is_withdrawn(&self) -> bool {
        use AgreementState::{Refused, Withdrawn};
        self.body
            .get()
            .is_some_and(|body| matches!(body.segment.agreement().state(), Withdrawn | Refused))
    }
}
