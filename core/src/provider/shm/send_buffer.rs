//! The send buffer: a byte ring between one sender and one receiver (A19, S3).
//!
//! Positions count bytes since the connection began and never wrap. Each end keeps its own position in memory that the
//! peer cannot write, and only publishes a copy.

use super::span::Span;

/// The peer published a position that can not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overrun;

/// The bytes of a ring, without its positions.
#[derive(Clone, Copy)]
pub(crate) struct SendBuffer {
    base: *mut u8,
    size: u32,
}

impl SendBuffer {
    /// # Safety
    /// `size` bytes at `base` stay mapped; `size` is a power of two.
    pub(super) unsafe fn new(base: *mut u8, size: u32) -> Self {
        Self { base, size }
    }

    /// Bytes the ring holds.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        u64::from(self.size)
    }

    /// Bytes between the positions `head` and `tail`, checked.
    #[inline]
    pub(crate) fn used(&self, head: u64, tail: u64) -> Result<u64, Overrun> {
        let used = tail.wrapping_sub(head);
        if used <= self.size() {
            Ok(used)
        } else {
            Err(Overrun)
        }
    }

    /// The stretch of at most `length` bytes that begins at `position` and does not wrap.
    #[inline]
    pub(crate) fn stretch(&self, position: u64, length: usize) -> Span {
        let offset = (position & (self.size() - 1)) as usize;
        // SAFETY: the offset is below the ring's size, and the length reaches at most to its end.
        unsafe { Span::new(self.base.add(offset), length.min(self.size as usize - offset)) }
    }
}
