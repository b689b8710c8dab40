//! Memory that one end lends to its peer for RDMA (M2, M3, M5): which memory, for which transfer, and the moment at
//! which the end takes it back.
//!
//! A registration lies in the segment, so only the two ends of one connection see it. There is one for each end and
//! each right. The peer's access goes through the methods here, which check right, number and range. One word decides
//! between an access and the owner's taking back.

use super::proof::ProofFields;
use super::refusal::Refusal;
use crate::sys::process;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Smallest transfer (bytes) that RDMA, here a copy by the kernel, may be worth: below it the call
/// alone costs more (A2).
pub(crate) const THRESHOLD: u32 = 32 << 10;

/// Not lent.
pub(super) const CLOSED: u64 = 0;
/// Lent.
pub(super) const OPEN: u64 = 1;
/// Lent, and the peer is writing to it.
pub(super) const WRITING: u64 = 2;
const PHASE_SHIFT: u32 = 30;
pub(super) const BYTES: u64 = (1 << PHASE_SHIFT) - 1;

pub(super) const fn pack(key: u32, phase: u64, bytes: u64) -> u64 {
    (key as u64) << 32 | phase << PHASE_SHIFT | bytes
}

pub(super) const fn phase(state: u64) -> u64 {
    state >> PHASE_SHIFT & 3
}

/// What the peer may do with lent memory (M3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// RDMA read.
    Read = 1,
    /// RDMA write.
    Write = 2,
}

/// The peer is writing to the memory at this moment: it cannot be had back yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BeingWritten;

/// See the module. Zeroed memory is a valid start: nothing is lent.
#[repr(C)]
pub(crate) struct MemoryRegistration {
    /// Number, phase, and the bytes read or written so far: the word that decides.
    pub(super) state: AtomicU64,
    pub(super) address: AtomicU64,
    pub(super) length: AtomicU32,
    /// The [`Right`] it is lent with.
    right: AtomicU32,
    process: AtomicU32,
    /// The peer's thread that writes, or wrote last.
    writer: AtomicU32,
    /// That an access reaches the owner's process.
    proof: ProofFields,
    /// Number of what was lent before this, and the bytes that went of it.
    pub(super) before: AtomicU64,
}

impl MemoryRegistration {
    /// Lends `length` bytes of this process's memory to the peer as number `key`, for `right` alone
    /// (M3). Owner; nothing may be lent here at the moment.
    pub(crate) fn register(&self, key: u32, address: u64, length: u32, right: Right) {
        self.proof.offer();
        self.process.store(process::pid(), Ordering::Relaxed);
        self.address.store(address, Ordering::Relaxed);
        self.length.store(length, Ordering::Relaxed);
        self.right.store(right as u32, Ordering::Relaxed);
        let before = self.state.load(Ordering::Relaxed) & !(3 << PHASE_SHIFT);
        self.before.store(before, Ordering::Relaxed);
        self.state.store(pack(key, OPEN, 0), Ordering::Release);
    }

    /// Takes the memory back: afterwards the peer neither reads from it with effect nor writes to it.
    /// Gives the bytes that it read or wrote, of the `lent` ones, whatever the peer says. Owner.
    ///
    /// # Errors
    /// [`BeingWritten`]: ask again; the peer is writing at this moment.
    pub(crate) fn deregister(&self, lent: u32) -> Result<u32, BeingWritten> {
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            match phase(state) {
                WRITING => return Err(BeingWritten),
                OPEN => {}
                _ => return Ok(((state & BYTES) as u32).min(lent)),
            }
            let closed = state & !(3 << PHASE_SHIFT);
            match self.state.compare_exchange_weak(
                state,
                closed,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Ok(((state & BYTES) as u32).min(lent)),
                Err(now) => state = now,
            }
        }
    }

    /// Bytes that the peer read or wrote so far. Owner. Acquire.
    #[inline]
    pub(crate) fn done(&self) -> u32 {
        (self.state.load(Ordering::Acquire) & BYTES) as u32
    }

    /// Bytes that went of number `key`, lent or taken back, of the `lent` ones; `None`: more than one other
    /// has followed. Either end, for what a process did that died.
    pub(crate) fn done_of(&self, key: u32, lent: u32) -> Option<u32> {
        let words = [self.state.load(Ordering::Acquire), self.before.load(Ordering::Relaxed)];
        let found = words.into_iter().find(|word| (word >> 32) as u32 == key);
        found.map(|word| ((word & BYTES) as u32).min(lent))
    }

    /// Calls `tell` for each field.
    #[cfg(test)]
    pub(super) fn each_field(&self, tell: super::field_tests::Tell<'_>) {
        super::field_tests::tell!(self, tell, MemoryRegistration {
            state, address, length, right, process, writer, before; proof
        });
        proof.each_field(tell);
    }

    /// True if the peer may access the memory at this moment.
    #[cfg(test)]
    pub(crate) fn is_lent(&self) -> bool {
        phase(self.state.load(Ordering::Acquire)) != CLOSED
    }

    /// The process that lent the memory, as it says; to be read once and given to the access.
    pub(crate) fn process(&self) -> u32 {
        self.process.load(Ordering::Relaxed)
    }

    /// Checks that number `key` is lent for `right` with `bytes` used so far, and `length` in all.
    pub(super) fn check(
        &self,
        key: u32,
        bytes: u64,
        length: u32,
        right: Right,
    ) -> Result<u64, Refusal> {
        let state = self.state.load(Ordering::Acquire);
        let fits = self.length.load(Ordering::Relaxed) == length && bytes <= length.into();
        let allowed = self.right.load(Ordering::Relaxed) == right as u32;
        if state == pack(key, OPEN, bytes) && fits && allowed {
            Ok(state)
        } else {
            Err(Refusal::NotRegistered)
        }
    }

    /// RDMA read (S4): copies to `to` the next bytes of what the peer lent. `what` is the number that the peer lent the
    /// memory as, the length of the memory, and how many of these bytes were read before. The peer's process must
    /// still live once the bytes are here: `lives` tells. `commit`: the bytes count as read. Peer.
    ///
    /// # Errors
    /// [`Refusal`]; nothing counts as read then, though bytes at `to` may have changed.
    ///
    /// # Safety
    /// The bytes at `to` may be written.
    pub(crate) unsafe fn read(
        &self,
        process: u32,
        what: (u32, u32, u32),
        to: *mut [u8],
        lives: impl FnOnce() -> bool,
        commit: bool,
    ) -> Result<usize, Refusal> {
        let (key, length, taken) = what;
        let state = self.check(key, taken.into(), length, Right::Read)?;
        let wanted = to.len().min((length - taken) as usize);
        let address = self.address.load(Ordering::Relaxed).wrapping_add(taken.into());
        // SAFETY: `to` may be written by the caller's promise.
        let n = unsafe { self.proof.read(process, address, to.cast(), wanted) }?;
        if n == 0 {
            return Err(Refusal::Fault);
        }
        // The owner may end as soon as the bytes count as read. So this end asks before that.
        if !lives() {
            return Err(Refusal::Stranger);
        }
        if commit {
            let read = state + n as u64;
            // Taken back meanwhile: what lies at `to` may be anything.
            self.state
                .compare_exchange(state, read, Ordering::AcqRel, Ordering::Relaxed)
                .map_err(|_| Refusal::NotRegistered)?;
        } else if self.state.load(Ordering::Acquire) != state {
            return Err(Refusal::NotRegistered);
        }
        Ok(n)
    }

    /// RDMA write (S5): `length` bytes from `from` into what the peer lent as number `key`, of
    /// `room` bytes in all. It is lent no more afterwards. Peer.
    ///
    /// # Errors
    /// [`Refusal`]; nothing counts as written then.
    ///
    /// # Safety
    /// `length` bytes at `from` are mapped, or the kernel says EFAULT.
    pub(crate) unsafe fn write(
        &self,
        process: u32,
        key: u32,
        room: u32,
        from: *const u8,
        length: usize,
    ) -> Result<usize, Refusal> {
        let state = self.check(key, 0, room, Right::Write)?;
        if length > room as usize {
            return Err(Refusal::NotRegistered);
        }
        let address = self.address.load(Ordering::Relaxed);
        self.proof.check(process)?;
        self.writer.store(process::tid(), Ordering::Relaxed);
        // From here to the end the owner does not take it back.
        self.state
            .compare_exchange(state, pack(key, WRITING, 0), Ordering::AcqRel, Ordering::Relaxed)
            .map_err(|_| Refusal::NotRegistered)?;
        // SAFETY: the owner lent these bytes to be written now, and waits while we are writing.
        let written = unsafe { ProofFields::write(process, address, from, length) };
        let bytes = *written.as_ref().unwrap_or(&0);
        self.state.store(pack(key, CLOSED, bytes as u64), Ordering::Release);
        match written {
            Ok(0) => Err(Refusal::Fault),
            Ok(n) => Ok(n),
            Err(refusal) => Err(refusal),
        }
    }

    /// Ends a write whose writer died in the middle. The owner calls this.
    pub(crate) fn end_write_of_the_dead(&self) {
        let writer = self.writer.load(Ordering::Relaxed);
        if !process::lives(writer) {
            self.end_write_of(writer);
        }
    }

    /// Ends a write in whose middle this thread stopped for good. It counts as none. Either end calls this.
    pub(crate) fn end_write_of(&self, writer: u32) {
        if self.writer.load(Ordering::Relaxed) != writer {
            return;
        }
        let state = self.state.load(Ordering::Relaxed);
        if phase(state) == WRITING {
            self.state.store(pack((state >> 32) as u32, CLOSED, 0), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The proof's address must stay valid, so a registration is not moved after it lent something.
    fn nothing_lent() -> MemoryRegistration {
        // SAFETY: zeroed memory is a valid start.
        unsafe { std::mem::zeroed() }
    }

    fn lend(registration: &MemoryRegistration, memory: &mut [u8], key: u32, right: Right) {
        registration.register(key, memory.as_mut_ptr() as u64, memory.len() as u32, right);
    }

    fn read(
        r: &MemoryRegistration,
        key: u32,
        length: u32,
        taken: u32,
        to: &mut [u8],
    ) -> Result<usize, Refusal> {
        // SAFETY: the slice may be written.
        unsafe { r.read(r.process(), (key, length, taken), to, || true, true) }
    }

    fn write(r: &MemoryRegistration, key: u32, room: u32, from: &[u8]) -> Result<usize, Refusal> {
        // SAFETY: the slice is mapped.
        unsafe { r.write(r.process(), key, room, from.as_ptr(), from.len()) }
    }

    #[test]
    fn m2_a_read_gets_what_was_lent_piece_by_piece() {
        let mut memory: Vec<u8> = (0..100).collect();
        let r = nothing_lent();
        lend(&r, &mut memory, 7, Right::Read);
        let mut to = [0; 60];
        assert_eq!(read(&r, 7, 100, 0, &mut to), Ok(60));
        assert_eq!(to[..], memory[..60]);
        assert_eq!(read(&r, 7, 100, 60, &mut to), Ok(40));
        assert_eq!(to[..40], memory[60..]);
        assert_eq!(r.done(), 100);
        assert_eq!(r.deregister(100), Ok(100));
    }

    #[test]
    fn m2_what_is_not_lent_is_refused() {
        let mut memory = vec![1; 100];
        let r = nothing_lent();
        lend(&r, &mut memory, 7, Right::Read);
        let mut to = [0; 8];
        let refused = Err(Refusal::NotRegistered);
        assert_eq!(read(&r, 6, 100, 0, &mut to), refused, "another number");
        assert_eq!(read(&r, 7, 101, 0, &mut to), refused, "another length");
        assert_eq!(read(&r, 7, 100, 8, &mut to), refused, "out of order");
        assert_eq!(read(&r, 7, 100, 101, &mut to), refused, "out of range");
        assert_eq!(r.deregister(100), Ok(0));
        assert_eq!(read(&r, 7, 100, 0, &mut to), refused, "taken back");
        assert_eq!(write(&r, 7, 100, &to), refused, "taken back");
        lend(&r, &mut memory, 8, Right::Read);
        assert_eq!(read(&r, 7, 100, 0, &mut to), refused, "another epoch");
        assert_eq!(to, [0; 8]);
    }

    #[test]
    fn m3_a_right_is_good_for_nothing_else() {
        let mut memory = vec![3; 10];
        let r = nothing_lent();
        lend(&r, &mut memory, 1, Right::Read);
        assert_eq!(write(&r, 1, 10, &[9; 4]), Err(Refusal::NotRegistered), "read-only");
        let mut to = [0; 4];
        assert_eq!(read(&r, 1, 10, 0, &mut to), Ok(4));
        assert_eq!(r.deregister(10), Ok(4));
        lend(&r, &mut memory, 2, Right::Write);
        let mut to = [0; 4];
        assert_eq!(read(&r, 2, 10, 0, &mut to), Err(Refusal::NotRegistered), "write-only");
        assert_eq!((to, &memory[..]), ([0; 4], &[3; 10][..]));
        assert_eq!(write(&r, 2, 10, &[9; 4]), Ok(4));
    }

    #[test]
    fn a_write_happens_once_and_only_within_the_buffer() {
        let mut memory = vec![0; 10];
        let r = nothing_lent();
        lend(&r, &mut memory, 1, Right::Write);
        assert_eq!(write(&r, 1, 10, &[9; 11]), Err(Refusal::NotRegistered));
        assert_eq!(write(&r, 1, 10, &[9; 4]), Ok(4));
        assert_eq!(write(&r, 1, 10, &[8; 4]), Err(Refusal::NotRegistered));
        assert_eq!(r.deregister(100), Ok(4));
        assert_eq!(memory, [9, 9, 9, 9, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn memory_of_another_process_than_promised_is_not_used() {
        let mut memory = vec![5; 10];
        let r = nothing_lent();
        lend(&r, &mut memory, 1, Right::Read);
        let elsewhere = [0u64; 2];
        r.proof.misdirect(&elsewhere);
        let mut to = [0; 10];
        assert_eq!(read(&r, 1, 10, 0, &mut to), Err(Refusal::Stranger));
        assert_eq!(r.done(), 0);
        lend(&r, &mut memory, 2, Right::Write);
        r.proof.misdirect(&elsewhere);
        assert_eq!(write(&r, 2, 10, &[1; 3]), Err(Refusal::Stranger));
        assert_eq!(memory, [5; 10]);
    }

    #[test]
    fn what_an_ended_process_lent_does_not_count_as_read() {
        let mut memory = vec![5; 10];
        let r = nothing_lent();
        lend(&r, &mut memory, 1, Right::Read);
        let mut to = [0; 10];
        // A sender ends as soon as its bytes count as read.
        let ends_after_the_read = || {
            assert_eq!(r.done(), 0);
            false
        };
        // SAFETY: the array may be written.
        let read =
            unsafe { r.read(r.process(), (1, 10, 0), &raw mut to, ends_after_the_read, true) };
        assert_eq!((read, r.done()), (Err(Refusal::Stranger), 0));
    }

    #[test]
    fn an_owner_believes_no_more_than_it_lent() {
        let mut memory = vec![0; 10];
        let r = nothing_lent();
        lend(&r, &mut memory, 1, Right::Read);
        r.state.store(pack(1, CLOSED, BYTES), Ordering::Relaxed);
        assert_eq!(r.deregister(10), Ok(10));
        r.state.store(pack(1, OPEN, BYTES), Ordering::Relaxed);
        assert_eq!(r.deregister(10), Ok(10));
    }

    #[test]
    fn what_a_dead_process_did_is_found_under_its_number_alone() {
        let mut memory = vec![0; 10];
        let r = nothing_lent();
        lend(&r, &mut memory, 3, Right::Read);
        let mut to = [0; 6];
        assert_eq!(read(&r, 3, 10, 0, &mut to), Ok(6));
        assert_eq!(r.done_of(3, 10), Some(6));
        assert_eq!(r.deregister(10), Ok(6));
        assert_eq!(r.done_of(3, 4), Some(4));
        assert_eq!(r.done_of(4, 10), None);
        lend(&r, &mut memory, 4, Right::Read);
        assert_eq!((r.done_of(3, 10), r.done_of(4, 10)), (Some(6), Some(0)));
        lend(&r, &mut memory, 5, Right::Read);
        assert_eq!((r.done_of(3, 10), r.done_of(4, 10)), (None, Some(0)));
    }

    #[test]
    fn missing_memory_is_a_fault() {
        let r = nothing_lent();
        r.register(1, 4096, 10, Right::Read);
        let mut to = [0; 10];
        assert_eq!(read(&r, 1, 10, 0, &mut to), Err(Refusal::Fault));
    }
}
