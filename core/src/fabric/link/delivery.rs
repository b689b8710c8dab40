//! Tells whether the peer has everything that this end published. TCP's end waits for that. So does some of the
//! helper's work.

use super::controller::Controller;
use super::outgoing::Tell;
use super::state::{stage, Link};
use crate::fabric::frame::FrameState;
use crate::fabric::helper;
use crate::provider::shm::BOTH_SHUT;
use crate::sys::{hidden, net, Fd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

impl Link {
    /// True if the peer has everything that this end published, and knows of all that this end read.
    pub(in crate::fabric) fn is_drained(&self) -> bool {
        if self.failed.load(Acquire) || self.is_closed_by_peer() {
            return true;
        }
        let unsent = self.body.get().is_some_and(|body| {
            let sending = &body.segment.side(body.role).sending.0;
            let finished = sending.finished.load(Acquire) & FrameState::FINISHED_BITS;
            let is_unsent = || {
                self.has_message(body) || sending.tail.load(Acquire) != self.bytes_out.load(Acquire)
            };
            self.stage() == stage::OPEN
                && ((!body.is_recalled() && is_unsent())
                    || self.owes_return(body)
                    || self.has_rest()
                    || finished != self.told_finished.load(Acquire))
        });
        !unsent
            && !self.is_moving()
            && self.due.load(Relaxed) == 0
            && !self.starved.load(Relaxed)
            && self.completed.load(Acquire) == self.posted.load(Relaxed)
    }

    /// If the peer has all that this end published, and knows of all that this end read, relatives learn of it.
    pub(in crate::fabric) fn note_delivered(&self) {
        let Some(body) = self.body.get() else { return };
        // Read before it is found that all of it has arrived.
        let (sent, next) = (self.bytes_out.load(Acquire), self.next_out.load(Acquire));
        let stamp = body.stamp(sent, next, self.told_total.load(Acquire));
        if self.is_drained() {
            let sending = &body.segment.side(body.role).sending.0;
            sending.delivered.store(stamp, SeqCst);
        }
    }

    /// Has everything sent that this end published, the messages before `next` among it. True if the peer has all of it, and
    /// knows of all that this end read: TCP's end before that would be a reset (D11).
    pub(crate) fn flush(&self, next: u32) -> bool {
        if !self.is_ours() {
            self.kick_owner();
            let Some(body) = self.body.get() else { return true };
            let sending = &body.segment.side(body.role).sending.0;
            let total = body.segment.side(body.role).receiving.0.total.load(Acquire);
            let stamp = body.stamp(sending.tail.load(Acquire), next, total);
            return sending.delivered.load(Acquire) == stamp
                || self.look_for_failure()
                || self.is_closed_by_peer();
        }
        self.push(Tell::Certain);
        self.poll();
        self.note_delivered();
        self.is_drained()
    }

    /// Closes `anchor` only when the peer has everything: TCP's end comes after the last byte. It ends both directions if
    /// this end has shut both down.
    pub(crate) fn keep_open(&self, anchor: Fd) {
        let before = self.anchor.swap(anchor, SeqCst);
        if before >= 0 {
            hidden::close(before);
        }
        if !self.is_ours() {
            // The process that has control by now uses the connection, and so its anchor.
            self.let_anchor_go();
        }
        helper::wake_if_dormant();
    }

    /// True while TCP's end is kept back.
    pub(in crate::fabric) fn keeps_anchor(&self) -> bool {
        self.anchor.load(Relaxed) >= 0
    }

    /// The peer has everything, or gets no more: TCP's end may come.
    pub(super) fn end_anchor(&self) {
        let anchor = self.anchor.load(SeqCst);
        let has_shut_both = self.body.get().is_some_and(|body| {
            let finished = &body.segment.side(body.role).sending.0.finished;
            finished.load(Acquire) & BOTH_SHUT == BOTH_SHUT
        });
        if anchor >= 0 && has_shut_both {
            let _ = net::shutdown(hidden::kept(anchor), libc::SHUT_RDWR);
        }
        self.let_anchor_go();
    }

    /// Keeps TCP's end back no more.
    pub(super) fn let_anchor_go(&self) {
        let anchor = self.anchor.swap(-1, SeqCst);
        if anchor >= 0 {
            hidden::close(anchor);
        }
    }

    /// The helper's work for the link, from time to time. True if there is more to do.
    pub(in crate::fabric) fn tick(&self, tell: Tell) -> bool {
        if self.is_ours() && self.controller().is_some_and(Controller::take_withdrawal) {
            self.withdraw();
        }
        if self.is_ours() && self.controller().is_some_and(Controller::take_suspicion) {
            self.look_for_end();
        }
        let keeps_anchor = self.keeps_anchor();
        let tell = if keeps_anchor { Tell::Certain } else { tell };
        self.push(tell);
        if keeps_anchor && self.is_drained() {
            self.end_anchor();
        }
        self.note_told_turn();
        if let Some(body) = self.body.get().filter(|_| tell == Tell::Certain) {
            self.note_delivered();
            // Relatives wait for what had arrived. The caller looked at the port before.
            body.segment.side(body.role.peer()).sending.0.delivered.fetch_add(1, SeqCst);
        }
        self.progress();
        self.is_busy()
    }

    /// True if there is something to do for it from time to time.
    pub(in crate::fabric) fn is_busy(&self) -> bool {
        let waits = self.is_moving() || self.starved.load(Relaxed) || self.due.load(Relaxed) != 0;
        (waits && !self.failed.load(Relaxed)) || self.is_returning() || self.keeps_anchor()
    }
}
