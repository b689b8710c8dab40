//! A link ends when its peer has everything that this end published, and no relative uses it.

use super::super::{helper, no_fork, Users};
use super::outgoing::Tell;
use super::{stage, Link, State};
use crate::provider::interface::Error;
use crate::provider::shm;
use crate::sys::process::SignalsHeld;
use crate::sys::{hidden, time, Fd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::Arc;

/// How long (ns) after a failure TCP's end of a peer that died is waited for.
const PEERS_END: u64 = 500_000_000;

impl Link {
    /// True if the peer has everything that this end published.
    pub(in super::super) fn is_drained(&self) -> bool {
        if self.failed.load(Acquire) || self.is_closed_by_peer() {
            return true;
        }
        let unsent = self.body.get().is_some_and(|body| {
            let sending = &body.segment.side(body.role).sending.0;
            let finished = sending.finished.load(Acquire) & State::FINISHED_BITS;
            let is_unsent = || {
                self.has_message(body) || sending.tail.load(Acquire) != self.bytes_out.load(Acquire)
            };
            self.stage() == stage::OPEN
                && ((!body.is_recalled() && is_unsent())
                    || self.owes_return(body)
                    || finished != self.told_finished.load(Acquire))
        });
        !unsent
            && !self.is_moving()
            && self.due.load(Relaxed) == 0
            && !self.starved.load(Relaxed)
            && self.completed.load(Acquire) == self.posted.load(Relaxed)
    }

    /// Closes this end: the helper ends the link when the peer has everything, and no fork relative
    /// uses it.
    pub fn close(self: &Arc<Self>, users: Option<Box<dyn Users>>) {
        let _held = SignalsHeld::new();
        let _gate = no_fork();
        self.close_within(users);
    }

    /// [`close`](Self::close) by who keeps the process from forking.
    pub(in super::super) fn close_within(self: &Arc<Self>, users: Option<Box<dyn Users>>) {
        if !users.as_ref().is_some_and(|users| users.are_there()) {
            self.close_now();
        }
        helper::close(self, users);
    }

    /// `anchor` is to be closed only when the peer has everything: TCP's end comes after the last byte.
    pub fn keep_open(&self, anchor: Fd) {
        let before = self.anchor.swap(anchor, SeqCst);
        if before >= 0 {
            hidden::close(before);
        }
        if !self.is_ours() {
            // Who has control by now uses the connection, and so its anchor.
            self.let_anchor_go();
        }
        helper::wake_if_dormant();
    }

    /// True while TCP's end is kept back.
    pub(in super::super) fn keeps_anchor(&self) -> bool {
        self.anchor.load(Relaxed) >= 0
    }

    /// The peer has everything: TCP's end may come.
    pub(super) fn let_anchor_go(&self) {
        let anchor = self.anchor.swap(-1, SeqCst);
        if anchor >= 0 {
            hidden::close(anchor);
        }
    }

    /// Nobody uses it any more: from now on every send tells of its end.
    pub(in super::super) fn close_now(&self) {
        if !self.closing.swap(true, SeqCst) {
            self.push(Tell::Certain);
        }
    }

    /// Has everything sent that this end published, the messages before `next` among it, and looks
    /// whether the peer has it all.
    pub fn is_flushed(&self, next: u32) -> bool {
        if !self.is_ours() {
            self.kick_owner();
            let Some(body) = self.body.get() else { return true };
            let sending = &body.segment.side(body.role).sending.0;
            let stamp = body.stamp(sending.tail.load(Acquire), next);
            return sending.delivered.load(Acquire) == stamp
                || self.is_failed_by_peer()
                || self.is_closed_by_peer();
        }
        self.push(Tell::Certain);
        self.poll();
        self.note_delivered();
        self.is_drained()
    }

    /// The process is exiting: fork relatives can use the link no more.
    pub fn abandon(&self) {
        if self.is_ours() {
            self.fail(Error::Cancelled);
        }
    }

    /// The device is gone: the connection ends, and what was made of the device is given back. By the helper, again
    /// while the link is there: who makes one, or dismisses it, finds it failed.
    pub(in super::super) fn lose_device(&self) {
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

    /// True if nobody took it, or will.
    pub(in super::super) fn is_refused(&self) -> bool {
        self.stage() == stage::REFUSED || self.failed.load(Acquire) || self.is_closed_by_peer()
    }

    /// True if it failed, and neither a peer that closed, nor one that died, nor the way back to TCP is why: TCP tells of
    /// those, and does in a moment.
    pub fn is_broken(&self) -> bool {
        let is_over = || self.is_closed_by_peer() || self.has_returned();
        if !self.is_failed_by_peer() || is_over() {
            return false;
        }
        let (now, first) = (time::now(), &self.failure_seen);
        let since = first.compare_exchange(0, now, Relaxed, Relaxed).err().unwrap_or(now);
        if now.saturating_sub(since) <= PEERS_END {
            return false;
        }
        // What came before counts before it.
        self.catch_up();
        !is_over()
    }

    /// In a process whose copy is from a fork: lets go of it. The objects in it are the parent's, its memory is not.
    pub(in super::super) fn leave_to_parent(self: Arc<Self>) {
        if let Some(body) = self.body.get() {
            // SAFETY: nothing here uses it any more, and what would unmap it again is forgotten.
            unsafe { body.segment.unmap() };
        }
        std::mem::forget(self);
    }

    pub(in super::super) fn is_closed_by_peer(&self) -> bool {
        self.body.get().is_some_and(|body| {
            let peer = body.segment.side(body.role.peer());
            peer.sending.0.finished.load(Acquire) & shm::CLOSED != 0
        })
    }

    /// Completions reach it no more; the queue pair ends with the last user.
    pub(in super::super) fn end(&self) {
        self.let_anchor_go();
        let Some(wire) = self.wire() else { return };
        let _ = wire.connector.disconnect(0);
        drop(self.port().leave(wire.number));
    }
}
