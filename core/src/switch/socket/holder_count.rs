//! A count of the processes that have a socket on TCP, in memory that forks share.
//! [`setup`](crate::switch::setup::holders) knows which processes it counts, and why.

use crate::sys::{file, PAGE};
use std::ptr::{from_ref, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::Relaxed, Ordering::SeqCst};

/// Processes that can be named of one socket.
const NAMED: usize = 7;

/// How many processes have a socket, and which of them are named by their ids: of those it can be told that they are gone.
pub(in crate::switch) struct Holders {
    pub(in crate::switch) count: AtomicU32,
    pub(in crate::switch) named: [AtomicU32; NAMED],
}

/// Bytes of a piece of memory. Only pages that are used take any, but each piece is a mapping for as long as the process lives.
const PIECE_SIZE: usize = 16 * PAGE;

/// Counts in a piece; the first one's says how many are in use.
const COUNTS: u32 = (PIECE_SIZE / size_of::<Holders>()) as u32;

/// Most pieces that a process makes. A count is never used again, because a process that is not counted may still have
/// it. A client that connects to a server that forks for each connection has the server make one each time.
const MOST_PIECES: u32 = 1024;

/// Where the next count is taken from. A fork child goes on with its parent's piece, whose first word they share.
struct Pieces {
    current: AtomicPtr<Holders>,
    made: AtomicU32,
}

static PIECES: Pieces = Pieces::none();

/// The count of a socket, if it has one. Counts are never unmapped.
pub(in crate::switch) struct HolderCount(AtomicPtr<Holders>);

impl HolderCount {
    pub(super) fn none() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    /// True if the socket has one.
    #[inline]
    pub(in crate::switch) fn is_there(&self) -> bool {
        !self.0.load(Relaxed).is_null()
    }

    /// The count.
    pub(in crate::switch) fn get(&self) -> Option<&'static Holders> {
        // SAFETY: it is in a piece, which is never unmapped.
        unsafe { self.0.load(Relaxed).as_ref() }
    }

    /// Begins to count; `None` without memory.
    pub(in crate::switch) fn begin_with(&self, holders: u32) -> Option<&'static Holders> {
        let begun = PIECES.allocate(MOST_PIECES)?;
        begun.count.store(holders, SeqCst);
        self.0.store(from_ref(begun).cast_mut(), Relaxed);
        Some(begun)
    }

    /// The count, which is not the socket's from now on.
    pub(in crate::switch) fn take(&self) -> Option<&'static Holders> {
        // SAFETY: as in `get`.
        unsafe { self.0.swap(null_mut(), Relaxed).as_ref() }
    }

    /// The socket has none.
    pub(super) fn forget(&self) {
        self.0.store(null_mut(), Relaxed);
    }
}

impl Pieces {
    const fn none() -> Self {
        Self { current: AtomicPtr::new(null_mut()), made: AtomicU32::new(0) }
    }

    /// A new count; `None` without memory, and after as many as there may be.
    fn allocate(&self, most: u32) -> Option<&'static Holders> {
        loop {
            let piece = self.current.load(Relaxed);
            if !piece.is_null() {
                // SAFETY: a piece of counts, which is never unmapped.
                let first = unsafe { &(*piece).count };
                // Once it is full the word counts no further.
                let next = first
                    .fetch_update(SeqCst, SeqCst, |used| (used + 1 < COUNTS).then_some(used + 1));
                if let Ok(used) = next {
                    // SAFETY: within the piece.
                    return Some(unsafe { &*piece.add(used as usize + 1) });
                }
            }
            if self.made.load(Relaxed) >= most {
                return None;
            }
            self.current.store(file::map_shared(None, PIECE_SIZE).ok()?.cast(), Relaxed);
            self.made.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_made_up_to_a_limit() {
        const MOST: u32 = 3;
        let pieces = Pieces::none();
        let all: std::collections::HashSet<_> =
            std::iter::from_fn(|| pieces.allocate(MOST)).map(std::ptr::from_ref).collect();
        assert_eq!(all.len(), (MOST * (COUNTS - 1)) as usize);
        assert!(pieces.allocate(MOST).is_none());
        assert!(pieces.allocate(MOST + 1).is_some());
    }
}
