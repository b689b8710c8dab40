//! A ring of bytes in shared memory, in which messages lie one after the other.
//!
//! The ring knows where bytes are, and not what they mean. Positions count all bytes there ever were, and any number
//! names a place within the ring.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a ring: a power of two.
pub(super) const RING: usize = 256 << 10;
/// Largest message in bytes: at least three fit into a ring.
pub(super) const MAX_MESSAGE: u32 = 64 << 10;
/// Bytes before a message: its length, in 64 bits.
pub(super) const HEADER: usize = 8;

/// Bytes that a message of this length takes.
pub(super) const fn record(length: usize) -> u64 {
    (HEADER + length).next_multiple_of(HEADER) as u64
}

/// See the module.
#[derive(Clone, Copy)]
pub(super) struct PairRing(*mut u8);

impl PairRing {
    /// # Safety
    /// [`RING`] bytes at `at`, aligned to a page, stay mapped as long as the result is used, and no
    /// reference claims them.
    pub(super) unsafe fn new(at: *mut u8) -> Self {
        PairRing(at)
    }

    fn offset(position: u64) -> usize {
        position as usize & (RING - 1)
    }

    /// The header at a position, which is a multiple of [`HEADER`].
    fn header(&self, position: u64) -> &AtomicU64 {
        let offset = Self::offset(position) & !(HEADER - 1);
        // SAFETY: within the ring, and aligned: so are its size and its start.
        unsafe { &*self.0.add(offset).cast::<AtomicU64>() }
    }

    /// Stores the length of the message at `position`. Relaxed: published with its position.
    #[inline]
    pub(super) fn put_length(&self, position: u64, length: usize) {
        self.header(position).store(length as u64, Ordering::Relaxed);
    }

    /// The length of the message at `position`, as the peer says.
    #[inline]
    pub(super) fn length(&self, position: u64) -> u64 {
        self.header(position).load(Ordering::Relaxed)
    }

    /// The two parts that `length` bytes (at most [`RING`]) at `position` lie in.
    #[inline]
    fn parts(position: u64, length: usize) -> (usize, usize) {
        debug_assert!(length <= RING);
        let offset = Self::offset(position);
        (offset, length.min(RING - offset))
    }

    /// Copies `length` bytes in.
    ///
    /// # Safety
    /// They may be read; `length` is at most [`RING`].
    #[inline]
    pub(super) unsafe fn put(&self, position: u64, from: *const u8, length: usize) {
        let (offset, first) = Self::parts(position, length);
        // SAFETY: both parts lie within the ring.
        unsafe {
            self.0.add(offset).copy_from_nonoverlapping(from, first);
            self.0.copy_from_nonoverlapping(from.add(first), length - first);
        }
    }

    /// Copies `length` bytes out.
    ///
    /// # Safety
    /// They may be written; `length` is at most [`RING`].
    #[inline]
    pub(super) unsafe fn get(&self, position: u64, to: *mut u8, length: usize) {
        let (offset, first) = Self::parts(position, length);
        // SAFETY: both parts lie within the ring.
        unsafe {
            to.copy_from_nonoverlapping(self.0.add(offset), first);
            to.add(first).copy_from_nonoverlapping(self.0, length - first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::file;

    #[test]
    fn bytes_at_the_edge_are_whole() {
        let at = file::map_shared(None, RING).unwrap();
        // SAFETY: a mapping of that size, until the end of the test.
        let ring = unsafe { PairRing::new(at) };
        let bytes: Vec<u8> = (0..100).collect();
        for position in [0, 8, RING as u64 - 8, RING as u64 - 56, 7 * RING as u64 - 16] {
            ring.put_length(position, 100);
            // SAFETY: as many bytes as said.
            unsafe { ring.put(position + HEADER as u64, bytes.as_ptr(), 100) };
            let mut copy = [0u8; 100];
            // SAFETY: as above.
            unsafe { ring.get(position + HEADER as u64, copy.as_mut_ptr(), 100) };
            assert_eq!((ring.length(position), &copy[..]), (100, &bytes[..]));
        }
        // Any number is a place within it.
        let _ = ring.length(u64::MAX);
        // SAFETY: mapped above, used no more.
        unsafe { file::unmap(at, RING) };
    }
}
