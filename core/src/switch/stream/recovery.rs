//! Puts right what a thread left half done that died, or was thrown out, with a lock of this end in hand.
//!
//! The thread that takes the lock over does this first. Every change under the locks counts from one store on, so it is
//! always known how far the dead thread came. Each step here finishes what was begun, or takes it back. A step may
//! itself be left half done, and is then done again.

use super::Stream;
use crate::session::{Complete, Control, Header, InEvent, OutEvent};
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

impl Stream<'_> {
    /// After the send lock came from a dead holder.
    pub(super) fn recover_sender(&self) {
        let (send, sending) = (&self.endpoint.send, &self.own().sending.0);
        self.recover_ways();
        self.recover_messages();
        self.recover_due();
        self.recover_lent();
        self.recover_write();
        // It may have died while the send buffer grew or shrank; nothing was published since.
        sending.grown.store(send.grown.load(Relaxed), Relaxed);
        // Or before what it had put there was published.
        sending.tail.swap(send.tail.load(Relaxed), SeqCst);
        self.recover_signals();
        send.awaits_peer.store(0, Relaxed);
    }

    /// After the receive lock came from a dead holder.
    pub(super) fn recover_receiver(&self) {
        let receive = &self.endpoint.receive;
        if self.peer().sending.0.direction.state().recalled {
            // The bytes here come again over TCP.
            self.endpoint.step_in(InEvent::ReadOut);
        }
        self.recover_control();
        self.recover_read_messages();
        let lent = &self.peer().readable.0;
        receive.transfers.recover(|rest| lent.done_of(rest.key, rest.length));
        let own = &self.own().receiving.0;
        own.head.store(receive.head.load(Relaxed), Release);
        own.total.swap(receive.total(), SeqCst);
        self.recover_signals();
    }

    /// It had told the peer that it turned, or that it left, and had not noted that.
    fn recover_ways(&self) {
        let word = self.own().sending.0.direction.state();
        if word.turned {
            self.endpoint.step_out(OutEvent::Turned);
        }
        if word.left || word.pulled {
            self.endpoint.step_out(OutEvent::OutInPart);
        }
    }

    /// The message that it published last may not be counted, nor its bytes, nor what it says of the size of those
    /// behind it.
    fn recover_messages(&self) {
        let (session, send) = (&self.endpoint.session, &self.endpoint.send);
        let header = |sequence: u32| {
            let slot = self.sent_slot(sequence);
            let header = (slot.sequence() == sequence).then(|| slot.header(sequence))?;
            Header::decode(header, self.largest_payload_out()).ok()
        };
        if let Some(header) = header(session.last_sent().wrapping_add(1)) {
            session.sent(&header);
        }
        let last = session.last_sent();
        if !send.in_messages.is_up_to(last) {
            let data = header(last).map_or(0, |header| header.data_size());
            send.in_messages.count(data.into(), last);
        }
        if send.resizes.load(Relaxed) != 0 {
            if send.resized_by.load(Relaxed) == last {
                self.use_larger_messages();
            }
            send.resizes.store(0, Release);
        }
    }

    /// The control messages that it was about to send are due again.
    fn recover_due(&self) {
        let (due, resize) = (&self.endpoint.due, &self.endpoint.resize);
        due.recover(self.endpoint.session.last_sent());
        if resize.is_asking() && !resize.has_answer() {
            // Perhaps for the second time. Then nobody waits for the answer.
            due.note(&Control::ResizeRequest(resize.asked_for()));
        }
    }

    /// The memory that the dead sender lent for RDMA read is gone. The bytes that the receiver read of it count as sent.
    fn recover_lent(&self) {
        let (transfers, lent) = (&self.endpoint.send.transfers, &self.own().readable.0);
        let Some((key, rest)) = transfers.under_way() else { return };
        let taken = match lent.done_of(key, rest) {
            Some(_) => self.take_back_readable(rest),
            None => 0,
        };
        transfers.read(taken);
        if taken < rest {
            self.endpoint.due.note(&Control::RestInMessages(key, taken));
        }
        transfers.forget();
    }

    /// An RDMA write that the dead sender finished and did not count is counted. One in the middle does not count.
    fn recover_write(&self) {
        let transfers = &self.endpoint.send.transfers;
        let Some((key, room)) = transfers.writing() else { return };
        let written = self.peer().writable.0.done_of(key, room).unwrap_or(0);
        if written > 0 {
            transfers.wrote(written);
            transfers.used(key, true);
            let complete = Complete { key, bytes: written, behaviour: None };
            self.endpoint.due.note(&Control::TransferComplete(complete));
        } else {
            transfers.forget_write();
        }
    }

    /// The control message that it had received may not be obeyed, or in part. Its buffer is not posted again yet, and
    /// each may be obeyed twice.
    fn recover_control(&self) {
        let (session, receive) = (&self.endpoint.session, &self.endpoint.receive);
        let last = session.last_received();
        if receive.obeying.load(Relaxed) == 1 << 32 | u64::from(last) {
            let slot = self.slot_in(last);
            let largest = self.payload_in().max(self.payload(0));
            if let Ok(header) = Header::decode(slot.header(last), largest) {
                // An error says that it had been obeyed.
                let _ = self.obey_control(&header, slot.payload());
                self.note_suspension();
            }
        }
        receive.obeying.store(0, Release);
    }

    /// Messages that it had read may not be noted as read, nor their buffers posted again.
    fn recover_read_messages(&self) {
        let (session, receive) = (&self.endpoint.session, &self.endpoint.receive);
        let next = receive.next_read();
        if !receive.in_messages.is_up_to(next) {
            // The end of a message was counted, not noted.
            receive.read_to(next.wrapping_add(1), 0);
        }
        let unread = session.expected().wrapping_sub(receive.next_read());
        let held = u32::from(session.posted()) + unread;
        let missing = self.segment.geometry().buffers.saturating_sub(held);
        session.reposted(missing as u16);
        self.pass_controls();
    }

    /// It may have published something and not have come to signalling that. So the next thread rings.
    fn recover_signals(&self) {
        let _ = (self.signal_read(), self.signal_write());
    }
}
