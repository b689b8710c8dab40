//! One message buffer of a segment: how an end publishes a message in it, and reads one from it. The peer may write
//! there at any time, so other modules check what was read, from copies.

use super::span::Span;
use crate::session::HEADER_SIZE;
use std::sync::atomic::{AtomicU32, Ordering};

/// One message buffer: four header words, then the payload.
#[derive(Clone, Copy)]
pub(crate) struct MessageSlot {
    at: *mut u8,
    /// Bytes of it, with the header.
    size: u32,
}

impl MessageSlot {
    /// The message buffer of `size` bytes at `at`.
    ///
    /// # Safety
    /// A message buffer of a segment lies there, 64-byte aligned, and is mapped as long as it is used. It is larger
    /// than a header.
    #[inline(always)]
    pub(super) unsafe fn new(at: *mut u8, size: u32) -> MessageSlot {
        MessageSlot { at, size }
    }

    #[inline]
    fn words(&self) -> &[AtomicU32; 4] {
        // SAFETY: a slot is 64-byte aligned and begins with its 16-byte header.
        unsafe { &*self.at.cast::<[AtomicU32; 4]>() }
    }

    /// The sequence number that was published last in this buffer. Acquire.
    #[inline]
    pub(crate) fn sequence(&self) -> u32 {
        self.words()[0].load(Ordering::Acquire)
    }

    /// True if no message was ever published here. Such a buffer seems to have a message with the number before the
    /// first one.
    pub(crate) fn is_blank(&self) -> bool {
        self.header(self.sequence()) == [0; 4]
    }

    /// The header's words; the first as given, because it was read before.
    #[inline]
    pub(crate) fn header(&self, sequence: u32) -> [u32; 4] {
        let w = self.words();
        [
            sequence,
            w[1].load(Ordering::Relaxed),
            w[2].load(Ordering::Relaxed),
            w[3].load(Ordering::Relaxed),
        ]
    }

    /// Room for the payload: the message buffer without its header.
    #[inline(always)]
    pub(crate) fn payload(&self) -> Span {
        // SAFETY: the header is part of the slot, and what follows it as well.
        unsafe { Span::new(self.at.add(HEADER_SIZE), self.size as usize - HEADER_SIZE) }
    }

    /// Marks the buffer as not holding message `sequence`, nor any other that may still come.
    pub(crate) fn clear(&self, sequence: u32, buffers: u32) {
        self.words()[0].store(sequence.wrapping_sub(buffers), Ordering::Relaxed);
    }

    /// Publishes a message whose payload is written. This is sequentially consistent, so the select counter that the
    /// caller looks at afterwards is no value from before (A18).
    #[inline]
    pub(crate) fn publish(&self, header: [u32; 4]) {
        let w = self.words();
        w[1].store(header[1], Ordering::Relaxed);
        w[2].store(header[2], Ordering::Relaxed);
        w[3].store(header[3], Ordering::Relaxed);
        w[0].swap(header[0], Ordering::SeqCst);
    }
}
