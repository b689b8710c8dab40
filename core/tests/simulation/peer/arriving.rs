//! Taking messages in, and posting their buffers again: a copy of `stream/control.rs`.

use super::Peer;
use crate::link::Link;
use sanshim_core::session::{transfer, Control, Header, Kind, ProtocolError, LARGEST_BODY};

impl Peer {
    /// Takes in all messages that arrived; true: any. Receive lock.
    pub(crate) fn absorb(&mut self, incoming: &mut Link) -> bool {
        let mut any = false;
        loop {
            let expected = self.session.expected();
            let Some(words) = incoming.look(expected) else { return any };
            let honest = "an honest peer's message";
            let header = Header::decode(words, self.payload_in).expect(honest);
            let at = self.slot(expected);
            self.lengths[at] = (header.data_size() as usize, header.body_size() as usize);
            self.session.received(&header).expect(honest);
            let payload = incoming.payload(expected).to_vec();
            self.absorb_control(&header, &payload).unwrap_or_else(|e| panic!("{honest}: {e}"));
            any = true;
            self.pass_controls(incoming);
        }
    }

    pub(crate) fn absorb_if_free(&mut self, incoming: &mut Link) {
        if !self.receive_locked {
            self.absorb(incoming);
        }
    }

    fn absorb_control(&mut self, header: &Header, payload: &[u8]) -> Result<(), ProtocolError> {
        if header.kind == Kind::Data && header.body_size() == 0 {
            return Ok(());
        }
        let mut body = [0; LARGEST_BODY];
        let size = header.body_size() as usize;
        body[..size].copy_from_slice(&payload[..size]);
        let Some(control) = Control::decode(header.kind, &body)? else { return Ok(()) };
        let before = self.receiving.bytes();
        transfer::obey(&control, header.sequence, &self.sending, &self.receiving)?;
        self.lose(before);
        match control {
            Control::ResizeRequest(size) => {
                let asking = self.resize.is_asking() && !self.resize.has_answer();
                self.collisions += u64::from(asking);
                self.asked_at = header.sequence;
                self.resize.requested(size, header.sequence, self.number == 0);
            }
            Control::ResizeAnswer(size) => self.resize.answer(size),
            Control::Resized => {
                assert!(self.granted, "resized to what was not granted");
                self.payload_in = self.shape.largest_payload;
            }
            _ => {}
        }
        Ok(())
    }

    /// Posts the buffers of messages without data at the front again. Receive lock.
    pub(crate) fn pass_controls(&mut self, incoming: &mut Link) {
        while self.next_read != self.session.expected() && self.lengths(self.next_read).0 == 0 {
            self.repost(incoming);
        }
        if self.resize.is_due(self.next_read) {
            let consumed = self.next_read.wrapping_sub(self.asked_at) as i32 > 0;
            assert!(consumed, "answered before what came earlier was consumed");
            let short = !self.granted && self.short_of_memory > 0;
            self.short_of_memory -= u32::from(short);
            self.granted |= !short && self.shape.largest_payload > self.shape.payload;
            let granted = if self.granted { self.shape.largest_payload } else { self.payload_in };
            self.due.note(Control::ResizeAnswer(granted));
            self.resize.answered();
        }
    }

    /// The message `next_read` is consumed.
    pub(crate) fn repost(&mut self, incoming: &mut Link) {
        incoming.post(self.next_read, true);
        self.session.reposted(1);
        self.next_read = self.next_read.wrapping_add(1);
    }
}
