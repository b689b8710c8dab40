//! A window: memory of one end that its peer can reach (M2, M3, M5), and the word that decides between the peer's
//! access and the owner's taking it back.
//!
//! The owner keeps in its own memory what it bound. The words here are for the peer, which checks them before each
//! access. A writer announces a write in the word, so that the owner does not have its memory back while bytes are on
//! their way. A read that comes too late only has no effect. The peer has one access under way at a time, since
//! requests of a queue pair run in order.

use super::super::proof::ProofFields;
use super::super::refusal::Refusal;
use crate::provider::interface::{RemoteAccess, RemoteMemory};
use std::ops::Range;
use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};

/// Windows of one end: a power of two.
pub(super) const WINDOWS: usize = 64;
/// Bytes that are written at a time. The owner may have to wait for so many.
const PIECE: usize = 256 << 10;
/// Attempts against a peer that changes the word at the same time.
const ATTEMPTS: usize = 100;

/// Nothing is bound.
const CLOSED: u32 = 0;
/// The peer may access it.
const OPEN: u32 = 1;
/// The peer is writing.
const WRITING: u32 = 2;
/// It is, and nothing more is to follow.
const CLOSING: u32 = 3;

/// See the module. Zeroed memory is a valid start: nothing is bound.
#[repr(C, align(64))]
pub(super) struct Window {
    /// Token and phase: the word that decides.
    state: AtomicU64,
    start: AtomicU64,
    length: AtomicU64,
    /// The [`RemoteAccess`] that is allowed.
    access: AtomicU32,
}

const fn pack(token: u32, phase: u32) -> u64 {
    (token as u64) << 32 | phase as u64
}

/// The window that a token is of.
#[inline]
pub(super) fn place(token: u32) -> usize {
    token as usize % WINDOWS
}

impl Window {
    /// Lets the peer access `range`. Owner; nothing may be bound here.
    pub(super) fn open(&self, token: u32, range: &Range<u64>, access: RemoteAccess) {
        self.start.store(range.start, Ordering::Relaxed);
        self.length.store(range.end - range.start, Ordering::Relaxed);
        self.access.store(access as u32, Ordering::Relaxed);
        self.state.store(pack(token, OPEN), Ordering::Release);
    }

    /// Takes the memory back; false if the peer is writing at this moment: ask again. `dead`: the peer
    /// does nothing more. Owner.
    pub(super) fn close(&self, dead: bool) -> bool {
        let mut state = self.state.load(Ordering::Acquire);
        for _ in 0..ATTEMPTS {
            let next = match state as u32 {
                CLOSED => return true,
                WRITING if !dead => CLOSING,
                CLOSING if !dead => return false,
                _ => CLOSED,
            };
            let next = pack((state >> 32) as u32, next);
            let swapped =
                self.state.compare_exchange(state, next, Ordering::AcqRel, Ordering::Acquire);
            match swapped {
                Ok(_) if next as u32 == CLOSED => return true,
                Ok(_) => state = next,
                Err(now) => state = now,
            }
        }
        false
    }

    /// True if it was opened for this token. Owner.
    pub(super) fn is_of(&self, token: u32) -> bool {
        (self.state.load(Ordering::Acquire) >> 32) as u32 == token
    }

    /// As a peer in the middle of something.
    #[cfg(test)]
    pub(super) fn set_phase(&self, phase: u32) {
        let token = (self.state.load(Ordering::SeqCst) >> 32) as u32;
        self.state.store(pack(token, phase), Ordering::SeqCst);
    }

    /// Whether `length` bytes of `memory` can be read, or written. Peer.
    ///
    /// # Errors
    /// [`Refusal::NotRegistered`].
    pub(super) fn check(
        &self,
        memory: RemoteMemory,
        length: usize,
        access: RemoteAccess,
    ) -> Result<(), Refusal> {
        let is_open = self.state.load(Ordering::Acquire) == pack(memory.token, OPEN);
        let start = self.start.load(Ordering::Relaxed);
        let size = self.length.load(Ordering::Relaxed);
        let offset = memory.address.wrapping_sub(start);
        let fits = offset <= size && length as u64 <= size - offset;
        let is_allowed = self.access.load(Ordering::Relaxed) == access as u32;
        if is_open && fits && is_allowed {
            Ok(())
        } else {
            Err(Refusal::NotRegistered)
        }
    }

    /// RDMA read (S4) of `length` bytes of `process`, to which the proof belongs. The peer calls this.
    ///
    /// # Errors
    ///
    /// [`Refusal`]; bytes at `to` may have changed then.
    ///
    /// # Safety
    ///
    /// `length` bytes at `to` may be written.
    pub(super) unsafe fn read(
        &self,
        process: u32,
        proof: &ProofFields,
        memory: RemoteMemory,
        to: *mut u8,
        length: usize,
    ) -> Result<(), Refusal> {
        self.check(memory, length, RemoteAccess::Read)?;
        // SAFETY: the caller's promise.
        let n = unsafe { proof.read(process, memory.address, to, length) }?;
        if n < length {
            return Err(Refusal::Fault);
        }
        // The bytes before the word: taken back meanwhile, they may be anything.
        fence(Ordering::SeqCst);
        if self.state.load(Ordering::Acquire) != pack(memory.token, OPEN) {
            return Err(Refusal::NotRegistered);
        }
        Ok(())
    }

    /// RDMA write (S5) of `length` bytes, as [`read`](Self::read). True: the owner waits for the end of this write, and
    /// the peer has to ring it.
    ///
    /// # Errors
    ///
    /// [`Refusal`]; some bytes may have been written then.
    ///
    /// # Safety
    ///
    /// `length` bytes at `from` are mapped.
    pub(super) unsafe fn write(
        &self,
        process: u32,
        proof: &ProofFields,
        memory: RemoteMemory,
        from: *const u8,
        length: usize,
    ) -> (Result<(), Refusal>, bool) {
        if let Err(refusal) = self.check(memory, length, RemoteAccess::Write) {
            return (Err(refusal), false);
        }
        let (open, writing) = (pack(memory.token, OPEN), pack(memory.token, WRITING));
        let mut done = 0;
        while done < length {
            let swap = |from, to| {
                self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed)
            };
            // From here to the end of the piece the owner does not have it back.
            if swap(open, writing).is_err() {
                return (Err(Refusal::NotRegistered), false);
            }
            let piece = (length - done).min(PIECE);
            let to = memory.address.wrapping_add(done as u64);
            // Before each piece: the owner may have died since the last one, and its number be another's.
            let written = proof.check(process).and_then(|()| {
                // SAFETY: the owner bound these bytes to be written, and waits while we are writing; the
                // rest is the caller's promise.
                unsafe { ProofFields::write(process, to, from.add(done), piece) }
            });
            let is_awaited = swap(writing, open).is_err();
            if is_awaited {
                self.state.store(pack(memory.token, CLOSED), Ordering::SeqCst);
            }
            match written {
                Ok(n) if n == piece => done += piece,
                Ok(_) => return (Err(Refusal::Fault), is_awaited),
                Err(refusal) => return (Err(refusal), is_awaited),
            }
            if is_awaited {
                let whole = if done == length { Ok(()) } else { Err(Refusal::NotRegistered) };
                return (whole, true);
            }
        }
        (Ok(()), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::process::pid;
    use RemoteAccess::{Read, Write};

    fn zeroed<T>() -> Box<T> {
        // SAFETY: both kinds of objects that the tests make begin as zeros.
        Box::new(unsafe { std::mem::zeroed() })
    }

    fn opened(
        bytes: &mut [u8],
        access: RemoteAccess,
    ) -> (Box<Window>, Box<ProofFields>, RemoteMemory) {
        let (window, proof) = (zeroed::<Window>(), zeroed::<ProofFields>());
        let start = bytes.as_mut_ptr() as u64;
        proof.offer();
        window.open(70, &(start..start + bytes.len() as u64), access);
        (window, proof, RemoteMemory { address: start, token: 70 })
    }

    fn read(w: &Window, p: &ProofFields, m: RemoteMemory, to: &mut [u8]) -> Result<(), Refusal> {
        // SAFETY: the slice may be written.
        unsafe { w.read(pid(), p, m, to.as_mut_ptr(), to.len()) }
    }

    fn write(w: &Window, p: &ProofFields, m: RemoteMemory, from: &[u8]) -> Result<(), Refusal> {
        // SAFETY: the slice is mapped.
        unsafe { w.write(pid(), p, m, from.as_ptr(), from.len()) }.0
    }

    #[test]
    fn m3_an_access_needs_its_right_and_its_range() {
        let mut bytes = [5u8; 16];
        let mut to = [0; 16];
        let refused = Err(Refusal::NotRegistered);
        let (w, p, m) = opened(&mut bytes, Read);
        assert_eq!(read(&w, &p, m, &mut to), Ok(()));
        assert_eq!(to, [5; 16]);
        assert_eq!(write(&w, &p, m, &[9; 4]), refused);
        let later = RemoteMemory { address: m.address + 8, ..m };
        assert_eq!(read(&w, &p, later, &mut to), refused);
        assert_eq!(read(&w, &p, later, &mut to[..8]), Ok(()));
        let earlier = RemoteMemory { address: m.address - 1, ..m };
        assert_eq!(read(&w, &p, earlier, &mut to[..1]), refused);
        assert_eq!(read(&w, &p, RemoteMemory { token: 6, ..m }, &mut to), refused);
        assert!(w.close(false));
        assert_eq!(read(&w, &p, m, &mut to), refused);
    }

    /// Its number may be another's by now.
    #[test]
    fn m2_nothing_is_written_to_another_process() {
        let mut bytes = [0u8; 16];
        let (w, p, m) = opened(&mut bytes, Write);
        let others = [0u64; 2];
        p.misdirect(&others);
        assert_eq!(write(&w, &p, m, &[9; 4]), Err(Refusal::Stranger));
        assert_eq!((bytes, others), ([0; 16], [0; 2]));
        // The write is over, and keeps no thread waiting.
        assert!(w.close(false));
    }

    #[test]
    fn m5_a_write_that_is_under_way_is_awaited_unless_its_writer_is_dead() {
        let mut bytes = [0u8; 16];
        let (w, p, m) = opened(&mut bytes, Write);
        assert_eq!(write(&w, &p, m, &[9; 4]), Ok(()));
        assert_eq!(bytes[..5], [9, 9, 9, 9, 0]);
        w.state.store(pack(70, WRITING), Ordering::Relaxed);
        assert!(!w.close(false));
        assert!(!w.close(false));
        assert!(w.close(true));
        assert_eq!(write(&w, &p, m, &[8; 4]), Err(Refusal::NotRegistered));
        // The word may say anything.
        w.state.store(u64::MAX, Ordering::Relaxed);
        assert!(w.close(false));
    }
}
