//! How both ends come to use a link, or do not: the connector says for which TCP connection it is, and the acceptor
//! decides.

use super::body::Body;
use super::controller::Controller;
use super::outgoing::Tell;
use super::state::{stage, Link};
use crate::fabric::frame::Kind;
use crate::fabric::helper;
use crate::provider::shm::{self, Role, Segment};
use crate::sys::process;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::SeqCst;

impl Link {
    /// The end's segment, which the link unmaps when it ends, its role, and where its processes find out who
    /// controls it. Once.
    ///
    /// # Safety `controller` is in memory that fork relatives share, and valid until the link lets go of the
    /// [`Users`](super::Users) it was closed with.
    pub(crate) unsafe fn attach(&self, segment: Segment, role: Role, controller: &Controller) {
        if let Some((_, mailbox)) = helper::mailbox() {
            controller.begin(mailbox, process::pid());
        }
        let controller = AtomicPtr::new(std::ptr::from_ref(controller).cast_mut());
        let body = Body { segment, role, controller };
        body.have_link_rung();
        if role == Role::Acceptor {
            // Before anything that is published from now on.
            self.due.fetch_or(1 << Kind::Taken as u32, SeqCst);
        }
        let _ = self.body.set(body);
        if self.has_failed() {
            self.tell_failed();
        }
    }

    /// Acceptor: its connector was sent here, by the addresses of a connection that this process accepted.
    pub(in crate::fabric) fn is_bound(&self) {
        self.stage.store(stage::BOUND, SeqCst);
    }

    /// Acceptor: takes a link whose TCP connection was accepted; false if it was refused meanwhile.
    pub(in crate::fabric) fn take(&self) -> bool {
        self.stage.compare_exchange(stage::BOUND, stage::OPEN, SeqCst, SeqCst).is_ok()
    }

    /// Acceptor: tells the connector that the link is taken, once [`attach`](Self::attach)ed.
    pub(crate) fn confirm(&self) {
        self.push(Tell::Due);
    }

    /// Acceptor: nobody will take it.
    pub(crate) fn refuse(&self) {
        let refused =
            |from| self.stage.compare_exchange(from, stage::REFUSED, SeqCst, SeqCst).is_ok();
        if refused(stage::BOUND) || refused(stage::OFFERED) {
            self.note(Kind::Refused);
        }
    }

    /// Acceptor: as [`refuse`](Self::refuse), after it was taken and before it was confirmed.
    pub(crate) fn refuse_taken(&self) {
        self.stage.store(stage::REFUSED, SeqCst);
        self.note(Kind::Refused);
    }

    /// Connector: which TCP connection it is for.
    pub(crate) fn bind(&self, tuple: Vec<u8>) {
        let _ = self.binding.set(tuple);
        self.note(Kind::Bound);
    }

    /// Connector: asks for the link back, which nobody took. The answer decides the segment's state.
    pub(crate) fn withdraw(&self) {
        if let Some(controller) = self.controller().filter(|_| !self.is_ours()) {
            controller.ask_to_withdraw();
            return self.kick_owner();
        }
        self.note(Kind::Withdraw);
    }

    pub(super) fn note(&self, kind: Kind) {
        self.due.fetch_or(1 << kind as u32, SeqCst);
        self.push(Tell::Due);
    }

    /// True if both ends use it, as the relatives' memory says, which this process's copy may not.
    pub(in crate::fabric) fn is_taken(&self) -> bool {
        self.body.get().is_some_and(|body| body.segment.state() == shm::State::Taken)
    }
}
