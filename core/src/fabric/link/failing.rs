//! A link broke: this module tells all who must know, and says what the program is told.

use super::course;
use super::outgoing::Tell;
use super::state::Link;
use super::wire::Wire;
use crate::provider::interface::Error;
use crate::provider::shm::FAILED;
use crate::sys::handlers::Undisturbed;
use crate::sys::{process, time, Errno};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

/// How long (ns) after a failure TCP's end of a peer that died is waited for.
const PEERS_END: u64 = 500_000_000;

impl Link {
    /// The error that the program gets for a broken link: what TCP tells of a peer that does not answer, or that its
    /// connection is gone.
    pub(crate) fn error(&self) -> Errno {
        match self.error.load(Relaxed) {
            e @ (libc::ETIMEDOUT | libc::EHOSTUNREACH) => Errno(e),
            _ => Errno(libc::ECONNRESET),
        }
    }

    /// Looks whether the owner says that it is broken; an owner that is gone counts as having said so.
    pub(crate) fn look_for_failure(&self) -> bool {
        let Some(body) = self.body.get() else { return false };
        let finished = &body.segment.side(body.role.peer()).sending.0.finished;
        if let Some(controller) = self.controller().filter(|_| !self.is_ours()) {
            let pid = controller.pid();
            // It may have given control away, and exited, in between.
            if !process::lives(pid) && controller.pid() == pid {
                finished.fetch_or(FAILED, SeqCst);
            }
        }
        finished.load(Acquire) & FAILED != 0
    }

    /// The connection broke.
    #[cold]
    pub(in crate::fabric) fn fail(&self, why: Error) {
        let _ = self.error.compare_exchange(0, why.errno(), SeqCst, SeqCst);
        let has_returned = self.has_returned();
        if self.failed.swap(true, SeqCst) || has_returned {
            return;
        }
        if !matches!(why, Error::Cancelled) {
            log::info!("link {:x}: {why}", self.id);
        }
        self.tell_failed();
    }

    /// Tells the end, or leaves that to the thread that attaches the end later.
    pub(super) fn tell_failed(&self) {
        if let Some(body) = self.body.get() {
            // One that not both ends use is not needed.
            if !body.segment.agreement().withdraw() {
                let peer = body.segment.side(body.role.peer());
                peer.sending.0.finished.fetch_or(FAILED, SeqCst);
            }
            self.wake(body, true, true);
        }
    }

    /// Looks whether it failed, and neither a peer that closed, nor one that died, nor the way back to TCP is why: TCP tells
    /// of those, and does in a moment.
    pub(crate) fn look_for_break(&self) -> bool {
        let is_over = || self.is_closed_by_peer() || self.has_returned();
        if !self.look_for_failure() || is_over() {
            return false;
        }
        let (now, first) = (time::now(), &self.failure_seen);
        let since = first.compare_exchange(0, now, Relaxed, Relaxed).err().unwrap_or(now);
        if now.saturating_sub(since) <= PEERS_END {
            return false;
        }
        // Messages that came before the failure count before it.
        self.catch_up();
        !is_over()
    }

    /// TCP tells what the link is to tell first, and does not: its peer may be gone, of which nothing tells where nothing was
    /// under way. Finds that out.
    pub(crate) fn look_for_end(&self) {
        if !self.is_ours() {
            if let Some(controller) = self.controller() {
                controller.suspect_end();
            }
            return self.kick_owner();
        }
        // A handler would wait for the code that it interrupted.
        let _undisturbed = Undisturbed::begin();
        let is_at_rest = self.course() == course::REST;
        let has_ended = || self.wire().is_some_and(Wire::look_for_end);
        if is_at_rest && self.while_nobody_sends(|_| has_ended()) {
            // Messages that came before the failure count before it.
            self.port().catch_up();
            self.fail(Error::ConnectionReset);
        }
        // Does what other threads left to the one that was sending.
        self.push(Tell::Due);
    }

    /// The process is exiting: fork relatives can use the link no more.
    pub(crate) fn abandon(&self) {
        if self.is_ours() {
            self.fail(Error::Cancelled);
        }
    }

    /// The device is gone: ends the connection, and gives back what was made of the device. Called by the helper, again
    /// while the link is there. A thread that makes a link, or dismisses it, finds it failed.
    pub(in crate::fabric) fn lose_device(&self) {
        self.give_up(Error::DeviceRemoved);
        if self.body.get().is_none() {
            return;
        }
        self.while_nobody_sends(|out| {
            if let Some(old) = self.replace(self.port(), None) {
                self.discard(out, old);
            }
        });
    }
}
