//! Memory for requests: mapped, registered, and looked at only through copies.

use sanshim_core::provider::interface::client::{Adapter, MemoryRegion};
use sanshim_core::provider::interface::MemoryPiece;

pub(crate) struct Buffer {
    pub(crate) region: MemoryRegion,
    at: *mut u8,
    length: usize,
}

impl Buffer {
    /// Registered zeroes.
    pub(crate) fn new(adapter: &Adapter, length: usize) -> Self {
        // SAFETY: a new anonymous mapping.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        let region = adapter.create_memory_region().unwrap();
        // SAFETY: mapped until the buffer is dropped, which deregisters before.
        unsafe { region.register(at.cast(), length) }.unwrap();
        Buffer { region, at: at.cast(), length }
    }

    pub(crate) fn address(&self) -> u64 {
        self.at as u64
    }

    pub(crate) fn end(&self) -> u64 {
        self.address() + self.length as u64
    }

    pub(crate) fn segment(&self, offset: usize, length: usize) -> MemoryPiece {
        assert!(offset + length <= self.length);
        self.region.segment(self.at.wrapping_add(offset), length as u32).unwrap()
    }

    pub(crate) fn fill(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length);
        // SAFETY: within the mapping.
        unsafe { self.at.add(offset).copy_from(bytes.as_ptr(), bytes.len()) };
    }

    pub(crate) fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= self.length);
        let mut copy = vec![0; length];
        // SAFETY: within the mapping.
        unsafe { copy.as_mut_ptr().copy_from(self.at.add(offset), length) };
        copy
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let _ = self.region.deregister();
        // SAFETY: mapped by `new`.
        unsafe { libc::munmap(self.at.cast(), self.length) };
    }
}

/// Bytes that differ from offset to offset and from seed to seed.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(step).collect()
}
