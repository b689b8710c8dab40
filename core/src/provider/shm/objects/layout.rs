//! What lies in the memory of a connection, and its mapping.
//!
//! Zeroed memory is a valid start. One end writes each word, except where the word's comment says otherwise. A hostile
//! peer can write every word.

use super::super::proof::ProofFields;
use super::super::side::Line;
use super::ring::{PairRing, RING};
use super::window::{Window, WINDOWS};
use crate::provider::interface::{Error, ProviderResult};
use crate::provider::software::inherited;
use crate::sys::{file, sealed, Fd, PAGE};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The number of receives that one queue pair can post. The peer sees how large each of them is.
pub(super) const RECEIVES: usize = 256;

/// To be rung for messages.
pub(super) const MESSAGES: u32 = 1;
/// To be rung when messages were taken, so that sends are over and there is room for more, or buffers for them
/// were posted.
pub(super) const ACKNOWLEDGEMENTS: u32 = 2;

/// The queue pair ended.
pub(super) const ENDED: u32 = 1;
/// It ended because the next message was too large for its buffer.
pub(super) const OVERFLOW: u32 = 2;

/// Two ends, each writing its own lines.
#[repr(C)]
struct Head {
    ends: [EndWords; 2],
}

/// What one end publishes to the other.
#[repr(C, align(64))]
pub(super) struct EndWords {
    pub(super) sending: Line<SenderWords>,
    pub(super) receiving: Line<ReceiverWords>,
    pub(super) sleeping: Line<Sleeping>,
    /// Where its process is, for RDMA.
    pub(super) proof: Line<ProofFields>,
    /// Bytes of the receives posted on its own receive queue: of number `n` at `n` modulo their count.
    pub(super) capacities: [AtomicU32; RECEIVES],
    /// Memory that the peer can reach (M2). The peer writes here too.
    pub(super) windows: [Window; WINDOWS],
}

/// By the sender of a direction.
#[repr(C)]
pub(super) struct SenderWords {
    /// Bytes ever put into the ring. Release; read with acquire.
    pub(super) published: AtomicU64,
}

/// By its receiver.
#[repr(C)]
pub(super) struct ReceiverWords {
    /// Bytes ever taken out of the ring. Release; read with acquire.
    pub(super) consumed: AtomicU64,
    /// Receives ever posted on the queue pair's own receive queue.
    pub(super) posted: AtomicU64,
}

/// Written seldom, read by the peer with each message.
#[repr(C)]
pub(super) struct Sleeping {
    /// [`MESSAGES`] and [`ACKNOWLEDGEMENTS`]: what the peer is to ring this end for. The peer sets it to zero when it
    /// rings.
    pub(super) armed: AtomicU32,
    /// Not zero once its queue pair has ended.
    pub(super) ended: AtomicU32,
    /// Not zero if this end can access the peer's memory.
    pub(super) reaches: AtomicU32,
}

const RINGS: usize = size_of::<Head>().next_multiple_of(PAGE);
/// Bytes of a connection's memory. A page that nobody touches costs nothing.
const TOTAL: usize = RINGS + 2 * RING;

/// A connection's memory, mapped. Fork children do not have it.
pub(super) struct Mapping {
    at: *mut u8,
    /// The process that mapped it.
    generation: u32,
}

// SAFETY: shared memory that only atomics and copies through raw pointers touch.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// New memory, and the descriptor of it, which is the caller's to close.
    pub(super) fn create() -> ProviderResult<(Self, Fd)> {
        let refused = |_| Error::InsufficientResources;
        let fd = sealed::create(c"sanshim-queue-pair", TOTAL).map_err(refused)?;
        Self::map(fd).map(|mapping| (mapping, fd)).inspect_err(|_| file::close(fd))
    }

    fn map(fd: Fd) -> ProviderResult<Self> {
        let generation = inherited::generation();
        let mapped = file::map_shared(Some(fd), TOTAL);
        let at = mapped.map_err(|_| Error::InsufficientResources)?;
        // SAFETY: mapped just now; a child leaves its parent's objects alone.
        unsafe { file::keep_from_children(at, TOTAL) };
        Ok(Mapping { at, generation })
    }

    /// The peer's. The descriptor stays the caller's.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] if it is not memory of this very size, sealed.
    pub(super) fn of(fd: Fd) -> ProviderResult<Self> {
        // The memory is sealed: nobody can shrink it under the mapping.
        if !matches!(sealed::size_of(fd), Ok(Some(size)) if size == TOTAL as u64) {
            return Err(Error::InvalidParameter);
        }
        Self::map(fd)
    }

    /// What an end publishes; the connector's is number 0.
    #[inline]
    pub(super) fn end(&self, number: usize) -> &EndWords {
        // SAFETY: mapped, aligned to a page; for all that lies there any bytes are valid, and it is
        // atomic. The index is checked.
        unsafe { &(*self.at.cast::<Head>()).ends[number] }
    }

    /// The ring of what an end sends.
    #[inline]
    pub(super) fn ring(&self, number: usize) -> PairRing {
        debug_assert!(number < 2);
        // SAFETY: within the mapping, which outlives its users, and a page's start.
        unsafe { PairRing::new(self.at.add(RINGS + (number & 1) * RING)) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a child there is nothing, or something of its own.
        if self.generation == inherited::generation() {
            // SAFETY: every user of the mapping held this object.
            unsafe { file::unmap(self.at, TOTAL) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn both_mappings_are_one_memory() {
        let (a, fd) = Mapping::create().unwrap();
        let b = Mapping::of(fd).unwrap();
        file::close(fd);
        a.end(1).sending.0.published.store(7, Relaxed);
        assert_eq!(b.end(1).sending.0.published.load(Relaxed), 7);
        assert_eq!(b.end(0).sending.0.published.load(Relaxed), 0);
        a.ring(1).put_length(RING as u64 - 8, 5);
        assert_eq!(b.ring(1).length(RING as u64 - 8), 5);
    }

    #[test]
    fn other_files_are_refused() {
        let small = sealed::create(c"test", PAGE).unwrap();
        assert_eq!(Mapping::of(small).err(), Some(Error::InvalidParameter));
        file::close(small);
        let doorbell = file::eventfd(0).unwrap();
        assert_eq!(Mapping::of(doorbell).err(), Some(Error::InvalidParameter));
        file::close(doorbell);
    }
}
