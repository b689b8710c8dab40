//! Memory that the program names in a call: checked before it is touched, because a bad pointer
//! has to be EFAULT, as from the kernel, and not the end of the program.
//!
//! The kernel is asked once for a page and the answer believed for a while, so the check costs a
//! few nanoseconds per call. A page that is unmapped within that while faults as in any library.

use super::{call, Errno, Result};
use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering};

const PAGE_BITS: usize = 12;
const ENTRIES: usize = 256;
/// How long an answer is believed, in clock ticks: some 50 ms.
const BELIEVED: u64 = 150_000_000;
const MADV_POPULATE_READ: i32 = 22;
const MADV_POPULATE_WRITE: i32 = 23;

/// What is done to the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Bytes are read from it.
    Read,
    /// Bytes are written to it.
    Write,
}

#[derive(Clone, Copy)]
struct Known {
    page: usize,
    writable: bool,
    asked_at: u64,
}

thread_local! {
    static KNOWN: [Cell<Known>; ENTRIES] = const {
        [const { Cell::new(Known { page: 0, writable: false, asked_at: 0 }) }; ENTRIES]
    };
}

/// EFAULT unless `length` bytes at `at` can be accessed.
#[inline]
pub fn check(at: *const u8, length: usize, access: Access) -> Result<()> {
    if length == 0 {
        return Ok(());
    }
    let first = at as usize >> PAGE_BITS;
    let Some(end) = (at as usize).checked_add(length - 1) else {
        return Err(Errno(libc::EFAULT));
    };
    let last = end >> PAGE_BITS;
    let now = super::time::ticks();
    let known = KNOWN.with(|known| {
        (first..=last).all(|page| {
            let k = known[page % ENTRIES].get();
            k.page == page
                && (k.writable || access == Access::Read)
                && now.wrapping_sub(k.asked_at) < BELIEVED
        })
    });
    if known {
        return Ok(());
    }
    ask(first, last, access, now)
}

#[cold]
fn ask(first: usize, last: usize, access: Access, now: u64) -> Result<()> {
    if first == 0 || last >= 1 << (47 - PAGE_BITS) {
        return Err(Errno(libc::EFAULT));
    }
    if can_ask() {
        let advice = match access {
            Access::Read => MADV_POPULATE_READ,
            Access::Write => MADV_POPULATE_WRITE,
        };
        let (start, size) = (first << PAGE_BITS, (last - first + 1) << PAGE_BITS);
        match call!(madvise, start, size, advice) {
            Ok(_) | Err(Errno(libc::EAGAIN | libc::EINTR | libc::EHWPOISON)) => {}
            Err(_) => return Err(Errno(libc::EFAULT)),
        }
    }
    KNOWN.with(|known| {
        for page in first..=last {
            let writable = access == Access::Write;
            known[page % ENTRIES].set(Known { page, writable, asked_at: now });
        }
    });
    Ok(())
}

/// True if this kernel (5.14 or newer) answers.
fn can_ask() -> bool {
    static ANSWER: AtomicU8 = AtomicU8::new(0);
    match ANSWER.load(Ordering::Relaxed) {
        0 => {
            let probe = 0u8;
            let page = (&probe as *const u8 as usize) >> PAGE_BITS << PAGE_BITS;
            let can = call!(madvise, page, 1 << PAGE_BITS, MADV_POPULATE_READ).is_ok();
            ANSWER.store(1 + u8::from(can), Ordering::Relaxed);
            can
        }
        answer => answer == 2,
    }
}

/// A plain value the program points to.
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
