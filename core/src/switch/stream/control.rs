//! Control messages of a stream: taking them in, and sending credit updates.

use super::{Broken, Stream};
use crate::session::{Header, Kind, NoCredit};
use crate::switch::endpoint::flag;
use std::sync::atomic::Ordering::Relaxed;

impl Stream<'_> {
    pub(super) fn next_message(&self, kind: Kind, length: usize) -> Result<Header, NoCredit> {
        self.endpoint.session.next_message(kind, length as u32)
    }

    /// Takes in what the peer may have sent to renew our credit, unless a receiver is at it.
    #[cold]
    pub(super) fn absorb_credit(&self) -> Result<(), Broken> {
        if self.endpoint.receive.lock.try_lock().is_ok() {
            let absorbed = self.absorb();
            self.endpoint.receive.lock.unlock();
            absorbed?;
        }
        Ok(())
    }

    /// Opens the session towards the peer (A1). Send lock, before anything else was sent.
    pub fn open(&self, kind: Kind) {
        self.control(kind);
    }

    /// Sends a message without application data. Wakes nobody: data never waits for credit here,
    /// it goes to the send buffer, and the first data rings for itself. Send lock.
    pub(super) fn control(&self, kind: Kind) {
        let Ok(header) = self.next_message(kind, 0) else { return };
        self.segment.slot(self.role(), header.sequence).publish(header.encode());
        self.endpoint.session.sent(&header);
        if kind == Kind::CreditUpdate {
            self.statistics.credit_updates_sent.add(1);
        }
    }

    /// Renews the peer's credit if that is due (A16). Receive lock.
    #[inline]
    pub(super) fn update_credit(&self) {
        if self.endpoint.session.credit_update_due() && self.endpoint.send.lock.try_lock().is_ok() {
            if self.endpoint.session.credit_update_due() {
                self.control(Kind::CreditUpdate);
            }
            self.endpoint.send.lock.unlock();
        }
    }

    /// Takes in all messages that arrived. Receive lock.
    #[inline]
    pub fn absorb(&self) -> Result<bool, Broken> {
        let session = &self.endpoint.session;
        let receive = &self.endpoint.receive;
        let mut any = false;
        // No more than there are buffers: a peer that floods must not keep us here.
        for _ in 0..self.segment.geometry().buffers {
            let expected = session.expected();
            let slot = self.segment.slot(self.role().peer(), expected);
            if slot.sequence() != expected {
                return Ok(any);
            }
            let max = self.segment.max_payload() as u32;
            let header = Header::decode(slot.header(expected), max)?;
            // Before it counts as received: who takes over from a dead receiver finds it.
            receive.lengths[expected as usize & 63].store(header.length, Relaxed);
            session.received(&header)?;
            if header.kind != Kind::Data && !self.endpoint.has(flag::ESTABLISHED) {
                self.endpoint.set(flag::ESTABLISHED);
            }
            any = true;
            self.pass_controls();
        }
        Ok(any)
    }

    /// Posts the buffers of messages without data at the front again. Receive lock.
    pub(super) fn pass_controls(&self) {
        let receive = &self.endpoint.receive;
        let session = &self.endpoint.session;
        let mut next = receive.next_read.load(Relaxed);
        while next != session.expected() && receive.lengths[next as usize & 63].load(Relaxed) == 0 {
            next = next.wrapping_add(1);
            receive.next_read.store(next, Relaxed);
            session.reposted(1);
        }
    }
}
