//! A stream that flows gets larger message buffers and a larger send buffer (A9), and gives the send buffer back when it
//! rests.

use super::Broken;
use super::Stream;
use crate::provider::shm::Part;
use crate::session::{Control, Kind, NoCredit, ProtocolError};
use crate::switch::endpoint::flag;
use crate::sys::time;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// The bytes of a window that is timed, and the time (ns) in which a stream sends them: 1 GB/s.
const WINDOW: u64 = 8 << 20;
const FAST_WINDOW: u64 = 8_000_000;

/// How long (ns) a send buffer stays large at least.
const LEAST_AGE: u64 = 1_000_000_000;

/// How often a sender finds the send buffer full before it grows (A9).
const OFTEN_FULL: u32 = 16;

impl Stream<'_> {
    /// A send that does not fit into a message: larger ones may be worth it (A9).
    #[inline]
    pub(super) fn note_fragmentation(&self, length: usize) {
        if length > self.payload_out() as usize {
            self.statistics.transfers.fragmented.add(1);
        }
        let most = super::payload_of(self.segment.geometry().largest_message);
        if !self.endpoint.has(flag::ESTABLISHED) {
            return;
        }
        let resize = &self.endpoint.resize;
        if let Some(payload) = resize.fragmented(length, self.payload_out(), most) {
            self.endpoint.due.note(&Control::ResizeRequest(payload));
        }
    }

    /// Posts larger buffers for the peer's messages, or keeps the old ones (A9). Receive lock.
    ///
    /// This end posts the largest buffers, whatever size the peer asked for, and only once. They lie apart from the first
    /// ones. So no message of the new size overwrites one of the old.
    #[cold]
    pub(super) fn answer_resize(&self) {
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

    /// The receiver answered our request for larger messages (A9): from the next one on they are
    /// used. Nothing is under way in messages at this moment but control messages.
    #[cold]
    pub(super) fn obey_resize(&self) -> Result<(), Broken> {
        let resize = &self.endpoint.resize;
        if self.endpoint.session.credit() < 2 {
            return Ok(());
        }
        let Some(payload) = resize.take_answer() else { return Ok(()) };
        if payload <= self.payload_out() {
            return Ok(());
        }
        let send_size = self.endpoint.send.message_size.load(Relaxed);
        let size = self.segment.geometry().largest_message;
        if super::payload_of(size) != payload || send_size != 0 {
            let (kind, field, value) = (Kind::ResizeAnswer, "size", payload.into());
            return Err(ProtocolError::Body { kind, field, value }.into());
        }
        let buffers = self.segment.geometry().buffers;
        let last = self.endpoint.session.last_sent().wrapping_add(1);
        for ahead in 1..=buffers {
            // Anything may lie there: no bytes may look like a message.
            let sequence = last.wrapping_add(ahead);
            self.segment.slot(self.role, sequence, true).clear(sequence, buffers);
        }
        if self.announce_size(last).is_ok() {
            self.use_larger_messages();
            resize.grew();
            self.publish_transfers();
        }
        Ok(())
    }

    /// Says in message `last` that every later one lies in a larger buffer.
    pub(super) fn announce_size(&self, last: u32) -> Result<(), NoCredit> {
        let send = &self.endpoint.send;
        send.resized_by.store(last, Relaxed);
        send.resizes.store(1, Relaxed);
        self.send_control(&Control::Resized).inspect_err(|_| send.resizes.store(0, Relaxed))
    }

    pub(super) fn use_larger_messages(&self) {
        let send = &self.endpoint.send;
        send.message_size.store(self.segment.geometry().largest_message, Release);
        send.resizes.store(0, Release);
    }

    /// True if as much went through the first send buffer as a window has, with the bytes up to `tail`. `grown`: where it
    /// grew; zero: it did not.
    #[inline]
    pub(super) fn fills_window(&self, grown: u64, tail: u64) -> bool {
        grown == 0 && tail.wrapping_sub(self.endpoint.send.window.load(Relaxed)) >= WINDOW
    }

    /// Counts that the send buffer was found full; true if it often is.
    #[cold]
    pub(super) fn count_full(&self) -> bool {
        let full = &self.endpoint.send.full;
        full.store(full.load(Relaxed) + 1, Relaxed);
        full.load(Relaxed) >= OFTEN_FULL
    }

    /// As much as a window went through the send buffer: true if that took little time, twice in a
    /// row. A receiver that keeps up never lets the buffer fill, and yet it is a stream.
    #[cold]
    pub(super) fn measure_rate(&self, tail: u64) -> bool {
        let send = &self.endpoint.send;
        let now = time::now();
        let fast = now - send.window_at.load(Relaxed) < FAST_WINDOW;
        send.window_at.store(now, Relaxed);
        send.window.store(tail, Relaxed);
        let windows = if fast { send.fast_windows.load(Relaxed) + 1 } else { 0 };
        send.fast_windows.store(windows, Relaxed);
        windows >= 2
    }

    /// Changes to the large send buffer, for a stream (A9). True: there is room now.
    #[cold]
    pub(super) fn grow(&self, tail: u64) -> Result<bool, Broken> {
        let send = &self.endpoint.send;
        // An end that only sends large pieces takes in nothing elsewhere.
        self.absorb_if_free()?;
        let geometry = self.segment.geometry();
        if send.fixed.load(Relaxed) != 0
            || geometry.largest_send_buffer == geometry.send_buffer
            || !self.endpoint.has(flag::ESTABLISHED)
        {
            return Ok(false);
        }
        if self.segment.provide(self.role, Part::SendBuffer).is_err() {
            // The old size it stays; asked again after as many times.
            send.full.store(0, Relaxed);
            return Ok(false);
        }
        send.grown.store(tail + 1, Relaxed);
        send.grown_at.store(time::now(), Relaxed);
        self.own().sending.0.grown.store(tail + 1, Relaxed);
        self.endpoint.resize.grew();
        send.preference.restart();
        self.publish_transfers();
        Ok(true)
    }

    /// Bytes that the parts have that grew, of those that this end gave memory to.
    pub(crate) fn grown_bytes(&self) -> u64 {
        let e = self.endpoint;
        let parts = [
            (e.send.grown.load(Relaxed) != 0, Part::SendBuffer),
            (e.receive.granted_size.load(Relaxed) != 0, Part::Messages),
        ];
        let grown = parts.into_iter().filter(|(grew, _)| *grew);
        grown.map(|(_, part)| self.segment.bytes_of(part)).sum()
    }

    /// Before a thread sleeps: a stream that has ended gives its memory back (A9).
    #[inline]
    pub(crate) fn shrink_if_idle(&self) {
        if self.endpoint.send.grown.load(Relaxed) != 0 {
            self.shrink();
        }
    }

    /// Changes back to the first send buffer and frees both, if nothing lies in them. It does so some time after they
    /// grew, since growing has its price as well.
    #[cold]
    fn shrink(&self) {
        let send = &self.endpoint.send;
        let young = || time::now() - send.grown_at.load(Relaxed) < LEAST_AGE;
        if young() {
            return;
        }
        let Some(_held) = self.borrow(&send.lock) else { return };
        if send.grown.load(Relaxed) != 0 && !young() && self.buffered() == Ok(0) {
            // Before the next tail is published. Everything before lies behind the reader.
            self.own().sending.0.grown.store(0, Relaxed);
            send.grown.store(0, Relaxed);
            send.full.store(0, Relaxed);
            self.segment.free_send_buffers(self.role);
            self.publish_transfers();
        }
    }
}
