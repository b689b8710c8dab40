//! The suspended session on a stream (D4, D5): this end answers the peer, or sends the messages of the end that asks.
//! `transfer::suspending` says when an end asks, and how long it waits.

use super::Broken;
use super::Stream;
use crate::provider::shm::Role;
use crate::session::{Control, ProtocolError, LARGEST_TRANSFER};

impl Stream<'_> {
    /// Takes in a message of a suspension; false: it is none. Receive lock.
    pub(super) fn absorb_suspension(&self, control: &Control) -> Result<bool, ProtocolError> {
        let connector = self.role == Role::Connector;
        if !self.endpoint.suspension.obey(control, connector)? {
            return Ok(false);
        }
        self.note_suspension();
        if !self.is_held_back() {
            // This end did not tell what it read meanwhile.
            self.update_credit();
        }
        Ok(true)
    }

    /// The suspension changed: every thread that sends sees it where control messages are due.
    pub(super) fn note_suspension(&self) {
        let (due, suspension) = (&self.endpoint.due, &self.endpoint.suspension);
        let held = suspension.holds_back();
        due.hold_back(held);
        // The other lock's holder may have changed it, and noted that, in between.
        if !held && suspension.holds_back() {
            due.hold_back(true);
        }
    }

    /// True while nothing new may begin because the session is, or is being, suspended.
    #[inline]
    pub(crate) fn is_held_back(&self) -> bool {
        self.endpoint.due.is_held_back()
    }

    /// Takes back the memory that is lent to the peer for writing. True once it is back. The thread whose buffer it was
    /// finds what had been written, and posts it again later.
    fn release_posted(&self) -> bool {
        self.endpoint.due.forget_advertisement();
        self.own().writable.0.deregister(LARGEST_TRANSFER).is_ok()
    }

    /// Tells the peer that the session is suspended, if it waits for that and nothing is under way here
    /// (D4). It does not sleep for it. Send lock.
    pub(super) fn answer_suspension(&self) {
        let Some(answer) = self.endpoint.suspension.answer() else { return };
        let sending = &self.endpoint.send.transfers;
        let rests = sending.under_way().is_none() && !self.endpoint.due.ends_a_transfer();
        if rests && self.release_posted() && self.send_control(&answer).is_ok() {
            self.endpoint.suspension.answered();
        }
    }

    /// As [`answer_suspension`](Self::answer_suspension), for a thread that only looks. It leaves this to a thread that
    /// is sending. The caller has no lock.
    #[inline]
    pub(crate) fn try_answer_suspension(&self) {
        if !self.is_held_back() {
            return;
        }
        if let Some(_held) = self.borrow(&self.endpoint.send.lock) {
            self.answer_suspension();
        }
    }

    /// While a sender waits for room: the peer may ask to suspend the session, and no thread receives here. One load
    /// where no message came. The caller has no lock.
    #[inline]
    pub(crate) fn look_for_request(&self) {
        // A later look finds again what is broken.
        let _ = self.absorb_if_free();
        self.try_answer_suspension();
    }

    /// Asks the peer to suspend the session; true: the bell must ring. `None`: the peer goes first, or
    /// there is no credit; ask again. Both locks.
    ///
    /// This end first withdraws the memory that the old controller lent for writing (D7). It has lent none for reading,
    /// because no send is under way.
    pub(crate) fn ask_to_suspend(&self) -> Option<bool> {
        if self.endpoint.session.credit() < 3 || !self.release_posted() {
            return None;
        }
        // This comes before the request: a thread that takes over from us sees that there is something to look at.
        self.endpoint.due.hold_back(true);
        let asked = self.endpoint.suspension.ask();
        let Some(suspend) = asked else {
            self.note_suspension();
            return None;
        };
        let sent = self.send_control(&suspend);
        debug_assert!(sent.is_ok(), "there was credit for it");
        Some(self.signal_both())
    }

    /// While the end that asked waits: takes in what came, and answers the peer if that asked as well. The caller has
    /// both locks.
    pub(crate) fn look_for_suspension(&self) -> Result<(), Broken> {
        self.absorb()?;
        self.answer_suspension();
        Ok(())
    }

    /// The session goes on; true: the bell must ring. Send lock.
    pub(crate) fn resume(&self) -> bool {
        let suspension = &self.endpoint.suspension;
        let Some(resume) = suspension.resumption() else { return false };
        if self.send_control(&resume).is_err() {
            // There is no credit before. The next thread that sends does it.
            return false;
        }
        suspension.resumed();
        self.note_suspension();
        self.signal_both()
    }

    /// The process that asks has both locks from then on until it resumes. A thread that finds it undone with the send
    /// lock in hand took over from the dead (D12). The caller has the send lock.
    pub(super) fn resume_for_the_dead(&self) -> bool {
        self.endpoint.suspension.resumption().is_some() && self.resume()
    }

    fn signal_both(&self) -> bool {
        let read = self.signal_read();
        self.signal_write() || read
    }
}
