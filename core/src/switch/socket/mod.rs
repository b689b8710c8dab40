//! What this process knows of a descriptor: a [`Socket`] with its phase, its end of a connection on the SAN, and the
//! sets that watch it.
//!
//! Threads change the books under the [`structure`] lock, and read them without: [`table`] finds a socket by its
//! descriptor and pins it. Epoll [`set`]s and their registrations are here too. This room makes system calls only for
//! its memory, shadow sets, and a socket's addresses. It decides nothing of a connection, waits for nothing, and moves
//! no bytes. It may call streams and endpoints.

mod alone;
mod connection_end;
pub(in crate::switch) mod holder_count;
mod kernel_registration;
pub(in crate::switch) mod known_segment;
pub(in crate::switch) mod lane;
mod left_behind;
pub(in crate::switch) mod names;
pub(in crate::switch) mod negotiation;
pub(in crate::switch) mod new_end;
pub(in crate::switch) mod phase;
pub(in crate::switch) mod pool;
pub(in crate::switch) mod set;
mod spare;
pub(in crate::switch) mod structure;
pub mod table;
pub(in crate::switch) mod traffic;
pub(in crate::switch) mod tuple;
pub mod unpublished;

use crate::fabric::Link;
use crate::provider::shm::{Role, Segment};
use crate::reason::Reason;
use crate::registry::{self, Registry, Slot as Statistics};
use crate::switch::endpoint::Endpoint;
use crate::switch::socket::holder_count::HolderCount;
use crate::switch::socket::kernel_registration::KernelRegistration;
use crate::switch::socket::known_segment::KnownSegment;
use crate::switch::socket::negotiation::Negotiation;
use crate::switch::socket::set::Watch;
use crate::switch::socket::structure::{Guarded, Structure};
use crate::switch::socket::traffic::Traffic;
use crate::switch::spin;
use crate::sys::Fd;
use smallvec::SmallVec;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};

/// The registry in which this process publishes; `None` if it does not.
pub(in crate::switch) static REGISTRY: Guarded<Option<Registry>> = Guarded::new(None);

/// A bit of the pins: the socket is in no use, or is about to be in none. The thread that sets it has the socket for
/// itself.
const UNUSED: u32 = 1 << 31;

/// See the module. In the first cache line is what each transfer needs.
#[repr(C, align(64))]
pub struct Socket {
    /// Descriptors of this process that refer to it, and operations on it; and [`UNUSED`].
    pins: AtomicU32,
    phase: AtomicU32,
    endpoint: AtomicPtr<Endpoint>,
    statistics: AtomicPtr<Statistics>,
    /// One of the descriptors: the anchor's name for the kernel.
    anchor: AtomicI32,
    reason: AtomicU32,
    /// Whether the SAN may pay.
    pub(crate) traffic: Traffic,
    descriptors: AtomicU32,
    /// Whether spinning for its events has paid off lately.
    pub(crate) spin: spin::History,
    /// Which end it is, as a [`Role`]'s number and one. Zero: neither, or nobody knows.
    role: AtomicU32,
    /// How many registrations in epoll sets there are: spares a look under the lock.
    pub(crate) watch_count: AtomicU32,
    /// See `watched_by`.
    pub(crate) watched_at: AtomicU32,
    /// This process is no holder of its end any more (see [`Socket::stop_holding`]).
    left: AtomicBool,
    /// Its last descriptor is closed, and a call on it is under way: the end of the connection follows that call.
    pub(in crate::switch) is_closing: AtomicBool,
    /// The program has set options that concern us, or another process may have.
    pub(crate) has_options: AtomicBool,
    /// See [`note_awaited`](Self::note_awaited).
    is_awaited: AtomicBool,
    /// The ends have begun to look for each other, or whether they should: from then on it changes under the structure
    /// lock.
    pub(super) is_looked_at: AtomicBool,
    /// Whether the ends look for each other, as far as is known without the lock.
    pub(in crate::switch) negotiates: AtomicBool,
    /// Processes that have it, of all that were forked while it was on TCP; none: this one alone.
    pub(in crate::switch) holders: HolderCount,
    /// Apart, because most sockets never have one.
    segment: UnsafeCell<Option<Box<Segment>>>,
    /// From `Arc::into_raw`; null where the peer shares the segment.
    link: AtomicPtr<Link>,
    /// Set and place of the newest registration: a hint, checked under the set's lock.
    pub(crate) watched_by: AtomicPtr<crate::switch::socket::set::Set>,
    /// What it knows of its connection's first segment.
    pub(in crate::switch) first_segment: KnownSegment,
    /// Its registration in a kernel's set, while no thread had to know more.
    pub(crate) kernel_registration: KernelRegistration,
    /// Changed and read under the structure lock.
    guarded: UnsafeCell<SocketParts>,
}

/// Parts of a socket that need the structure lock.
#[derive(Default)]
pub(crate) struct SocketParts {
    /// Registrations in epoll sets.
    pub(crate) watches: SmallVec<[Watch; 1]>,
    /// What both ends have agreed on so far of going to the SAN.
    pub(in crate::switch) negotiation: Option<Box<Negotiation>>,
    /// Next in the list of free sockets.
    next_free: Option<&'static Socket>,
}

// SAFETY: `segment` is written before the phase becomes SAN (release) and after the last pin is
// gone; `guarded` is only reached through a `Structure`.
unsafe impl Sync for Socket {}

impl Socket {
    fn blank() -> Socket {
        Socket {
            pins: AtomicU32::new(UNUSED),
            descriptors: AtomicU32::new(0),
            phase: AtomicU32::new(phase::FREE),
            anchor: AtomicI32::new(-1),
            reason: AtomicU32::new(0),
            spin: spin::History::new(),
            traffic: Traffic::new(),
            role: AtomicU32::new(0),
            holders: HolderCount::none(),
            endpoint: AtomicPtr::new(std::ptr::null_mut()),
            left: AtomicBool::new(false),
            statistics: AtomicPtr::new(std::ptr::null_mut()),
            segment: UnsafeCell::new(None),
            link: AtomicPtr::new(std::ptr::null_mut()),
            is_closing: AtomicBool::new(false),
            has_options: AtomicBool::new(false),
            is_awaited: AtomicBool::new(false),
            watch_count: AtomicU32::new(0),
            watched_by: AtomicPtr::new(std::ptr::null_mut()),
            watched_at: AtomicU32::new(0),
            first_segment: KnownSegment::none(),
            kernel_registration: KernelRegistration::new(),
            is_looked_at: AtomicBool::new(false),
            negotiates: AtomicBool::new(false),
            guarded: UnsafeCell::new(SocketParts::default()),
        }
    }

    /// One that no table knows, for the descriptor `fd`.
    #[cfg(test)]
    pub(in crate::switch) fn loose(fd: Fd) -> Socket {
        let socket = Self::blank();
        socket.anchor.store(fd, Ordering::Relaxed);
        socket
    }

    /// What the socket is at present ([`phase`]). Acquire.
    #[inline]
    pub(crate) fn phase(&self) -> u32 {
        self.phase.load(Ordering::Acquire)
    }

    /// Sequentially consistent.
    pub(crate) fn set_phase(&self, phase: u32) {
        self.phase.store(phase, Ordering::SeqCst);
    }

    /// The parts that need the structure lock.
    #[allow(clippy::mut_from_ref)]
    pub(crate) fn guarded(&self, _: &mut Structure) -> &mut SocketParts {
        // SAFETY: there is one Structure at a time, the caller has it, and no caller keeps one
        // result while it asks for another of the same socket.
        unsafe { &mut *self.guarded.get() }
    }

    /// The program waits for its events in select, poll or epoll of libc's, or has signals for them.
    pub(in crate::switch) fn note_awaited(&self) {
        if !self.is_awaited() {
            self.is_awaited.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the program ever waited for it, as far as the library knows. A program that does not, and never blocks
    /// in a call, may wait for the socket past the hooks.
    pub(in crate::switch) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed)
    }

    /// Notes one more descriptor of this process.
    pub(crate) fn add_descriptor(&self) {
        self.pin();
        self.descriptors.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that a descriptor is going; true if it was the last one of this process. The pin that
    /// came with it remains the caller's to give back.
    pub(crate) fn remove_descriptor(&self) -> bool {
        self.descriptors.fetch_sub(1, Ordering::SeqCst) == 1
    }

    /// True while this process has descriptors of it. Structure lock.
    pub(in crate::switch) fn is_open(&self) -> bool {
        self.descriptors.load(Ordering::SeqCst) > 0
    }

    /// The descriptor to reach the kernel's socket by.
    #[inline]
    pub fn anchor(&self) -> Fd {
        self.anchor.load(Ordering::Relaxed)
    }

    /// Another descriptor has to serve, because the one in use is being closed.
    pub(crate) fn set_anchor(&self, fd: Fd) {
        self.anchor.store(fd, Ordering::Relaxed);
        self.statistics().set_fd(fd);
    }

    /// Why the socket is, or is not, on the SAN.
    pub(crate) fn reason(&self) -> Reason {
        Reason::from_u32(self.reason.load(Ordering::Relaxed)).unwrap_or(Reason::Pending)
    }

    /// Notes why.
    pub(crate) fn set_reason(&self, reason: Reason) {
        self.reason.store(reason.as_u32(), Ordering::Relaxed);
        registry::set_reason(self.statistics(), reason);
    }

    /// The slot in which `sanctl` sees it; a spare one if `sanctl` sees nothing of it.
    #[inline]
    pub(crate) fn statistics(&self) -> &'static Statistics {
        // SAFETY: statistics slots are never unmapped.
        match unsafe { self.statistics.load(Ordering::Relaxed).as_ref() } {
            Some(slot) => slot,
            None => registry::spare(),
        }
    }

    /// Which end of a TCP connection it is, if that is known.
    pub(in crate::switch) fn role(&self) -> Option<Role> {
        match self.role.load(Ordering::Relaxed) {
            1 => Some(Role::Connector),
            2 => Some(Role::Acceptor),
            _ => None,
        }
    }

    /// It is, or is about to be, connected over TCP.
    pub(in crate::switch) fn begin_on_tcp(&self, role: Role) {
        self.role.store(role as u32 + 1, Ordering::Relaxed);
        self.set_phase(phase::TCP);
    }

    /// True if the registry has it.
    pub(in crate::switch) fn is_published(&self) -> bool {
        !self.statistics.load(Ordering::Relaxed).is_null()
    }

    /// Publishes the socket in the registry, or what changed of it.
    pub(crate) fn publish(&self, structure: &mut Structure, identity: &registry::Identity) {
        unpublished::publish_within(structure);
        if self.statistics.load(Ordering::Relaxed).is_null() {
            let Some(slot) = REGISTRY.get(structure).as_ref().and_then(|r| r.allocate()) else {
                return;
            };
            self.statistics.store(slot as *const _ as *mut _, Ordering::Relaxed);
        }
        registry::publish(self.statistics(), identity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With its registration in an epoll set, which is in the socket: a tenth of what the kernel's own takes.
    #[test]
    fn a_connection_that_never_moves_costs_little() {
        let socket = size_of::<Socket>();
        assert!(socket <= 256, "{socket}");
    }

    #[test]
    fn a_transfer_over_tcp_touches_one_cache_line_of_it() {
        let end = std::mem::offset_of!(Socket, traffic) + Traffic::COUNTED;
        assert!(end <= 64 && align_of::<Socket>() == 64, "{end}");
    }
}
