//! Sending control messages that are [due](crate::switch::endpoint::due_words).

use super::Stream;
use crate::session::{Advertisement, Control, Mode, NoCredit};
use crate::switch::endpoint::due_words::{
    pair, ADVERTISEMENT, ENDS_OF_TRANSFERS, FOR_RECEIVERS, FOR_SENDERS, RESIZE_REQUEST, SUSPENSION,
};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

impl Stream<'_> {
    /// Takes the advertisement that is due, to ride on the next message.
    pub(super) fn take_advertisement(&self) -> Option<Advertisement> {
        let next = self.endpoint.session.last_sent().wrapping_add(1);
        self.endpoint.due.take_advertisement(next)
    }

    /// Sends what is due and has credit. `rides`: an advertisement stays, to ride on data. True: the bell must ring.
    /// Send lock.
    #[cold]
    pub(super) fn send_due(&self, rides: bool) -> bool {
        let due = &self.endpoint.due;
        let (mut sent, mut waited_for) = (0, false);
        let held = due.is_held_back();
        let may_go = match (held, rides) {
            (true, _) => ENDS_OF_TRANSFERS,
            (false, true) => !SUSPENSION & !ADVERTISEMENT,
            (false, false) => !SUSPENSION,
        };
        loop {
            let kinds = due.kinds.load(Acquire) & may_go;
            if kinds == 0 {
                break;
            }
            let kind = 1 << kinds.trailing_zeros();
            let sequence = self.endpoint.session.last_sent().wrapping_add(1);
            due.goes.store(pair(sequence, kind), Relaxed);
            due.kinds.fetch_and(!kind, AcqRel);
            let control = due.control(kind);
            if due.kinds.load(Acquire) & kind != 0 {
                continue;
            }
            if kind == RESIZE_REQUEST && !self.endpoint.resize.is_asking() {
                // It gave way to the peer's before it could go (A9).
                continue;
            }
            if self.send_control(&control).is_err() {
                due.kinds.fetch_or(kind, Release);
                break;
            }
            sent |= kind;
            // A receive that waits already has to be advertised, and the sender waits for that (A11).
            waited_for |= matches!(control, Control::EnterMode(Mode::LargeReceive, _));
        }
        due.gone();
        let mut ring = sent & FOR_SENDERS != 0 && self.signal_write();
        ring |= (sent & FOR_RECEIVERS != 0 || waited_for) && self.signal_read();
        if held {
            self.answer_suspension();
            ring |= self.resume_for_the_dead();
        }
        ring
    }

    /// Sends what is due; true: the bell must ring. Send lock.
    #[inline]
    pub(crate) fn send_due_now(&self) -> bool {
        self.endpoint.due.any() && self.send_due(false)
    }

    /// Sends what is due, unless another thread is sending, which will look at it. True: the bell must ring.
    #[inline(always)]
    pub(crate) fn try_send_due(&self) -> bool {
        if !self.endpoint.due.any() {
            return false;
        }
        let held = self.borrow(&self.endpoint.send.lock);
        held.is_some() && self.send_due(false)
    }

    /// Sends a control message. Send lock.
    pub(super) fn send_control(&self, control: &Control) -> Result<(), NoCredit> {
        let kind = control.kind();
        let header = self.next_message(kind, kind.body_size() as usize)?;
        let slot = self.slot_out(header.sequence);
        slot.payload().write(&control.encode()[..header.length as usize]);
        slot.publish(header.encode());
        self.sent(&header, 0);
        Ok(())
    }
}
