//! The proof that an access to another process's memory reaches the process that is meant: random bytes, and the place
//! where its memory has them too. Another process that has the same number, in another namespace or by now, does not
//! have the bytes there.
//!
//! The fields lie in memory that both ends share. A hostile peer may write anything there, and then reaches nothing
//! that it could not reach by itself (the kernel lets processes of one user access each other).

use super::refusal::Refusal;
use crate::sys::process;
use libc::iovec;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module. Zeroed memory is a valid start: nothing is offered.
#[repr(C)]
pub(super) struct ProofFields {
    words: [AtomicU64; 2],
    address: AtomicU64,
}

const SIZE: usize = size_of::<[u64; 2]>();

fn part(address: u64, length: usize) -> iovec {
    iovec { iov_base: address as *mut _, iov_len: length }
}

impl ProofFields {
    /// Makes this process's memory known; the proof must not be moved afterwards. Relaxed: to be
    /// followed by a store with release of what tells the peer of some memory. Owner.
    pub(super) fn offer(&self) {
        if self.address.load(Ordering::Relaxed) == 0 {
            for (to, from) in self.words.iter().zip(process::random()) {
                to.store(from, Ordering::Relaxed);
            }
        }
        // The memory lies elsewhere in each process that shares this end.
        self.address.store((&raw const self.words) as u64, Ordering::Relaxed);
    }

    fn words(&self) -> [u64; 2] {
        [0, 1].map(|i| self.words[i].load(Ordering::Relaxed))
    }

    /// That `process` is the one that offered it. Peer.
    ///
    /// # Errors
    /// [`Refusal`].
    pub(super) fn check(&self, process: u32) -> Result<(), Refusal> {
        let mut found = [0u64; 2];
        let local = [part(found.as_mut_ptr() as u64, SIZE)];
        let remote = [part(self.address.load(Ordering::Relaxed), SIZE)];
        // SAFETY: `found` is ours.
        let n = unsafe { process::read_memory(process, &local, &remote) }?;
        if n < SIZE || found != self.words() {
            return Err(Refusal::Stranger);
        }
        Ok(())
    }

    /// Copies up to `length` bytes at `from` in `process` to `to`, after checking that it is the one that
    /// offered the proof: one call of the kernel. How many were copied; fewer where memory ends. Peer.
    ///
    /// # Errors
    /// [`Refusal`]; bytes at `to` may have changed.
    ///
    /// # Safety
    /// `length` bytes at `to` may be written.
    pub(super) unsafe fn read(
        &self,
        process: u32,
        from: u64,
        to: *mut u8,
        length: usize,
    ) -> Result<usize, Refusal> {
        let mut found = [0u64; 2];
        let local = [part(found.as_mut_ptr() as u64, SIZE), part(to as u64, length)];
        let remote = [part(self.address.load(Ordering::Relaxed), SIZE), part(from, length)];
        // SAFETY: `found` is ours, and `to` may be written by the caller's promise.
        let n = unsafe { process::read_memory(process, &local, &remote) }?;
        if n < SIZE || found != self.words() {
            return Err(Refusal::Stranger);
        }
        Ok(n - SIZE)
    }

    /// Copies up to `length` bytes from `from` to `to` in `process`, which was [`check`](Self::check)ed;
    /// how many. Peer.
    ///
    /// # Errors
    /// [`Refusal`].
    ///
    /// # Safety
    /// The owner expects these bytes to be written at this moment; `length` bytes at `from` are
    /// mapped, or the kernel says EFAULT.
    pub(super) unsafe fn write(
        process: u32,
        to: u64,
        from: *const u8,
        length: usize,
    ) -> Result<usize, Refusal> {
        // SAFETY: the caller's promise.
        let written = unsafe {
            process::write_memory(process, &[part(from as u64, length)], &[part(to, length)])
        };
        Ok(written?)
    }

    /// Calls `tell` for each field.
    #[cfg(test)]
    pub(super) fn each_field(&self, tell: super::field_tests::Tell<'_>) {
        super::field_tests::tell!(self, tell, ProofFields { address; words });
        for word in words {
            tell("proof", std::ptr::from_ref(word).addr(), size_of_val(word));
        }
    }

    /// Has it point to other memory.
    #[cfg(test)]
    pub(super) fn misdirect(&self, to: &[u64; 2]) {
        self.address.store(to.as_ptr() as u64, Ordering::Relaxed);
    }
}
