//! What a receiver that stopped reading from the segment left there.

use super::Broken;
use super::Stream;
use crate::session::Header;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Most bytes handed out at a time.
const PIECE: usize = 256 << 10;

impl Stream<'_> {
    /// Tells the peer where this end stops reading, for [`Stream::each_unread`] at the peer.
    /// Receive lock; the direction is recalled afterwards.
    pub(crate) fn stop_reading(&self) {
        let receive = &self.endpoint.receive;
        let position = receive.position.load(Relaxed);
        let receiving = &self.own().receiving.0;
        receiving.stopped_at.store(position, Relaxed);
        // What was announced and not read is sent again as well.
        receive.transfers.close();
    }

    /// Calls `each` with all bytes, in order, that the peer had not read when it recalled our
    /// direction, until it wants no more. Send lock; the word that says so was read before.
    pub(crate) fn each_unread(&self, mut each: impl FnMut(&[u8]) -> bool) -> Result<(), Broken> {
        let (session, send) = (&self.endpoint.session, &self.endpoint.send);
        let role = self.endpoint.role();
        let receiving = &self.peer().receiving.0;
        let stopped_at = receiving.stopped_at.load(Acquire);
        let (mut next, mut offset) = ((stopped_at >> 32) as u32, stopped_at as u32 as usize);
        let end = session.last_sent().wrapping_add(1);
        if end.wrapping_sub(next) > self.segment.geometry().buffers {
            return Err(Broken::Position);
        }
        while next != end {
            let slot = self.sent_slot(next);
            // Our own header, in memory the peer can write.
            let header = Header::decode(slot.header(next), self.largest_payload_out())?;
            let (body, length) = (header.body_size() as usize, header.data_size() as usize);
            if offset > length {
                return Err(Broken::Position);
            }
            if !each(slot.payload().part(body + offset, length - offset).bytes()) {
                return Ok(());
            }
            offset = 0;
            next = next.wrapping_add(1);
        }
        let ring = self.segment.send_buffer(role, send.grown.load(Relaxed) != 0);
        let (mut head, tail) = (receiving.head.load(Acquire), send.tail.load(Relaxed));
        ring.used(head, tail)?;
        while head != tail {
            let piece = self.sent_at(head, ((tail - head) as usize).min(PIECE));
            if !each(piece.bytes()) {
                return Ok(());
            }
            head += piece.length() as u64;
        }
        Ok(())
    }

    /// Calls `each` with all bytes, in order, that this end left unread, until it wants no more. What the peer sends
    /// meanwhile comes behind them. Receive lock; reading has stopped.
    pub(crate) fn each_left(&self, mut each: impl FnMut(&[u8]) -> bool) -> Result<(), Broken> {
        let (session, receive) = (&self.endpoint.session, &self.endpoint.receive);
        // Before it is looked for messages, which go first.
        let tail = self.peer().sending.0.tail.load(Acquire);
        self.absorb()?;
        let (mut next, mut offset) = (receive.next_read(), receive.offset() as usize);
        while next != session.expected() {
            let data = self.arrived_data(next);
            if !each(data.after(offset).bytes()) {
                return Ok(());
            }
            offset = 0;
            next = next.wrapping_add(1);
        }
        let (ring, grown) = self.buffer_in();
        let mut head = receive.head.load(Relaxed);
        ring.used(head, tail)?;
        while head != tail {
            let piece = self.stretch(self.role.peer(), grown, head, (tail - head) as usize);
            if !each(piece.bytes()) {
                return Ok(());
            }
            head += piece.length() as u64;
        }
        Ok(())
    }
}
