//! Where sockets come from, and go when nobody uses them any more. Their memory is only ever used for sockets again. A
//! look-up pins a socket without a lock, and then checks that it is still the wanted one. The pool knows nothing of
//! descriptors.

use super::negotiation::Negotiation;
use super::structure::{Guarded, Structure};
use super::{phase, spare, Socket, REGISTRY, UNUSED};
use crate::reason::Reason;
use crate::sys::{file, Fd};
use smallvec::SmallVec;
use std::sync::atomic::Ordering;
use std::sync::OnceLock;

/// Sockets that one piece of memory has.
const CHUNK: usize = 64;
/// Sockets to use again, where the [`spare`] ones had no room.
static FREE: Guarded<Option<&'static Socket>> = Guarded::new(None);

/// Ends the connection of a socket after the last call on it, which had outlasted its last descriptor.
pub(in crate::switch) static END_AFTER_LAST_CALL: OnceLock<fn(&Socket)> = OnceLock::new();

impl Socket {
    /// True if another call may be under way: a thread that was thrown out of one has left its pin as well. The caller has pinned
    /// it once, and has the pin of a descriptor.
    pub(in crate::switch) fn may_be_in_other_call(&self) -> bool {
        self.pins.load(Ordering::SeqCst) > 2
    }

    /// A fresh socket with one descriptor, not yet in the table. `None` without memory.
    pub(crate) fn allocate(fd: Fd) -> Option<&'static Socket> {
        let socket = spare::take().or_else(|| take_from_list(&mut Structure::lock()))?;
        Some(socket.begin(fd))
    }

    fn begin(&'static self, fd: Fd) -> &'static Socket {
        let socket = self;
        socket.descriptors.store(1, Ordering::Relaxed);
        socket.anchor.store(fd, Ordering::Relaxed);
        socket.has_options.store(false, Ordering::Relaxed);
        socket.is_awaited.store(false, Ordering::Relaxed);
        socket.traffic.begin();
        socket.role.store(0, Ordering::Relaxed);
        socket.holders.forget();
        socket.statistics.store(std::ptr::null_mut(), Ordering::Relaxed);
        socket.kernel_registration.begin_anew();
        socket.is_looked_at.store(false, Ordering::Relaxed);
        socket.negotiates.store(false, Ordering::Relaxed);
        socket.first_segment.begin_anew();
        socket.set_reason(Reason::NotConnected);
        socket.phase.store(phase::FRESH, Ordering::Relaxed);
        // A look-up that lost its race may have it pinned as well.
        socket.pins.fetch_sub(UNUSED - 1, Ordering::SeqCst);
        socket
    }

    /// Keeps the socket from being recycled.
    #[inline]
    pub(in crate::switch) fn pin(&self) {
        self.pins.fetch_add(1, Ordering::SeqCst);
    }

    /// The same, unless nothing uses the socket any more.
    pub(in crate::switch) fn pin_if_used(&'static self) -> bool {
        let is_used = self.pins.fetch_add(1, Ordering::SeqCst) & UNUSED == 0;
        if !is_used {
            self.unpin();
        }
        is_used
    }

    #[inline]
    pub(in crate::switch) fn unpin(&'static self) {
        if self.pins.fetch_sub(1, Ordering::SeqCst) == 1 && self.claim_unpinned() {
            self.recycle();
        }
    }

    /// Gives two pins back.
    pub(in crate::switch) fn unpin_twice(&'static self) {
        if self.pins.fetch_sub(2, Ordering::SeqCst) == 2 && self.claim_unpinned() {
            self.recycle();
        }
    }

    /// As [`unpin`](Self::unpin), called by a thread that has the structure lock.
    pub(in crate::switch) fn unpin_within(&'static self, structure: &mut Structure) {
        if self.pins.fetch_sub(1, Ordering::SeqCst) == 1 && self.claim_unpinned() {
            self.recycle_within(structure);
        }
    }

    /// Claims a socket without pins for the caller, which recycles it. False if another caller did. A look-up that lost
    /// its race pins for a moment, so several callers may find none.
    fn claim_unpinned(&self) -> bool {
        self.pins.compare_exchange(0, UNUSED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// True if it never was more than a TCP socket, and the structure knows nothing of it. Stays so while it is pinned,
    /// until it [is looked at](Self::is_looked_at), or becomes a listener.
    pub(in crate::switch) fn is_plain(&self) -> bool {
        matches!(self.phase(), phase::FRESH | phase::TCP | phase::NATIVE)
            && !self.is_looked_at.load(Ordering::SeqCst)
            && self.endpoint.load(Ordering::Relaxed).is_null()
            && !self.is_published()
            && self.watch_count.load(Ordering::Relaxed) == 0
    }

    fn recycle(&'static self) {
        if self.is_closing.swap(false, Ordering::SeqCst) {
            if let Some(end) = END_AFTER_LAST_CALL.get() {
                end(self);
            }
        }
        if self.is_plain() {
            self.phase.store(phase::FREE, Ordering::Relaxed);
            if !spare::give(self) {
                put_on_list(&mut Structure::lock(), self);
            }
            return;
        }
        self.recycle_within(&mut Structure::lock());
    }

    fn recycle_within(&'static self, structure: &mut Structure) {
        self.set_phase(phase::FREE);
        let negotiation = self.guarded(structure).negotiation.take();
        if let Some(Negotiation::Agreed(agreed)) = negotiation.map(|one| *one) {
            agreed.end();
        }
        // SAFETY: no pin is left, so no thread uses the stream, and no thread gets at it any more.
        unsafe { self.detach() };
        let statistics = self.statistics.swap(std::ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: statistics slots are never unmapped.
        let slot = unsafe { statistics.as_ref() };
        if let (Some(slot), Some(registry)) = (slot, &*REGISTRY.get(structure)) {
            registry.release(slot);
        }
        let guarded = self.guarded(structure);
        guarded.watches = SmallVec::new();
        self.watch_count.store(0, Ordering::Relaxed);
        if !spare::give(self) {
            put_on_list(structure, self);
        }
    }
}

fn allocate_chunk(structure: &mut Structure) -> Option<&'static Socket> {
    let at = file::map_private(CHUNK * std::mem::size_of::<Socket>()).ok()?.cast::<Socket>();
    let mut sockets = (0..CHUNK).map(|i| {
        // SAFETY: fresh memory, large enough and page aligned; every field is written.
        unsafe {
            let one = at.add(i);
            one.write(Socket::blank());
            &*one
        }
    });
    let first = sockets.next();
    // The next to be taken lie beside it: a fork child that changes both gets one page.
    for socket in sockets {
        if !spare::give(socket) {
            put_on_list(structure, socket);
        }
    }
    first
}

fn put_on_list(structure: &mut Structure, socket: &'static Socket) {
    let next = FREE.get(structure).replace(socket);
    socket.guarded(structure).next_free = next;
}

fn next_on_list(structure: &mut Structure) -> Option<&'static Socket> {
    let socket = FREE.get(structure).take()?;
    let next = socket.guarded(structure).next_free.take();
    *FREE.get(structure) = next;
    Some(socket)
}

/// Takes one from the list, or from new memory, and makes some more for the next callers.
#[cold]
fn take_from_list(structure: &mut Structure) -> Option<&'static Socket> {
    let Some(first) = next_on_list(structure) else { return allocate_chunk(structure) };
    for _ in 1..CHUNK {
        match next_on_list(structure) {
            Some(socket) if !spare::give(socket) => {
                put_on_list(structure, socket);
                break;
            }
            Some(_) => {}
            None => break,
        }
    }
    Some(first)
}
