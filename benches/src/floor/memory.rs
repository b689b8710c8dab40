//! A memfd mapped shared, and the copies in and out of it.

use crate::error::BenchError;
use crate::sys;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::AtomicU64;

/// A shared mapping, which a forked child inherits. It is zeros, and all of it was touched.
pub(crate) struct SharedMapping {
    base: *mut u8,
    length: usize,
}

impl SharedMapping {
    pub(crate) fn new(length: usize) -> Result<SharedMapping, BenchError> {
        SharedMapping::map(&SharedMapping::file(length)?, length)
    }

    /// The file behind such a mapping.
    pub(crate) fn file(length: usize) -> Result<OwnedFd, BenchError> {
        // SAFETY: a literal name; no pointer is kept.
        let fd = sys::check("memfd_create", unsafe {
            libc::memfd_create(c"sanbench".as_ptr(), libc::MFD_CLOEXEC)
        })?;
        // SAFETY: made just now, and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: no memory is involved.
        sys::check("ftruncate", unsafe { libc::ftruncate(fd.as_raw_fd(), length as libc::off_t) })?;
        Ok(fd)
    }

    /// Maps such a file, of this length or more.
    pub(crate) fn map(file: &impl AsRawFd, length: usize) -> Result<SharedMapping, BenchError> {
        // SAFETY: a fresh mapping, of a file that is as long.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(BenchError::last("mmap"));
        }
        Ok(SharedMapping { base: base.cast(), length })
    }

    /// A shared word.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.length, "word outside the mapping");
        // SAFETY: in bounds and aligned; words are only ever used as atomics.
        unsafe { &*self.base.add(offset).cast::<AtomicU64>() }
    }

    /// Copies into the mapping. The caller owns that part until it publishes it.
    #[inline]
    pub(crate) fn copy_in(&self, offset: usize, from: &[u8]) {
        assert!(offset + from.len() <= self.length, "copy outside the mapping");
        // SAFETY: in bounds; by the floor's protocols no other process touches this part now.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.base.add(offset), from.len()) };
    }

    /// Copies out of the mapping. The caller has seen the part published.
    #[inline]
    pub(crate) fn copy_out(&self, offset: usize, to: &mut [u8]) {
        assert!(offset + to.len() <= self.length, "copy outside the mapping");
        // SAFETY: as for `copy_in`.
        unsafe { ptr::copy_nonoverlapping(self.base.add(offset), to.as_mut_ptr(), to.len()) };
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: base and length are those of the mapping; no reference into it outlives self.
        unsafe { libc::munmap(self.base.cast(), self.length) };
    }
}
