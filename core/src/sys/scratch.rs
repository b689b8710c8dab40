//! Room for what only passes through and is too large for a stack, which may be a signal handler's. It is no heap
//! memory, for a handler may have interrupted the heap.

use super::{file, Result};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Bytes of it.
pub(crate) const SIZE: usize = 16 << 10;

/// A piece that no thread uses now.
static KEPT: AtomicPtr<u8> = AtomicPtr::new(null_mut());

/// See the module. Aligned to a page; what is in it is left from its last use.
pub(crate) struct Scratch(*mut u8);

impl Scratch {
    /// The one that is kept, or a new one.
    ///
    /// # Errors
    /// ENOMEM.
    pub(crate) fn take() -> Result<Scratch> {
        let kept = KEPT.swap(null_mut(), Ordering::Acquire);
        if kept.is_null() {
            return file::map_private(SIZE).map(Scratch);
        }
        Ok(Scratch(kept))
    }

    /// Its bytes.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is this one's alone.
        unsafe { std::slice::from_raw_parts_mut(self.0, SIZE) }
    }

    /// The same as an array of buffers.
    pub(crate) fn buffers(&mut self) -> &mut [libc::iovec] {
        const COUNT: usize = SIZE / size_of::<libc::iovec>();
        // SAFETY: as above, and whatever lies there is valid for plain numbers and pointers.
        unsafe { std::slice::from_raw_parts_mut(self.0.cast(), COUNT) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let other = KEPT.swap(self.0, Ordering::AcqRel);
        if !other.is_null() {
            // SAFETY: no thread used it.
            unsafe { file::unmap(other, SIZE) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_have_the_same_memory() {
        let (mut one, mut other) = (Scratch::take().unwrap(), Scratch::take().unwrap());
        one.bytes().fill(1);
        other.bytes().fill(2);
        assert!(one.bytes().iter().all(|byte| *byte == 1));
        assert_eq!(other.buffers().len(), 1024);
        drop((one, other));
        assert_eq!(Scratch::take().unwrap().bytes().len(), SIZE);
    }
}
