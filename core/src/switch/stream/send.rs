//! Sends on a stream: in messages while the send buffer is empty and there is credit, else through the send buffer, so
//! that a program that does not wait may send again at once (S7).

use super::Broken;
use super::Moved;
use super::Stream;
use crate::session::{Advertisement, Control, Header, Kind, NoCredit, LARGEST_BODY};
use crate::switch::buffers::Buffers;
use std::sync::atomic::Ordering::Relaxed;

impl Stream<'_> {
    /// Data was published: true if the bell must ring. Send lock.
    #[inline]
    pub(super) fn announce_data(&self) -> bool {
        let ring = self.signal_read();
        if !ring {
            self.statistics.wakeups_avoided.add(1);
        }
        ring
    }

    /// Looks whether nothing waits in our send buffer: what is sent now may go in a message. Send lock.
    #[inline]
    pub(super) fn look_if_empty(&self) -> Result<bool, Broken> {
        let send = &self.endpoint.send;
        Ok(send.tail.load(Relaxed) == send.seen_head.load(Relaxed) || self.buffered()? == 0)
    }

    /// Sends what fits now. Send lock.
    pub(crate) fn send(&self, from: &mut Buffers) -> Result<Moved, Broken> {
        if self.endpoint.resize.has_answer() {
            self.obey_resize()?;
        }
        if !self.endpoint.due.any() {
            return self.send_data(None, from);
        }
        if self.is_held_back() {
            // This end keeps what is sent until the session goes on (D5).
            let ring = self.send_due(false);
            let mut moved = self.buffer_all(from)?;
            moved.ring |= ring;
            return Ok(moved);
        }
        // Control messages go before data; an advertisement rides on it where it can.
        let rides = from.remaining().saturating_add(LARGEST_BODY) <= self.payload_out() as usize;
        let ring = self.send_due(rides);
        let advertisement = if rides { self.take_advertisement() } else { None };
        let moved = self.send_data(advertisement, from);
        self.endpoint.due.gone();
        moved.map(|moved| Moved { ring: moved.ring | ring, ..moved })
    }

    #[inline]
    fn send_data(
        &self,
        advertisement: Option<Advertisement>,
        from: &mut Buffers,
    ) -> Result<Moved, Broken> {
        let length = from.remaining();
        if self.look_if_empty()?
            && length <= self.payload_out() as usize
            && !self.endpoint.resize.is_asking()
        {
            match self.next_message(Kind::Data, length) {
                Ok(header) => return self.message(header, advertisement, from),
                Err(NoCredit) => self.absorb_credit()?,
            }
        } else {
            self.note_fragmentation(length);
        }
        if let Some(advertisement) = advertisement {
            self.endpoint.due.note(&Control::Advertisement(advertisement));
        }
        self.buffer_all(from)
    }

    /// Sends all of `from` in one message, an advertisement riding on it (A13). Send lock.
    #[inline(always)]
    pub(super) fn message(
        &self,
        header: Header,
        advertisement: Option<Advertisement>,
        from: &mut Buffers,
    ) -> Result<Moved, Broken> {
        let length = header.length as usize;
        let slot = self.slot_out(header.sequence);
        let (header, data) = match advertisement {
            None => (header, slot.payload().part(0, length)),
            Some(advertisement) => {
                let header = header.advertising();
                let size = header.body_size() as usize;
                slot.payload().write(&Control::Advertisement(advertisement).encode()[..size]);
                (header, slot.payload().part(size, length))
            }
        };
        if let Err(fault) = from.copy_out(data) {
            if let Some(advertisement) = advertisement {
                self.endpoint.due.note(&Control::Advertisement(advertisement));
            }
            return Ok(Moved { fault: Some(fault), ..Moved::default() });
        }
        slot.publish(header.encode());
        self.sent(&header, length);
        self.statistics.sent.messages.add(1);
        self.statistics.credits.set(u64::from(self.endpoint.session.credit()));
        let mut ring = self.announce_data();
        if advertisement.is_some() {
            ring |= self.signal_write();
        }
        Ok(Moved { bytes: length, ring, fault: None })
    }

    /// This end published a message with so many bytes of data. The caller has the send lock.
    #[inline]
    pub(super) fn sent(&self, header: &Header, bytes: usize) {
        self.endpoint.session.sent(header);
        self.endpoint.send.in_messages.count(bytes as u64, header.sequence);
        self.statistics.sent.bytes.add(bytes as u64);
    }
}
