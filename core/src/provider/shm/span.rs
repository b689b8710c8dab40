//! A piece of a segment's memory. The peer may change its bytes at any moment, so the library only copies them, and
//! never looks at them in place. This module does not know what the bytes mean.

use std::ptr;

/// See the module. Copies name the same bytes.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    at: *mut u8,
    length: usize,
}

impl Span {
    /// The `length` bytes at `at`.
    ///
    /// # Safety
    /// They lie within a segment, which stays mapped as long as the span or a part of it is used.
    #[inline(always)]
    pub(super) unsafe fn new(at: *mut u8, length: usize) -> Span {
        Span { at, length }
    }

    /// Where it begins.
    #[inline(always)]
    pub(crate) fn at(&self) -> *mut u8 {
        self.at
    }

    /// How many bytes it has.
    #[inline(always)]
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The `length` bytes from `offset` on, as far as they lie within.
    #[inline(always)]
    pub(crate) fn part(self, offset: usize, length: usize) -> Span {
        let offset = offset.min(self.length);
        // SAFETY: the offset is at most its length, and what is left reaches no further than it does.
        unsafe { Span::new(self.at.add(offset), length.min(self.length - offset)) }
    }

    /// The span behind its first `offset` bytes.
    #[inline(always)]
    pub(crate) fn after(self, offset: usize) -> Span {
        self.part(offset, self.length)
    }

    /// Copies `bytes` to its beginning, as far as they fit.
    #[inline(always)]
    pub(crate) fn write(&self, bytes: &[u8]) {
        debug_assert!(bytes.len() <= self.length);
        // SAFETY: the span's bytes are mapped, and `bytes` are not among them, because no reference leads to the span.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.at, bytes.len().min(self.length)) };
    }

    /// Copies its first bytes, as many as `to` has. `None` if it is shorter.
    #[inline(always)]
    pub(crate) fn read(&self, to: &mut [u8]) {
        debug_assert!(to.len() <= self.length);
        // SAFETY: as in `write`.
        unsafe { ptr::copy_nonoverlapping(self.at, to.as_mut_ptr(), to.len().min(self.length)) };
    }

    /// The bytes themselves, for a system call that copies them. The peer can at most change what is copied.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped, by the promise to `new`; the caller hands them on and looks at none.
        unsafe { std::slice::from_raw_parts(self.at, self.length) }
    }
}
