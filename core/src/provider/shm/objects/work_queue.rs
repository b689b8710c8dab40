//! Requests of a queue pair that were posted and are not over, in the order of posting.
//!
//! A thread that posts takes a lock that only posting to the same queue takes. The client sees to it that no signal
//! handler posts there while the interrupted thread does. One thread at a time works the requests off, as the engine
//! has it, and waits for no other. Neither thread allocates.

use crate::provider::interface::MemoryPiece;
use crate::provider::interface::{
    Error, Flags, ProviderResult, RemoteAccess, RemoteMemory, RequestKind,
};
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Segments of one request.
pub(super) const SEGMENTS: usize = 4;

/// Segments, at most [`SEGMENTS`].
#[derive(Clone, Copy)]
pub(super) struct List {
    count: usize,
    all: [MemoryPiece; SEGMENTS],
}

impl List {
    pub(super) const EMPTY: List =
        List { count: 0, all: [MemoryPiece { address: 0, length: 0, token: 0 }; SEGMENTS] };

    /// A copy of at most `limit` segments.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] if there are more.
    #[inline]
    pub(super) fn of(segments: &[MemoryPiece], limit: u32) -> ProviderResult<List> {
        if segments.len() > SEGMENTS.min(limit as usize) {
            return Err(Error::InvalidParameter);
        }
        let mut list = List { count: segments.len(), ..Self::EMPTY };
        list.all[..segments.len()].copy_from_slice(segments);
        Ok(list)
    }

    #[inline]
    pub(super) fn segments(&self) -> &[MemoryPiece] {
        &self.all[..self.count]
    }
}

/// A buffer for a message.
#[derive(Clone, Copy)]
pub(super) struct Receive {
    pub(super) request: u64,
    pub(super) into: List,
}

impl Receive {
    pub(super) const NONE: Receive = Receive { request: 0, into: List::EMPTY };
}

/// What a request is to do.
#[derive(Clone, Copy)]
pub(super) enum RequestedWork {
    Send(List),
    /// So many bytes, which were taken when it was posted.
    Inline(usize),
    Read(List, RemoteMemory),
    Write(List, RemoteMemory),
    /// Token, first address and end, access.
    Bind(u32, u64, u64, RemoteAccess),
    /// Token.
    Invalidate(u32),
}

/// How far a request has come. The engine's.
#[derive(Clone, Copy)]
pub(super) enum Stage {
    /// Not begun.
    Waiting,
    /// A message in the ring: its number, its bytes, and where the next one begins.
    Sent { number: u64, length: usize, end: u64 },
    /// Ended, and perhaps others before it have not.
    Over(ProviderResult<()>),
}

/// A request other than a receive.
#[derive(Clone, Copy)]
pub(super) struct PostedRequest {
    pub(super) request: u64,
    pub(super) flags: Flags,
    pub(super) work: RequestedWork,
    pub(super) stage: Stage,
}

impl PostedRequest {
    pub(super) const NONE: PostedRequest = PostedRequest {
        request: 0,
        flags: Flags::NONE,
        work: RequestedWork::Inline(0),
        stage: Stage::Waiting,
    };

    pub(super) fn kind(&self) -> RequestKind {
        match self.work {
            RequestedWork::Send(_) | RequestedWork::Inline(_) => RequestKind::Send,
            RequestedWork::Read(..) => RequestKind::Read,
            RequestedWork::Write(..) => RequestKind::Write,
            RequestedWork::Bind(..) => RequestKind::Bind,
            RequestedWork::Invalidate(_) => RequestKind::Invalidate,
        }
    }
}

/// See the module.
pub(super) struct WorkQueue<T> {
    places: Box<[UnsafeCell<T>]>,
    posting: Mutex<()>,
    /// Requests ever posted.
    posted: AtomicU64,
    /// How many of them are over.
    over: AtomicU64,
}

// SAFETY: the posting thread reaches a place while it is not outstanding and that thread holds `posting`. The one
// engine reaches it while it is outstanding.
unsafe impl<T: Send> Sync for WorkQueue<T> {}

impl<T: Copy> WorkQueue<T> {
    /// For `depth` requests at a time.
    pub(super) fn new(depth: u32, blank: T) -> Self {
        WorkQueue {
            places: (0..depth).map(|_| UnsafeCell::new(blank)).collect(),
            posting: Mutex::new(()),
            posted: AtomicU64::new(0),
            over: AtomicU64::new(0),
        }
    }

    fn place(&self, number: u64) -> usize {
        (number % self.places.len() as u64) as usize
    }

    /// Posts what `make` gives, which is told the place's index, and tells `then` its number, counted from
    /// zero, before another is posted. SeqCst.
    ///
    /// # Errors
    /// [`Error::InsufficientResources`] if it is full, and those of `make`.
    #[inline]
    pub(super) fn post(
        &self,
        make: impl FnOnce(usize) -> ProviderResult<T>,
        then: impl FnOnce(u64),
    ) -> ProviderResult<()> {
        let _one_at_a_time = self.posting.lock().unwrap_or_else(PoisonError::into_inner);
        let number = self.posted.load(Ordering::Relaxed);
        if number - self.over.load(Ordering::Acquire) >= self.places.len() as u64 {
            return Err(Error::InsufficientResources);
        }
        let place = self.place(number);
        let made = make(place)?;
        // SAFETY: not outstanding, so the engine leaves it alone; we hold `posting`.
        unsafe { *self.places[place].get() = made };
        self.posted.store(number + 1, Ordering::SeqCst);
        then(number);
        Ok(())
    }

    /// Numbers of those that are not over. SeqCst.
    #[inline]
    pub(super) fn outstanding(&self) -> Range<u64> {
        // Requests that are over were posted before.
        let over = self.over.load(Ordering::SeqCst);
        over..self.posted.load(Ordering::SeqCst)
    }

    /// One of them, and its place's index.
    ///
    /// # Safety
    /// By the engine, which keeps one result at a time; `number` is outstanding.
    #[allow(clippy::mut_from_ref, reason = "one engine, one result")]
    #[inline]
    pub(super) unsafe fn at(&self, number: u64) -> (&mut T, usize) {
        let place = self.place(number);
        // SAFETY: the place is outstanding, so the posting thread leaves it alone. The rest is the caller's promise.
        (unsafe { &mut *self.places[place].get() }, place)
    }

    /// The first of those outstanding is over. By the engine, which has no result of
    /// [`at`](Self::at) of it any more. Release.
    #[inline]
    pub(super) fn end_first(&self) {
        let over = self.over.load(Ordering::Relaxed);
        self.over.store(over + 1, Ordering::Release);
    }
}

/// Bytes of inline sends, for each place of a work queue.
pub(super) struct InlineBytes {
    bytes: Box<[UnsafeCell<u8>]>,
    size: usize,
}

// SAFETY: as for the place that the bytes are of.
unsafe impl Sync for InlineBytes {}

impl InlineBytes {
    pub(super) fn new(depth: u32, size: u32) -> Self {
        let count = depth as usize * size as usize;
        InlineBytes { bytes: (0..count).map(|_| UnsafeCell::new(0)).collect(), size: size as usize }
    }

    /// Most bytes of one send.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// The bytes of a place: [`size`](Self::size) many. A thread that may reach the place may reach them.
    #[inline]
    pub(super) fn of(&self, place: usize) -> *mut u8 {
        match self.size {
            0 => std::ptr::dangling_mut(),
            size => UnsafeCell::raw_get(self.bytes[place * size..][..size].as_ptr()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_in_the_order_of_posting_and_no_more_than_agreed() {
        let queue = WorkQueue::new(3, 0u32);
        for round in 0..5u32 {
            for i in 0..3 {
                queue.post(|_| Ok(round * 3 + i), |_| ()).unwrap();
            }
            assert_eq!(queue.post(|_| Ok(99), |_| ()), Err(Error::InsufficientResources));
            for number in queue.outstanding() {
                // SAFETY: the only thread; outstanding.
                assert_eq!(*unsafe { queue.at(number) }.0, number as u32);
                queue.end_first();
            }
            assert!(queue.outstanding().is_empty());
        }
        assert_eq!(queue.post(|_| Err(Error::Cancelled), |_| ()), Err(Error::Cancelled));
        assert!(queue.outstanding().is_empty());
    }
}
