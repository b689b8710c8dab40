//! A program's buffers (an iovec array) with a position in them.
//!
//! The library copies their bytes into and out of a connection's segment, or memory of its own. It asks about each page
//! before it touches the page, so that a bad pointer is EFAULT.

use crate::provider::shm::Span;
use crate::sys::scratch::Scratch;
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

/// False of memory that reaches beyond what any program can have: the kernel refuses it before it looks at any of it.
pub fn may_be_ours(at: *const u8, length: usize) -> bool {
    const END: usize = (1 << 47) - 4096;
    length <= MOST || (at as usize).checked_add(length).is_some_and(|end| end <= END)
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
        let buffers = unsafe { std::slice::from_raw_parts(at, count) };
        let all = Self::new(buffers)?;
        // The kernel cuts the length of one buffer alone.
        if count > 1 && !buffers.iter().all(|b| may_be_ours(b.iov_base.cast(), b.iov_len)) {
            return Err(Errno(libc::EFAULT));
        }
        Ok(all)
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

    /// Copies out of the program's buffers into `to`, as much as fits and remains; EFAULT if they can not be read.
    #[inline(always)]
    pub(crate) fn copy_out(&mut self, to: Span) -> Result<()> {
        // SAFETY: it has room for its length.
        unsafe { self.copy_to(to.at(), to.length()) }
    }

    /// [`copy_out`](Self::copy_out) into memory of our own.
    #[cfg(test)]
    fn copy_to_slice(&mut self, to: &mut [u8]) -> Result<()> {
        // SAFETY: it has room for its length.
        unsafe { self.copy_to(to.as_mut_ptr(), to.len()) }
    }

    /// Copies `from` into the program's buffers, as much as there is room for; EFAULT if they can not be written.
    #[inline(always)]
    pub(crate) fn copy_in(&mut self, from: Span) -> Result<()> {
        // SAFETY: it has so many readable bytes.
        unsafe { self.copy_from(from.at(), from.length()) }
    }

    /// [`copy_in`](Self::copy_in) of memory of our own.
    #[cfg(test)]
    fn copy_from_slice(&mut self, from: &[u8]) -> Result<()> {
        // SAFETY: it has so many readable bytes.
        unsafe { self.copy_from(from.as_ptr(), from.len()) }
    }

    /// # Safety
    /// `to` has room for `length` bytes.
    #[inline(always)]
    unsafe fn copy_to(&mut self, mut to: *mut u8, length: usize) -> Result<()> {
        let now = self.now;
        self.each(length.min(self.remaining), |at, n| {
            user::check_at(at, n, Access::Read, now)?;
            // SAFETY: `at` was checked; `to` has room.
            unsafe {
                std::ptr::copy_nonoverlapping(at, to, n);
                to = to.add(n);
            }
            Ok(())
        })
    }

    /// # Safety
    /// `from` has `length` readable bytes.
    #[inline(always)]
    unsafe fn copy_from(&mut self, mut from: *const u8, length: usize) -> Result<()> {
        let now = self.now;
        self.each(length.min(self.remaining), |at, n| {
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
    pub(crate) fn piece(&self, most: usize, access: Access) -> Result<(*mut u8, usize)> {
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

    /// Calls `use_them` with an array of the next `most` bytes' pieces, for a system call that checks them. Without memory
    /// for the array of very many, those are fewer bytes.
    pub(crate) fn with_pieces<T>(&self, most: usize, use_them: impl FnOnce(&[iovec]) -> T) -> T {
        const NONE: iovec = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        const FEW: usize = 16;
        let mut few = [NONE; FEW];
        if self.rest.len() > FEW {
            if let Ok(mut scratch) = Scratch::take() {
                return use_them(self.lay_out(most, scratch.buffers()));
            }
        }
        use_them(self.lay_out(most, &mut few))
    }

    fn lay_out<'b>(&self, most: usize, into: &'b mut [iovec]) -> &'b [iovec] {
        let (mut left, mut offset) = (most.min(self.remaining), self.offset);
        let mut count = 0;
        for (piece, buffer) in into.iter_mut().zip(self.rest) {
            let length = (buffer.iov_len - offset).min(left);
            let iov_base = buffer.iov_base.wrapping_byte_add(offset);
            *piece = iovec { iov_base, iov_len: length };
            (left, offset, count) = (left - length, 0, count + 1);
            if left == 0 {
                break;
            }
        }
        &into[..count]
    }

    /// Leaves out all but so many bytes.
    pub(crate) fn take_at_most(&mut self, length: usize) {
        self.remaining = self.remaining.min(length);
    }

    /// Moves the position without copying (MSG_TRUNC).
    pub(crate) fn skip(&mut self, length: usize) {
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
        let (first, rest) = out.split_at_mut(2);
        buffers.copy_to_slice(first).unwrap();
        buffers.copy_to_slice(rest).unwrap();
        assert_eq!(out, [1, 2, 3, 4, 5]);
        assert_eq!(buffers.remaining(), 0);
    }

    #[test]
    fn no_more_is_copied_than_there_is_room_for() {
        let mut room = [0u8; 4];
        let array = [iov(&mut room[..3])];
        let mut buffers = Buffers::new(&array).unwrap();
        buffers.copy_from_slice(&[1, 2]).unwrap();
        buffers.copy_from_slice(&[3, 4]).unwrap();
        assert_eq!((room, buffers.remaining()), ([1, 2, 3, 0], 0));
    }

    #[test]
    fn pieces_begin_at_the_position_and_end_with_what_is_wanted() {
        let mut bytes = [0u8; 120];
        let array: Vec<_> = bytes.chunks_mut(3).map(iov).collect();
        let mut buffers = Buffers::new(&array).unwrap();
        let lengths = |buffers: &Buffers, most| {
            buffers.with_pieces(most, |pieces| pieces.iter().map(|p| p.iov_len).collect::<Vec<_>>())
        };
        assert_eq!(lengths(&buffers, usize::MAX), [3; 40]);
        assert_eq!(lengths(&buffers, 7), [3, 3, 1]);
        buffers.skip(4);
        assert_eq!(lengths(&buffers, 6), [2, 3, 1]);
        buffers.skip(92);
        assert_eq!(lengths(&buffers, usize::MAX), [3; 8]);
        assert_eq!(lengths(&buffers, 0), [0]);
        let first = buffers.with_pieces(1, |pieces| pieces[0].iov_base);
        assert_eq!(first, array[32].iov_base);
    }

    #[test]
    fn impossible_arrays_are_refused_as_the_kernel_does() {
        let bad = |at: usize, n: usize| [iovec { iov_base: at as *mut _, iov_len: n }];
        let far = bad(8, 1);
        let copied = Buffers::new(&far).unwrap().copy_to_slice(&mut [0]);
        assert_eq!(copied, Err(Errno(libc::EFAULT)));
        assert_eq!(Buffers::new(&bad(1 << 20, usize::MAX)).err(), Some(Errno(libc::EINVAL)));
        assert!(Buffers::new(&bad(0, 0)).is_ok());
    }
}
