//! What a receiver that stopped reading from the segment left there.

use super::Broken;
use super::Stream;
use crate::session::Header;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Most bytes handed out at a time.
const PIECE: usize = 256 << 10;

/// Where the bytes begin that this end is to send again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unread {
    /// Number of the first message in the high half, bytes of it that are not meant in the low half.
    message: u64,
    /// The first byte in the send buffer.
    head: u64,
}

impl Stream<'_> {
    /// Tells the peer where this end stops reading, for [`Stream::each_unread`] at the peer.
    /// Receive lock; the direction is recalled afterwards.
    pub(crate) fn stop_reading(&self) {
        let receive = &self.endpoint.receive;
        let position = receive.position.load(Relaxed);
        let receiving = &self.own().receiving.0;
        receiving.stopped_at.store(position, Relaxed);
        // The peer also sends again what was announced and not read.
        receive.transfers.close();
    }

    /// Where the peer stopped when it recalled our direction. The word that says so was read before.
    pub(crate) fn recalled(&self) -> Unread {
        let receiving = &self.peer().receiving.0;
        let message = receiving.stopped_at.load(Acquire);
        Unread { message, head: receiving.head.load(Acquire) }
    }

    /// Where this end begins that [pulled](Self::note_pulled). Send lock.
    pub(crate) fn pulled(&self) -> Unread {
        let send = &self.endpoint.send;
        let message = send.pulled_message.load(Relaxed);
        Unread { message, head: send.pulled_head.load(Relaxed) }
    }

    /// Notes, and publishes, from where on this end will send again by itself: all that the peer has not read is behind
    /// that. How many bytes that is. Send lock.
    pub(crate) fn note_pulled(&self) -> Result<u64, Broken> {
        let (session, send) = (&self.endpoint.session, &self.endpoint.send);
        let receiving = &self.peer().receiving.0;
        // In this order: what the peer took from the send buffer before it counted counts here.
        let read = receiving.total.load(Acquire);
        let head = receiving.head.load(Acquire);
        let ring = self.segment.send_buffer(self.role, send.grown.load(Relaxed) != 0);
        let buffered = ring.used(head, send.tail.load(Relaxed))?;
        // Lies in messages, or the peer has taken it, and is about to count it.
        let missing = send.total().saturating_sub(read).saturating_sub(buffered);
        let (mut first, mut found) = (session.last_sent().wrapping_add(1), 0);
        for _ in 0..self.segment.geometry().buffers {
            if found >= missing {
                break;
            }
            let sequence = first.wrapping_sub(1);
            let slot = self.sent_slot(sequence);
            if slot.sequence() != sequence || slot.is_blank() {
                break;
            }
            let header = Header::decode(slot.header(sequence), self.largest_payload_out())?;
            found += u64::from(header.data_size());
            first = sequence;
        }
        let offset = found.saturating_sub(missing);
        send.pulled_message.store(u64::from(first) << 32 | offset, Relaxed);
        send.pulled_head.store(head, Relaxed);
        let bytes = found - offset + buffered;
        let from = send.total().saturating_sub(bytes);
        self.own().leaving.0.resent_from.store(from, Release);
        Ok(bytes)
    }

    /// Calls `each` with all bytes from there on that were sent on the SAN, in order, until it wants no more. Send lock.
    pub(crate) fn each_unread(
        &self,
        from: Unread,
        mut each: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), Broken> {
        let (session, send) = (&self.endpoint.session, &self.endpoint.send);
        let role = self.endpoint.role();
        let (mut next, mut offset) = ((from.message >> 32) as u32, from.message as u32 as usize);
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
        let (mut head, tail) = (from.head, send.tail.load(Relaxed));
        let mut left = ring.used(head, tail)? as usize;
        while left > 0 {
            let piece = self.sent_at(head, left.min(PIECE));
            if !each(piece.bytes()) {
                return Ok(());
            }
            left -= piece.length();
            // The peer published the first position, which may be any number.
            head = head.wrapping_add(piece.length() as u64);
        }
        Ok(())
    }

    /// Calls `each` with all bytes, in order, that this end left unread, until it wants no more. Bytes that the peer
    /// sends meanwhile come behind them. The caller has the receive lock, and reading has stopped.
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
        let mut left = ring.used(head, tail)? as usize;
        while left > 0 {
            let piece = self.stretch(self.role.peer(), grown, head, left);
            if !each(piece.bytes()) {
                return Ok(());
            }
            left -= piece.length();
            head += piece.length() as u64;
        }
        Ok(())
    }
}
