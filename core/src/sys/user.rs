//! Checks memory that the program names in a call before the library touches it. A bad pointer has to be EFAULT, as
//! from the kernel, and not the end of the program.
//!
//! The library asks the kernel once about a page, and believes the answer for a while. So the check costs a few
//! nanoseconds per call. A page that is unmapped within that while faults, as in any library.

use super::{call, Errno, Result, PAGE};
use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};

const PAGE_BITS: u32 = PAGE.trailing_zeros();
/// So many pages are remembered, enough for the buffers of some thousand connections.
const ENTRIES: usize = 1 << 14;

/// What is done to the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Bytes are read from it.
    Read,
    /// Bytes are written to it.
    Write,
}

/// One answer of the kernel in a word: the page's number, whether it can be written, and when the kernel said so.
#[derive(Clone, Copy)]
struct Known(u64);

impl Known {
    const NUMBER_BITS: u32 = 47 - PAGE_BITS;
    const WRITABLE: u64 = 1 << Self::NUMBER_BITS;
    const TIME_SHIFT: u32 = Self::NUMBER_BITS + 1;
    /// How long an answer is believed, in units of 2^24 clock ticks: some 200 ms.
    const BELIEVED: u64 = 36;

    fn new(page: usize, access: Access, now: u64) -> Self {
        let writable = if access == Access::Write { Self::WRITABLE } else { 0 };
        Self(page as u64 | writable | now << Self::TIME_SHIFT)
    }

    #[inline]
    fn tells(self, page: usize, access: Access, now: u64) -> bool {
        let age = now.wrapping_sub(self.0 >> Self::TIME_SHIFT) << Self::TIME_SHIFT;
        self.0 != 0
            && self.0 & (Self::WRITABLE - 1) == page as u64
            && (access == Access::Read || self.0 & Self::WRITABLE != 0)
            && age <= Self::BELIEVED << Self::TIME_SHIFT
    }
}

/// The answers that this process remembers. No order between the words matters.
static KNOWN: [AtomicU64; ENTRIES] = [const { AtomicU64::new(0) }; ENTRIES];

/// EFAULT unless `length` bytes at `at` can be accessed.
#[inline]
pub fn check(at: *const u8, length: usize, access: Access) -> Result<()> {
    check_at(at, length, access, 0)
}

/// [`check`] by a caller that knows the time, in [`ticks`](super::time::ticks). Zero if it does not.
#[inline(always)]
pub(crate) fn check_at(at: *const u8, length: usize, access: Access, ticks: u64) -> Result<()> {
    if length == 0 {
        return Ok(());
    }
    let first = at as usize >> PAGE_BITS;
    let Some(end) = (at as usize).checked_add(length - 1) else {
        return Err(Errno(libc::EFAULT));
    };
    let last = end >> PAGE_BITS;
    let now = if ticks == 0 { super::time::ticks() } else { ticks } >> 24;
    let tells =
        |page: usize| Known(KNOWN[page % ENTRIES].load(Ordering::Relaxed)).tells(page, access, now);
    if tells(first) && (first == last || (first + 1..=last).all(tells)) {
        return Ok(());
    }
    ask(first, last, access, now)
}

/// [`check`], which asks the kernel whatever it answered before.
pub fn check_anew(at: *const u8, length: usize, access: Access) -> Result<()> {
    let Some(end) = (at as usize).checked_add(length.max(1) - 1) else {
        return Err(Errno(libc::EFAULT));
    };
    let now = super::time::ticks() >> 24;
    ask(at as usize >> PAGE_BITS, end >> PAGE_BITS, access, now)
}

#[cold]
fn ask(first: usize, last: usize, access: Access, now: u64) -> Result<()> {
    if first == 0 || last >= 1 << (47 - PAGE_BITS) {
        return Err(Errno(libc::EFAULT));
    }
    if can_ask() {
        let advice = match access {
            Access::Read => libc::MADV_POPULATE_READ,
            Access::Write => libc::MADV_POPULATE_WRITE,
        };
        let (start, size) = (first << PAGE_BITS, (last - first + 1) << PAGE_BITS);
        match call!(madvise, start, size, advice) {
            Ok(_) | Err(Errno(libc::EAGAIN | libc::EINTR | libc::EHWPOISON)) => {}
            Err(_) => return Err(Errno(libc::EFAULT)),
        }
    }
    for page in first..=last {
        KNOWN[page % ENTRIES].store(Known::new(page, access, now).0, Ordering::Relaxed);
    }
    Ok(())
}

/// Whether the kernel answers: 0 not known yet, 1 no, 2 yes.
static ANSWER: AtomicU8 = AtomicU8::new(0);

/// From now on every address is believed, because this process may be forbidden to ask.
pub(crate) fn stop_asking() {
    ANSWER.store(1, Ordering::Relaxed);
}

/// True if this kernel (5.14 or newer) answers.
fn can_ask() -> bool {
    match ANSWER.load(Ordering::Relaxed) {
        0 => {
            let probe = 0u8;
            let page = (&probe as *const u8 as usize) >> PAGE_BITS << PAGE_BITS;
            let can = call!(madvise, page, PAGE, libc::MADV_POPULATE_READ).is_ok();
            ANSWER.store(1 + u8::from(can), Ordering::Relaxed);
            can
        }
        answer => answer == 2,
    }
}

/// Reads a plain value that the program points to.
#[allow(clippy::not_unsafe_ptr_arg_deref, reason = "the memory is checked first")]
pub fn read<T: Copy>(at: *const T) -> Result<T> {
    check(at.cast(), size_of::<T>(), Access::Read)?;
    // SAFETY: the memory is readable; T is plain data by the callers' choice.
    Ok(unsafe { at.read_unaligned() })
}

/// Stores a plain value where the program points to.
#[allow(clippy::not_unsafe_ptr_arg_deref, reason = "the memory is checked first")]
pub fn write<T: Copy>(at: *mut T, value: T) -> Result<()> {
    check(at.cast(), size_of::<T>(), Access::Write)?;
    // SAFETY: the memory is writable.
    unsafe { at.write_unaligned(value) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::file;

    #[test]
    fn an_answer_tells_of_its_page_its_access_and_its_time() {
        let (page, now) = ((1 << 35) - 3, (1 << 28) - 2);
        let written = Known::new(page, Access::Write, now);
        let read = Known::new(page, Access::Read, now);
        assert!(written.tells(page, Access::Write, now) && written.tells(page, Access::Read, now));
        assert!(!read.tells(page, Access::Write, now) && read.tells(page, Access::Read, now + 36));
        assert!(!read.tells(page + 1, Access::Read, now));
        assert!(!read.tells(page, Access::Read, now + 38));
        assert!(!Known(0).tells(0, Access::Read, 0));
    }

    #[test]
    fn bad_memory_is_efault_and_good_memory_is_not() {
        let fault = Err(Errno(libc::EFAULT));
        assert!(read(8 as *const u32).is_err());
        assert!(read(usize::MAX as *const u8).is_err());
        assert_eq!(check(-256isize as *const u8, 8192, Access::Write), fault);
        let page = file::map_private(8192).unwrap();
        assert_eq!(write(page.cast::<u32>(), 7), Ok(()));
        assert_eq!(read(page.cast::<u32>()), Ok(7));
        // SAFETY: our own mapping.
        unsafe { libc::mprotect(page.add(4096).cast(), 4096, libc::PROT_READ) };
        assert_eq!(check(page, 8192, Access::Read), Ok(()));
        assert_eq!(check(page, 8192, Access::Write), fault);
        // SAFETY: not used again.
        unsafe { file::unmap(page, 8192) };
    }
}
