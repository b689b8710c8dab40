//! Control messages of a stream: taking them in, and sending credit updates.

use super::Broken;
use super::Stream;
use crate::provider::shm::{MessageSlot, Role, Span};
use crate::session::transfer;
use crate::session::{Control, Header, Kind, NoCredit, ProtocolError, LARGEST_BODY};
use crate::switch::endpoint::flag;
use std::sync::atomic::Ordering::{Relaxed, Release};

impl Stream<'_> {
    pub(super) fn next_message(&self, kind: Kind, length: usize) -> Result<Header, NoCredit> {
        self.endpoint.session.next_message(kind, length as u32)
    }

    /// Takes in what the peer may have sent to renew our credit, unless a receiver does so already.
    #[cold]
    pub(super) fn absorb_credit(&self) -> Result<(), Broken> {
        if let Some(_held) = self.borrow(&self.endpoint.receive.lock) {
            self.absorb()?;
        }
        Ok(())
    }

    /// Takes in messages unless a receiver does so already.
    #[inline]
    pub(crate) fn absorb_if_free(&self) -> Result<(), Broken> {
        let expected = self.endpoint.session.expected();
        if self.slot_in(expected).sequence() == expected {
            self.absorb_credit()?;
        }
        Ok(())
    }

    /// Opens the session towards the peer (A1). The caller has the send lock, and has sent nothing else.
    pub(crate) fn open(&self, kind: Kind) {
        self.send_empty(kind);
    }

    /// Sends a message without any payload. It wakes no thread: data never waits for credit here, it goes to the send
    /// buffer, and the first data rings for itself. The caller has the send lock.
    fn send_empty(&self, kind: Kind) {
        let Ok(header) = self.next_message(kind, 0) else { return };
        self.slot_out(header.sequence).publish(header.encode());
        self.sent(&header, 0);
        if kind == Kind::CreditUpdate {
            self.statistics.credit_updates_sent.add(1);
        }
    }

    /// Renews the peer's credit if that is due (A16). Receive lock.
    #[inline]
    pub(super) fn update_credit(&self) {
        if !self.endpoint.session.credit_update_due() || self.is_held_back() {
            return;
        }
        if let Some(_held) = self.borrow(&self.endpoint.send.lock) {
            if self.endpoint.session.credit_update_due() {
                self.send_empty(Kind::CreditUpdate);
            }
        }
    }

    /// Takes in all messages that arrived; true if any did. Receive lock.
    #[inline]
    pub(crate) fn absorb(&self) -> Result<bool, Broken> {
        if !self.absorb_next()? {
            return Ok(false);
        }
        // No more than there are buffers: a peer that floods must not keep us here.
        for _ in 1..self.segment.geometry().buffers {
            if !self.absorb_next()? {
                break;
            }
        }
        Ok(true)
    }

    /// Takes in the next message, if it arrived. Receive lock.
    #[inline(always)]
    pub(super) fn absorb_next(&self) -> Result<bool, Broken> {
        if self.endpoint.has(flag::BROKEN) {
            return Err(Broken::Before);
        }
        let expected = self.endpoint.session.expected();
        let slot = self.slot_in(expected);
        if slot.sequence() != expected {
            return Ok(false);
        }
        self.absorb_message(expected, slot).map(|()| true).map_err(|why| self.broken(why))
    }

    /// Notes that the peer broke the protocol: no thread takes anything in any more. Not every thread that finds this
    /// can end the connection.
    #[cold]
    fn broken(&self, why: Broken) -> Broken {
        if self.endpoint.set(flag::BROKEN) {
            log::error!("a peer broke the protocol, its connection ends: {why}");
        }
        why
    }

    #[inline(never)]
    fn absorb_message(&self, sequence: u32, slot: MessageSlot) -> Result<(), Broken> {
        let session = &self.endpoint.session;
        let receive = &self.endpoint.receive;
        if session.posted() == 0 {
            // Its sizes would be kept in the place of a message that was not read.
            return Err(ProtocolError::Overrun { sequence }.into());
        }
        let header = Header::decode(slot.header(sequence), self.payload_in())?;
        // This comes before the message counts as received: a thread that takes over from a dead receiver finds it.
        self.keep_sizes(&header);
        if header.body_size() == 0 && header.kind == Kind::Data {
            session.received(&header)?;
        } else {
            self.begin_control(&header)?;
            self.obey_control(&header, slot.payload())?;
            receive.obeying.store(0, Release);
            self.pass_controls();
        }
        Ok(())
    }

    /// A message that is not, or not only, data counts as received, and is about to be obeyed.
    pub(super) fn begin_control(&self, header: &Header) -> Result<(), ProtocolError> {
        let obeying = 1 << 32 | u64::from(header.sequence);
        self.endpoint.receive.obeying.store(obeying, Relaxed);
        self.endpoint.session.received(header)
    }

    /// Obeys a message that is not, or not only, data. Receive lock.
    #[cold]
    pub(super) fn obey_control(&self, header: &Header, payload: Span) -> Result<(), Broken> {
        if !self.endpoint.has(flag::ESTABLISHED) {
            self.endpoint.set(flag::ESTABLISHED);
        }
        let mut body = [0; LARGEST_BODY];
        payload.read(&mut body[..header.body_size() as usize]);
        let Some(control) = Control::decode(header.kind, &body)? else { return Ok(()) };
        let (sending, receiving) =
            (&self.endpoint.send.transfers, &self.endpoint.receive.transfers);
        if transfer::obey(&control, header.sequence, sending, receiving)? {
            return Ok(());
        }
        if self.absorb_suspension(&control)? {
            return Ok(());
        }
        match control {
            Control::ResizeRequest(payload) => {
                let connector = self.role == Role::Connector;
                self.endpoint.resize.requested(payload, header.sequence, connector);
            }
            Control::ResizeAnswer(payload) => {
                self.endpoint.resize.answer(payload);
            }
            Control::Resized => {
                let size = self.endpoint.receive.granted_size.load(Relaxed);
                if size == 0 {
                    return Err(ProtocolError::Unexpected(header.kind).into());
                }
                let until = 1 << 32 | u64::from(header.sequence);
                self.endpoint.receive.old_size_until.store(until, Relaxed);
                self.endpoint.receive.message_size.store(size, Release);
            }
            _ => {}
        }
        Ok(())
    }

    /// Posts the buffers of messages without data at the front again. Receive lock.
    #[inline(always)]
    pub(super) fn pass_controls(&self) {
        let receive = &self.endpoint.receive;
        let session = &self.endpoint.session;
        let mut next = receive.next_read();
        while next != session.expected() && self.sizes(next).data() == 0 {
            next = next.wrapping_add(1);
            receive.finish(next, 0);
            session.reposted(1);
        }
        if receive.old_size_until.load(Relaxed) != 0 && !receive.is_of_old_size(next) {
            receive.old_size_until.store(0, Relaxed);
        }
        if self.endpoint.resize.is_due(next) {
            self.answer_resize();
        }
    }
}
