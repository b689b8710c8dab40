//! Control messages of a stream: taking them in, and sending credit updates.

use super::Broken;
use super::Stream;
use crate::provider::shm::{Part, Role, Slot};
use crate::session::transfer;
use crate::session::{Control, Header, Kind, NoCredit, ProtocolError, LARGEST_BODY};
use crate::switch::endpoint::flag;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// How a message's payload is kept: bytes of data, and of the body before it.
#[inline]
pub(super) fn pack(data: u32, body: u32) -> u32 {
    data | body << 24
}

/// Bytes of data in a received message.
#[inline]
pub(super) fn data_of(packed: u32) -> u32 {
    packed & 0xff_ffff
}

/// Bytes of the body before it.
#[inline]
pub(super) fn body_of(packed: u32) -> u32 {
    packed >> 24
}

impl Stream<'_> {
    pub(super) fn next_message(&self, kind: Kind, length: usize) -> Result<Header, NoCredit> {
        self.endpoint.session.next_message(kind, length as u32)
    }

    /// Takes in what the peer may have sent to renew our credit, unless a receiver is at it.
    #[cold]
    pub(super) fn absorb_credit(&self) -> Result<(), Broken> {
        if let Some(_held) = self.borrow(&self.endpoint.receive.lock) {
            self.absorb()?;
        }
        Ok(())
    }

    /// Opens the session towards the peer (A1). Send lock, before anything else was sent.
    pub(crate) fn open(&self, kind: Kind) {
        self.send_empty(kind);
    }

    /// Sends a message without any payload. Wakes nobody: data never waits for credit here, it goes to
    /// the send buffer, and the first data rings for itself. Send lock.
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

    /// Nothing is taken in any more, whoever looks: not everybody who finds it can end the connection.
    #[cold]
    fn broken(&self, why: Broken) -> Broken {
        if self.endpoint.set(flag::BROKEN) {
            log::error!("a peer broke the protocol, its connection ends: {why}");
        }
        why
    }

    #[inline(never)]
    fn absorb_message(&self, sequence: u32, slot: Slot) -> Result<(), Broken> {
        let session = &self.endpoint.session;
        let receive = &self.endpoint.receive;
        if session.posted() == 0 {
            // Before its length is kept in the place of one that was not read.
            return Err(ProtocolError::Overrun { sequence }.into());
        }
        let header = Header::decode(slot.header(sequence), self.payload_in())?;
        let body = header.body_size();
        let kept = pack(header.data_size(), body);
        // Before it counts as received: who takes over from a dead receiver finds it.
        receive.lengths[sequence as usize & 63].store(kept, Relaxed);
        if body == 0 && header.kind == Kind::Data {
            session.received(&header)?;
        } else {
            self.begin_control(&header)?;
            self.absorb_control(&header, slot.payload())?;
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
    fn absorb_control(&self, header: &Header, payload: *const u8) -> Result<(), Broken> {
        if !self.endpoint.has(flag::ESTABLISHED) {
            self.endpoint.set(flag::ESTABLISHED);
        }
        let mut body = [0; LARGEST_BODY];
        // SAFETY: the payload begins with so many bytes; they are copied before they are looked at.
        unsafe {
            let length = header.body_size() as usize;
            std::ptr::copy_nonoverlapping(payload, body.as_mut_ptr(), length);
        }
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

    /// After the receive lock came from a dead holder: the control message that it had received and
    /// perhaps not obeyed, or in part. Its buffer is not posted again yet, and each may be obeyed twice.
    pub(super) fn recover_control(&self) {
        let (session, receive) = (&self.endpoint.session, &self.endpoint.receive);
        let last = session.last_received();
        if receive.obeying.load(Relaxed) == 1 << 32 | u64::from(last) {
            let slot = self.slot_in(last);
            let largest = self.payload_in().max(self.payload(0));
            if let Ok(header) = Header::decode(slot.header(last), largest) {
                // An error says that it had been obeyed.
                let _ = self.absorb_control(&header, slot.payload());
                self.note_suspension();
            }
        }
        receive.obeying.store(0, Release);
    }

    /// Posts the buffers of messages without data at the front again. Receive lock.
    #[inline(always)]
    pub(super) fn pass_controls(&self) {
        let receive = &self.endpoint.receive;
        let session = &self.endpoint.session;
        let mut next = receive.next_read();
        while next != session.expected()
            && data_of(receive.lengths[next as usize & 63].load(Relaxed)) == 0
        {
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

    /// Posts larger buffers for the peer's messages, or keeps the old ones (A9). Receive lock.
    ///
    /// Whatever was asked for, the largest are posted, and only once: they lie apart from the first
    /// ones, so that no message of the old size is overwritten by one of the new.
    #[cold]
    fn answer_resize(&self) {
        let receive = &self.endpoint.receive;
        let size = self.segment.geometry().largest_message;
        let grows = size > self.segment.geometry().message_size;
        if receive.granted_size.load(Relaxed) == 0
            && grows
            && self.segment.provide(self.role.peer(), Part::Messages).is_ok()
        {
            receive.granted_size.store(size, Relaxed);
        }
        let size = receive.granted_size.load(Relaxed);
        let payload = if size == 0 { self.payload_in() } else { super::payload_of(size) };
        self.endpoint.due.note(&Control::ResizeAnswer(payload));
        self.endpoint.resize.answered();
    }
}
