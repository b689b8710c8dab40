//! A program's buffers (an iovec array) with a position in them.

use crate::sys::{Errno, Result};
use libc::iovec;

/// Lowest address a program's buffer may have: what is below is a null pointer with an offset.
const LOWEST: usize = 1 << 16;
/// First address that is not user space.
const HIGHEST: usize = 1 << 47;
/// The most bytes one call transfers (the kernel's MAX_RW_COUNT).
const MOST: usize = 0x7fff_f000;
/// The most buffers of one call (the kernel's UIO_MAXIOV).
const MOST_BUFFERS: usize = 1024;

/// See the module. The memory is the program's; bytes are only copied.
#[derive(Clone)]
pub struct Buffers<'a> {
    rest: &'a [iovec],
    offset: usize,
    remaining: usize,
}

impl<'a> Buffers<'a> {
    /// Checks the array as the kernel does: EINVAL for lengths, EFAULT for addresses that can not
    /// be the program's.
    pub fn new(buffers: &'a [iovec]) -> Result<Self> {
        let mut remaining = 0usize;
        for b in buffers {
            if b.iov_len > isize::MAX as usize {
                return Err(Errno(libc::EINVAL));
            }
            let at = b.iov_base as usize;
            if b.iov_len > 0 && (at < LOWEST || at.saturating_add(b.iov_len) > HIGHEST) {
                return Err(Errno(libc::EFAULT));
            }
            remaining = (remaining + b.iov_len).min(MOST);
        }
        Ok(Self { rest: buffers, offset: 0, remaining })
    }

    /// The array of `count` buffers at `at`.
    ///
    /// # Safety
    /// If the address is plausible, `count` iovecs are readable there.
    pub unsafe fn from_raw(at: *const iovec, count: usize) -> Result<Self> {
        if count > MOST_BUFFERS {
            return Err(Errno(libc::EMSGSIZE));
        }
        if count == 0 {
            return Self::new(&[]);
        }
        if (at as usize) < LOWEST {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: the caller's promise.
        Self::new(unsafe { std::slice::from_raw_parts(at, count) })
    }

    /// Bytes from the position to the end.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.remaining
    }

    #[inline]
    fn each(&mut self, mut length: usize, mut copy: impl FnMut(*mut u8, usize)) {
        debug_assert!(length <= self.remaining);
        self.remaining -= length;
        while length > 0 {
            let b = &self.rest[0];
            let n = (b.iov_len - self.offset).min(length);
            // SAFETY: the offset is within the buffer.
            copy(unsafe { b.iov_base.cast::<u8>().add(self.offset) }, n);
            length -= n;
            self.offset += n;
            if self.offset == b.iov_len {
                self.rest = &self.rest[1..];
                self.offset = 0;
            }
        }
    }

    /// Copies `length` bytes out of the program's buffers.
    ///
    /// # Safety
    /// `to` has room for `length` bytes; `length` is at most `remaining()`.
    #[inline]
    pub unsafe fn copy_out(&mut self, mut to: *mut u8, length: usize) {
        self.each(length, |at, n| {
            // SAFETY: the program gave `at`; `to` has room.
            unsafe {
                std::ptr::copy_nonoverlapping(at, to, n);
                to = to.add(n);
            }
        });
    }

    /// Copies `length` bytes into the program's buffers.
    ///
    /// # Safety
    /// `from` has `length` readable bytes; `length` is at most `remaining()`.
    #[inline]
    pub unsafe fn copy_in(&mut self, mut from: *const u8, length: usize) {
        self.each(length, |at, n| {
            // SAFETY: the program gave `at`; `from` is readable.
            unsafe {
                std::ptr::copy_nonoverlapping(from, at, n);
                from = from.add(n);
            }
        });
    }

    /// Lets it end after `length` more bytes.
    pub fn truncate(&mut self, length: usize) {
        self.remaining = self.remaining.min(length);
    }

    /// Moves the position without copying (MSG_TRUNC).
    pub fn skip(&mut self, length: usize) {
        self.each(length, |_, _| {});
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iov(bytes: &mut [u8]) -> iovec {
        iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
    }

    #[test]
    fn copies_cross_buffer_borders_and_empty_buffers() {
        let (mut a, mut b, mut c) = ([1u8, 2, 3], [], [4u8, 5]);
        let array = [iov(&mut a), iov(&mut b), iov(&mut c)];
        let mut buffers = Buffers::new(&array).unwrap();
        let mut out = [0u8; 5];
        // SAFETY: sizes match.
        unsafe {
            buffers.copy_out(out.as_mut_ptr(), 2);
            buffers.copy_out(out.as_mut_ptr().add(2), 3);
        }
        assert_eq!(out, [1, 2, 3, 4, 5]);
        assert_eq!(buffers.remaining(), 0);
    }

    #[test]
    fn impossible_arrays_are_refused_as_the_kernel_does() {
        let bad = |at: usize, n: usize| [iovec { iov_base: at as *mut _, iov_len: n }];
        assert_eq!(Buffers::new(&bad(8, 1)).err(), Some(Errno(libc::EFAULT)));
        assert_eq!(Buffers::new(&bad(usize::MAX - 4, 1)).err(), Some(Errno(libc::EFAULT)));
        assert_eq!(Buffers::new(&bad(1 << 20, usize::MAX)).err(), Some(Errno(libc::EINVAL)));
        assert!(Buffers::new(&bad(0, 0)).is_ok());
    }
}
