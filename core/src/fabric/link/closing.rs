//! Links that nobody of this process uses any more. The helper ends such a link when its peer has everything and no
//! relative uses it.

use super::ended;
use super::outgoing::Tell;
use super::state::{stage, Link};
use crate::fabric::fork_gate::no_fork;
use crate::fabric::helper;
use crate::provider::shm;
use crate::sys::lock_order::{LockRank, RankedMutex};
use crate::sys::process::SignalsHeld;
use crate::sys::time;
use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::sync::Arc;

/// The processes that may still use a link which one process closed: its fork relatives.
pub(crate) trait Users: Send {
    /// True while they do.
    fn are_there(&self) -> bool;
}

/// A link that its program closed.
pub(in crate::fabric) struct ClosedLink {
    pub(in crate::fabric) link: Arc<Link>,
    pub(in crate::fabric) users: Option<Box<dyn Users>>,
    /// Clock (ns) when it was, or when they last used it.
    pub(in crate::fabric) since: u64,
}

/// Links that were closed and have not ended.
pub(in crate::fabric) static CLOSED_LINKS: RankedMutex<Vec<ClosedLink>> =
    RankedMutex::new(LockRank::ClosedLinks, Vec::new());

/// In a fork child: those are the parent's, which alone keeps TCP's ends back.
pub(in crate::fabric) fn after_fork_in_child() {
    let closed = std::mem::take(&mut *CLOSED_LINKS.lock());
    closed.iter().for_each(|one| one.link.let_anchor_go());
    std::mem::forget(closed);
}

impl Link {
    /// Closes this end: the helper ends the link when the peer has everything, and no fork relative
    /// uses it.
    pub(crate) fn close(self: &Arc<Self>, users: Option<Box<dyn Users>>) {
        let _held = SignalsHeld::new();
        let _gate = no_fork();
        self.close_within(users);
    }

    /// [`close`](Self::close), called by a thread that keeps the process from forking.
    pub(in crate::fabric) fn close_within(self: &Arc<Self>, users: Option<Box<dyn Users>>) {
        if !users.as_ref().is_some_and(|users| users.are_there()) {
            self.close_now();
        }
        if !helper::is_there() {
            return;
        }
        CLOSED_LINKS.lock().push(ClosedLink { link: self.clone(), users, since: time::now() });
        helper::set_busy(true);
        self.notify_helper();
        helper::wake();
    }

    /// Nobody uses the link any more. From now on every send tells of its end.
    pub(in crate::fabric) fn close_now(&self) {
        if !self.closing.swap(true, SeqCst) {
            self.log_accesses();
            self.push(Tell::Certain);
        }
    }

    /// True if one of both ends does not use it, or any more.
    pub(in crate::fabric) fn is_refused(&self) -> bool {
        self.stage() == stage::REFUSED || self.failed.load(Acquire) || self.is_closed_by_peer()
    }

    /// Lets go of the link in a process whose copy is from a fork. The objects in it are the parent's, and its memory
    /// is this process's.
    pub(crate) fn leave_to_parent(self: Arc<Self>) {
        if let Some(body) = self.body.get() {
            // SAFETY: nothing here uses it any more, and what would unmap it again is forgotten.
            unsafe { body.segment.unmap() };
        }
        std::mem::forget(self);
    }

    pub(in crate::fabric) fn is_closed_by_peer(&self) -> bool {
        self.body.get().is_some_and(|body| {
            let peer = body.segment.side(body.role.peer());
            peer.sending.0.finished.load(Acquire) & shm::CLOSED != 0
        })
    }

    /// Completions reach it no more. By the helper.
    pub(in crate::fabric) fn end(&self) {
        self.end_anchor();
        let Some(wire) = self.wire() else { return };
        wire.end();
        if let Some(own) = self.port().remove_link(wire.number()) {
            ended::keep(own, None);
        }
    }

    /// The end's memory goes: no thread of this process asks any more which process has control. Called by the helper.
    pub(in crate::fabric) fn forget_end(&self) {
        if let Some(body) = self.body.get() {
            body.controller.store(std::ptr::null_mut(), SeqCst);
        }
    }
}
