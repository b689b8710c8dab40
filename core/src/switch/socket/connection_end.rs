//! A socket's end of a connection on the SAN: given to it, used, and taken away again.

use crate::fabric::{self, Link};
use crate::provider::shm::Segment;
use crate::switch::endpoint::departure::Departure;
use crate::switch::endpoint::memory::Memory;
use crate::switch::endpoint::Endpoint;
use crate::switch::socket::new_end::NewEnd;
use crate::switch::socket::structure::Structure;
use crate::switch::socket::Socket;
use crate::switch::spin;
use crate::switch::stream::Stream;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Whether spinning pays off for this process's connections, for each [`Role`](crate::provider::shm::Role).
static LEARNT: [spin::History; 2] = [const { spin::History::hopeful() }; 2];

impl Socket {
    /// Gives the socket its end of a connection; false if it has one already. Phase SAN may follow.
    pub(in crate::switch) fn give_end(&self, _: &mut Structure, end: NewEnd) -> bool {
        if self.has_end() {
            return false;
        }
        let (segment, memory, link) = end.into_parts();
        // SAFETY: nobody else has them, and ends are given under the structure lock alone. The part of the endpoint
        // that the link uses is there until the link is closed: `detach` closes it with that.
        unsafe {
            if let Some(link) = &link {
                link.attach(memory.controller());
            }
            self.attach(segment, memory, link);
        }
        true
    }

    /// Takes away the end of a connection that came to nothing, or whose session is over. False if another call may be
    /// using it, or a peer on another host has not heard all. The phase is any but SAN. The caller has pinned the
    /// socket once, and keeps no stream of it.
    pub(in crate::switch) fn clear_end(&self, structure: &mut Structure) -> bool {
        if !self.has_end() {
            return true;
        }
        let link = self.stream().and_then(|stream| stream.link());
        if link.is_some_and(Link::is_needed) {
            return false;
        }
        let alone = self.claim(structure);
        alone.map(|alone| alone.take_away_end()).is_some()
    }

    /// Gives the socket its end of a connection, to be discarded and unmapped with it. Phase SAN may
    /// follow.
    ///
    /// # Safety
    /// `memory` is of that session and no other socket's, and this one has no end.
    pub(crate) unsafe fn attach(&self, segment: Segment, memory: Memory, link: Option<Arc<Link>>) {
        // SAFETY: the caller's promise.
        let role = unsafe { (*memory.at).role() };
        self.spin.begin_with(&LEARNT[role as usize]);
        self.role.store(role as u32 + 1, Ordering::Relaxed);
        // SAFETY: the phase is not SAN yet, so no thread reads it.
        unsafe { *self.segment.get() = Some(Box::new(segment)) };
        self.left.store(false, Ordering::Relaxed);
        let link = link.map_or(std::ptr::null(), Arc::into_raw);
        self.link.store(link.cast_mut(), Ordering::Relaxed);
        self.endpoint.store(memory.at, Ordering::Release);
    }

    /// This process holds its end no longer. The second time it says that others do.
    pub(in crate::switch) fn stop_holding<'a>(&self, endpoint: &'a Endpoint) -> Departure<'a> {
        endpoint.depart(self.left.swap(true, Ordering::SeqCst))
    }

    /// Takes the end of a connection away again before the phase ever was SAN, or when no other
    /// thread can be using it.
    ///
    /// # Safety
    /// No other thread uses the stream of this socket.
    pub(super) unsafe fn detach(&self) {
        let endpoint = self.endpoint.swap(std::ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe {
            let memory = Memory { at: endpoint };
            let segment = (*self.segment.get()).take();
            let link = self.link.swap(std::ptr::null_mut(), Ordering::Relaxed);
            // One that comes no more may have come.
            let is_own = |link: &&Link| link.withdraw_wish() || !link.is_inherited();
            if let Some(link) = link.as_ref().filter(is_own) {
                // It unmaps the segment, when it ends.
                let link = Arc::from_raw(link);
                link.close((!endpoint.is_null()).then(|| Shared::boxed(memory)));
                return;
            }
            if !endpoint.is_null() {
                memory.discard();
            }
            if let Some(segment) = segment {
                segment.unmap();
            }
        }
    }

    /// True if it has an end of a connection, be it of a session that is over.
    pub(in crate::switch) fn has_end(&self) -> bool {
        !self.endpoint.load(Ordering::Relaxed).is_null()
    }

    /// True if fork relatives have its end, too.
    pub(in crate::switch) fn shares_end(&self) -> bool {
        self.stream().is_some_and(|stream| stream.endpoint.is_shared())
    }

    /// Spins for something that is to happen on the connection, as long as that pays, and at most `budget` (ns).
    #[inline]
    pub(in crate::switch) fn spin(
        &self,
        stream: &Stream,
        budget: u64,
        ready: impl FnMut() -> bool,
    ) -> bool {
        let others = &LEARNT[stream.endpoint.role() as usize];
        spin::spin_among(&self.spin, others, budget, ready)
    }

    /// Our end, of a connection that is on the SAN, or was.
    #[inline]
    pub(crate) fn stream(&self) -> Option<Stream<'_>> {
        // SAFETY: set before the phase that lets callers get here, unmapped after the last pin.
        let endpoint = unsafe { self.endpoint.load(Ordering::Acquire).as_ref() }?;
        // SAFETY: written before `endpoint`.
        let segment = unsafe { (*self.segment.get()).as_deref() }?;
        // SAFETY: as the endpoint.
        let link = unsafe { self.link.load(Ordering::Relaxed).as_ref() };
        Some(Stream::new(endpoint, segment, self.statistics(), link).over(self.anchor()))
    }
}

/// An endpoint that fork relatives may go on using over this process's link.
struct Shared(Memory);

// SAFETY: it is only a name of shared memory.
unsafe impl Send for Shared {}

impl Shared {
    fn boxed(memory: Memory) -> Box<dyn fabric::Users> {
        Box::new(Shared(memory))
    }
}

impl fabric::Users for Shared {
    fn are_there(&self) -> bool {
        // SAFETY: mapped until it is dropped.
        unsafe { (*self.0.at).is_used() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: this process does not use it otherwise any more.
        unsafe { self.0.discard() }
    }
}
