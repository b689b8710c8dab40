//! A program's buffers (an iovec array) with a position in them.

use crate::sys::user::{self, Access};
use crate::sys::{Errno, Result};
use libc::iovec;

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
    /// The time in ticks, or zero: whoever needs it asks the clock.
    now: u64,
}

impl<'a> Buffers<'a> {
    /// Checks the lengths as the kernel does (EINVAL). Addresses are checked when bytes are copied.
    pub fn new(buffers: &'a [iovec]) -> Result<Self> {
        let mut remaining = 0usize;
        for b in buffers {
            if b.iov_len > isize::MAX as usize {
                return Err(Errno(libc::EINVAL));
            }
            remaining = (remaining + b.iov_len).min(MOST);
        }
        Ok(Self { rest: buffers, offset: 0, remaining, now: 0 })
    }

    /// The array of `count` buffers at `at`.
    ///
    /// # Safety
    /// The array stays as it is while the result exists.
    pub unsafe fn from_raw(at: *const iovec, count: usize) -> Result<Self> {
        if count > MOST_BUFFERS {
            return Err(Errno(libc::EMSGSIZE));
        }
        if count == 0 {
            return Self::new(&[]);
        }
        user::check(at.cast(), count * size_of::<iovec>(), Access::Read)?;
        // SAFETY: readable, and the caller's promise.
        Self::new(unsafe { std::slice::from_raw_parts(at, count) })
    }

    /// For a caller that knows the time, in [`ticks`](crate::sys::time::ticks).
    #[inline]
    pub(crate) fn know_time(&mut self, now: u64) {
        self.now = now;
    }

    /// Bytes from the position to the end.
    #[inline]
    pub(crate) fn remaining(&self) -> usize {
        self.remaining
    }

    #[inline(always)]
    fn each(
        &mut self,
        length: usize,
        mut copy: impl FnMut(*mut u8, usize) -> Result<()>,
    ) -> Result<()> {
        debug_assert!(length <= self.remaining);
        if let [b] = self.rest {
            // As nearly always.
            copy(b.iov_base.cast::<u8>().wrapping_add(self.offset), length)?;
            self.remaining -= length;
            self.offset += length;
            return Ok(());
        }
        self.each_of_several(length, copy)
    }

    #[inline(never)]
    fn each_of_several(
        &mut self,
        mut length: usize,
        mut copy: impl FnMut(*mut u8, usize) -> Result<()>,
    ) -> Result<()> {
        while length > 0 {
            let b = &self.rest[0];
            let n = (b.iov_len - self.offset).min(length);
            copy(b.iov_base.cast::<u8>().wrapping_add(self.offset), n)?;
            length -= n;
            self.remaining -= n;
            self.offset += n;
            if self.offset == b.iov_len {
                self.rest = &self.rest[1..];
                self.offset = 0;
            }
        }
        Ok(())
    }

    /// Copies `length` bytes out of the program's buffers; EFAULT if they can not be read.
    ///
    /// # Safety
    /// `to` has room for `length` bytes; `length` is at most `remaining()`.
    #[inline(always)]
    pub unsafe fn copy_out(&mut self, mut to: *mut u8, length: usize) -> Result<()> {
        let now = self.now;
        self.each(length, |at, n| {
            user::check_at(at, n, Access::Read, now)?;
            // SAFETY: `at` was checked; `to` has room.
            unsafe {
                std::ptr::copy_nonoverlapping(at, to, n);
                to = to.add(n);
            }
            Ok(())
        })
    }

    /// Copies `length` bytes into the program's buffers; EFAULT if they can not be written.
    ///
    /// # Safety
    /// `from` has `length` readable bytes; `length` is at most `remaining()`.
    #[inline(always)]
    pub unsafe fn copy_in(&mut self, mut from: *const u8, length: usize) -> Result<()> {
        let now = self.now;
        self.each(length, |at, n| {
            user::check_at(at, n, Access::Write, now)?;
            // SAFETY: `at` was checked; `from` is readable.
            unsafe {
                std::ptr::copy_nonoverlapping(from, at, n);
                from = from.add(n);
            }
            Ok(())
        })
    }

    /// The next bytes that lie in one piece, checked for `access`: at least one if any remain, at
    /// most `most`. EFAULT if their first page can not be accessed.
    pub fn piece(&self, most: usize, access: Access) -> Result<(*mut u8, usize)> {
        let most = most.min(self.remaining);
        let mut offset = self.offset;
        for buffer in self.rest {
            let n = (buffer.iov_len - offset).min(most);
            if n > 0 {
                let at = buffer.iov_base.cast::<u8>().wrapping_add(offset);
                user::check(at, 1, access)?;
                return Ok((at, n));
            }
            offset = 0;
        }
        Ok((std::ptr::NonNull::dangling().as_ptr(), 0))
    }

    /// Lets it end after `length` more bytes.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.remaining = self.remaining.min(length);
    }

    /// Moves the position without copying (MSG_TRUNC).
    pub fn skip(&mut self, length: usize) {
        let _ = self.each(length, |_, _| Ok(()));
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
            buffers.copy_out(out.as_mut_ptr(), 2).unwrap();
            buffers.copy_out(out.as_mut_ptr().add(2), 3).unwrap();
        }
        assert_eq!(out, [1, 2, 3, 4, 5]);
        assert_eq!(buffers.remaining(), 0);
    }

    #[test]
    fn impossible_arrays_are_refused_as_the_kernel_does() {
        let bad = |at: usize, n: usize| [iovec { iov_base: at as *mut _, iov_len: n }];
        let far = bad(8, 1);
        let mut byte = 0u8;
        // SAFETY: one byte of room.
        let copied = unsafe { Buffers::new(&far).unwrap().copy_out(&mut byte, 1) };
        assert_eq!(copied, Err(Errno(libc::EFAULT)));
        assert_eq!(Buffers::new(&bad(1 << 20, usize::MAX)).err(), Some(Errno(libc::EINVAL)));
        assert!(Buffers::new(&bad(0, 0)).is_ok());
    }
}
