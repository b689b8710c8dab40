//! A TCP socket of this process: its phase, its end of a SAN connection, who watches it.
//!
//! Sockets live in memory that is only ever reused for sockets, so a look-up may pin one without a
//! lock and then check that it is still the one it wanted.

mod kernel_registration;
pub(in crate::switch) mod listener;
pub(in crate::switch) mod negotiation;
pub(in crate::switch) mod set;
mod spare;
pub(in crate::switch) mod structure;
pub mod table;
pub(in crate::switch) mod traffic;
pub(in crate::switch) mod tuple;
pub mod unpublished;

use crate::fabric::{self, Link};
use crate::provider::shm::{Role, Segment, State};
use crate::reason::Reason;
use crate::registry::{self, Registry, Slot as Statistics};
use crate::switch::endpoint::memory::Memory;
use crate::switch::endpoint::{flag, Endpoint};
use crate::switch::socket::kernel_registration::KernelRegistration;
use crate::switch::socket::listener::Listener;
use crate::switch::socket::negotiation::Negotiation;
use crate::switch::socket::set::Watch;
use crate::switch::socket::structure::{Guarded, Structure};
use crate::switch::socket::traffic::Traffic;
use crate::switch::spin;
use crate::switch::stream::Stream;
use crate::sys::{file, process, Fd};
use smallvec::SmallVec;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::sync::Arc;

/// What a socket is at present.
pub(super) mod phase {
    /// In no use.
    pub(crate) const FREE: u32 = 0;
    /// Neither connected nor listening.
    pub(crate) const FRESH: u32 = 1;
    /// Listening.
    pub(crate) const LISTENER: u32 = 2;
    /// connect is under way in the kernel, a session may have been offered.
    pub(crate) const CONNECTING: u32 = 3;
    /// Connected over plain TCP for good, or not seen by the switch.
    pub(crate) const NATIVE: u32 = 4;
    /// Bytes go over the SAN.
    pub(crate) const SAN: u32 = 5;
    /// Connected over TCP, and on the SAN as soon as that pays.
    pub(crate) const TCP: u32 = 6;
    /// For a moment, in which it becomes clear whether it is one of the two.
    pub(crate) const ENTERING: u32 = 7;
}

/// Sockets to use again, where the [`spare`] ones had no room.
static FREE: Guarded<Option<&'static Socket>> = Guarded::new(None);
/// What this process publishes; `None` if it does not.
pub(in crate::switch) static REGISTRY: Guarded<Option<Registry>> = Guarded::new(None);

/// Whether spinning paid off for connections that are gone, for each [`Role`].
static LEARNT: [spin::History; 2] = [const { spin::History::hopeful() }; 2];

/// Of the pins: the socket is in no use, or is about to be in none. Whoever sets it has it for himself.
const UNUSED: u32 = 1 << 31;

/// See the module.
pub struct Socket {
    /// Descriptors of this process that refer to it, and operations on it; and [`UNUSED`].
    pins: AtomicU32,
    descriptors: AtomicU32,
    phase: AtomicU32,
    /// One of the descriptors: the anchor's name for the kernel.
    anchor: AtomicI32,
    reason: AtomicU32,
    /// Whether spinning for its events has paid off lately.
    pub spin: spin::History,
    /// Whether the SAN may pay.
    pub traffic: Traffic,
    /// Which end it is, as a [`Role`]'s number and one; zero: neither, or nobody knows.
    role: AtomicU32,
    /// Processes that have it, of all that were forked while it was on TCP; null: this one alone. See [`setup::shared`].
    ///
    /// [`setup::shared`]: crate::switch::setup::holders
    pub(in crate::switch) holders: AtomicPtr<AtomicU32>,
    endpoint: AtomicPtr<Endpoint>,
    /// This process is no holder of its end any more (see [`Socket::leave`]).
    left: AtomicBool,
    statistics: AtomicPtr<Statistics>,
    /// Apart, because most sockets never have one.
    segment: UnsafeCell<Option<Box<Segment>>>,
    /// From `Arc::into_raw`; null where the peer shares the segment.
    link: AtomicPtr<Link>,
    listener: AtomicPtr<Listener>,
    /// The program set options before the connection was on the SAN.
    pub has_options: AtomicBool,
    /// How many registrations in epoll sets there are: spares a look under the lock.
    pub watch_count: AtomicU32,
    /// Set and place of the newest registration: a hint, checked under the set's lock.
    pub watched_by: AtomicPtr<crate::switch::socket::set::Set>,
    /// See `watched_by`.
    pub watched_at: AtomicU32,
    /// Its registration in a kernel's set, while nobody had to know more.
    pub kernel_registration: KernelRegistration,
    /// The ends have begun to look for each other, or whether they should: from then on it changes under the structure lock.
    pub(super) is_looked_at: AtomicBool,
    /// Changed and read under the structure lock.
    guarded: UnsafeCell<Parts>,
}

/// Parts of a socket that need the structure lock.
#[derive(Default)]
pub struct Parts {
    /// Registrations in epoll sets.
    pub watches: SmallVec<[Watch; 1]>,
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
            holders: AtomicPtr::new(std::ptr::null_mut()),
            endpoint: AtomicPtr::new(std::ptr::null_mut()),
            left: AtomicBool::new(false),
            statistics: AtomicPtr::new(std::ptr::null_mut()),
            segment: UnsafeCell::new(None),
            link: AtomicPtr::new(std::ptr::null_mut()),
            listener: AtomicPtr::new(std::ptr::null_mut()),
            has_options: AtomicBool::new(false),
            watch_count: AtomicU32::new(0),
            watched_by: AtomicPtr::new(std::ptr::null_mut()),
            watched_at: AtomicU32::new(0),
            kernel_registration: KernelRegistration::new(),
            is_looked_at: AtomicBool::new(false),
            guarded: UnsafeCell::new(Parts::default()),
        }
    }

    /// One that no table knows, for the descriptor `fd`.
    #[cfg(test)]
    pub(in crate::switch) fn loose(fd: Fd) -> Socket {
        let socket = Self::blank();
        socket.anchor.store(fd, Ordering::Relaxed);
        socket
    }

    /// A fresh socket with one descriptor, not yet in the table. `None` without memory.
    pub fn allocate(fd: Fd) -> Option<&'static Socket> {
        let socket = spare::take().or_else(|| take_from_list(&mut Structure::lock()))?;
        Some(socket.begin(fd))
    }

    fn begin(&'static self, fd: Fd) -> &'static Socket {
        let socket = self;
        socket.descriptors.store(1, Ordering::Relaxed);
        socket.anchor.store(fd, Ordering::Relaxed);
        socket.has_options.store(false, Ordering::Relaxed);
        socket.traffic.begin();
        socket.role.store(0, Ordering::Relaxed);
        socket.holders.store(std::ptr::null_mut(), Ordering::Relaxed);
        socket.statistics.store(std::ptr::null_mut(), Ordering::Relaxed);
        socket.kernel_registration.begin_anew();
        socket.is_looked_at.store(false, Ordering::Relaxed);
        socket.set_reason(Reason::NotConnected);
        socket.phase.store(phase::FRESH, Ordering::Relaxed);
        // A look-up that lost its race may have it pinned as well.
        socket.pins.fetch_sub(UNUSED - 1, Ordering::SeqCst);
        socket
    }

    /// What the socket is at present ([`phase`]). Acquire.
    #[inline]
    pub fn phase(&self) -> u32 {
        self.phase.load(Ordering::Acquire)
    }

    /// Sequentially consistent.
    pub fn set_phase(&self, phase: u32) {
        self.phase.store(phase, Ordering::SeqCst);
    }

    /// Keeps the socket from being recycled.
    #[inline]
    pub(in crate::switch) fn pin(&self) {
        self.pins.fetch_add(1, Ordering::SeqCst);
    }

    #[inline]
    pub(in crate::switch) fn unpin(&'static self) {
        if self.pins.fetch_sub(1, Ordering::SeqCst) == 1 && self.is_callers() {
            self.recycle();
        }
    }

    /// Gives two pins back.
    pub(in crate::switch) fn unpin_twice(&'static self) {
        if self.pins.fetch_sub(2, Ordering::SeqCst) == 2 && self.is_callers() {
            self.recycle();
        }
    }

    /// As [`unpin`](Self::unpin), by who has the structure lock.
    pub(in crate::switch) fn unpin_within(&'static self, structure: &mut Structure) {
        if self.pins.fetch_sub(1, Ordering::SeqCst) == 1 && self.is_callers() {
            self.recycle_within(structure);
        }
    }

    /// A look-up that lost its race pins for a moment; the last one of all recycles, once.
    fn is_callers(&self) -> bool {
        self.pins.compare_exchange(0, UNUSED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// True if it never was more than a TCP socket, and the structure knows nothing of it. Stays so while it is pinned, until
    /// it [is looked at](Self::is_looked_at), or becomes a listener.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.phase(), phase::FRESH | phase::TCP | phase::NATIVE)
            && !self.is_looked_at.load(Ordering::SeqCst)
            && self.endpoint.load(Ordering::Relaxed).is_null()
            && self.listener.load(Ordering::Relaxed).is_null()
            && !self.is_published()
            && self.watch_count.load(Ordering::Relaxed) == 0
    }

    fn recycle(&'static self) {
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
        if let Some(Negotiation::Agreed(agreed)) =
            self.guarded(structure).negotiation.take().map(|p| *p)
        {
            agreed.end();
        }
        // SAFETY: no pin is left, so nobody uses the stream, and nobody gets at it any more.
        unsafe { self.detach() };
        let listener = self.listener.swap(std::ptr::null_mut(), Ordering::Relaxed);
        if !listener.is_null() {
            // SAFETY: it came from Box::into_raw, and no pin is left.
            drop(unsafe { Box::from_raw(listener) });
        }
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

    /// The parts that need the structure lock.
    #[allow(clippy::mut_from_ref)]
    pub fn guarded(&self, _: &mut Structure) -> &mut Parts {
        // SAFETY: there is one Structure at a time, the caller has it, and no caller keeps one
        // result while it asks for another of the same socket.
        unsafe { &mut *self.guarded.get() }
    }

    /// Whether it is on the SAN; if not, it stays where it is as long as the caller keeps its pin.
    #[inline]
    pub(in crate::switch) fn has_entered(&self) -> bool {
        // Another thread is about to decide: nobody who does may be interrupted.
        while self.phase() == phase::ENTERING {
            process::yield_now();
        }
        self.phase() == phase::SAN
    }

    /// True if no call of this process uses the socket but the caller's, which has pinned it, and none has closed it. To be
    /// asked after the phase was changed: who pins it from then on sees that. Structure lock.
    pub(in crate::switch) fn is_used_by_caller_alone(&self) -> bool {
        let descriptors = self.descriptors.load(Ordering::SeqCst);
        let pins = self.pins.load(Ordering::SeqCst);
        // They get fewer without the lock.
        pins == descriptors + 1
            && descriptors > 0
            && self.descriptors.load(Ordering::SeqCst) == descriptors
    }

    /// Notes one more descriptor of this process.
    pub fn add_descriptor(&self) {
        self.pin();
        self.descriptors.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that a descriptor is going; true if it was the last one of this process. The pin that
    /// came with it remains the caller's to give back.
    pub fn remove_descriptor(&self) -> bool {
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
    pub fn set_anchor(&self, fd: Fd) {
        self.anchor.store(fd, Ordering::Relaxed);
        self.statistics().set_fd(fd);
    }

    /// Why the socket is, or is not, on the SAN.
    pub fn reason(&self) -> Reason {
        Reason::from_u32(self.reason.load(Ordering::Relaxed)).unwrap_or(Reason::Pending)
    }

    /// Notes why.
    pub fn set_reason(&self, reason: Reason) {
        self.reason.store(reason.as_u32(), Ordering::Relaxed);
        self.statistics().set_reason(reason);
    }

    /// What `sanctl` shows of it; a spare one if it shows nothing.
    #[inline]
    pub fn statistics(&self) -> &'static Statistics {
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
    pub fn publish(&self, structure: &mut Structure, identity: &registry::Identity) {
        unpublished::publish_within(structure);
        if self.statistics.load(Ordering::Relaxed).is_null() {
            let Some(slot) = REGISTRY.get(structure).as_ref().and_then(|r| r.allocate()) else {
                return;
            };
            self.statistics.store(slot as *const _ as *mut _, Ordering::Relaxed);
        }
        self.statistics().publish(identity);
    }

    /// Gives the socket its end of a connection, to be discarded and unmapped with it. Phase SAN may
    /// follow.
    ///
    /// # Safety
    /// `memory` is of that session and no other socket's.
    pub unsafe fn attach(&self, segment: Segment, memory: Memory, link: Option<Arc<Link>>) {
        // SAFETY: the caller's promise.
        let role = unsafe { (*memory.at).role() };
        self.spin.begin_with(&LEARNT[role as usize]);
        self.role.store(role as u32 + 1, Ordering::Relaxed);
        // SAFETY: the phase is not SAN yet, so nobody reads it.
        unsafe { *self.segment.get() = Some(Box::new(segment)) };
        self.left.store(false, Ordering::Relaxed);
        let link = link.map_or(std::ptr::null(), Arc::into_raw);
        self.link.store(link.cast_mut(), Ordering::Relaxed);
        self.endpoint.store(memory.at, Ordering::Release);
    }

    /// This process holds its end no longer; true if others do. Once.
    pub fn leave(&self, endpoint: &Endpoint) -> bool {
        self.left.swap(true, Ordering::SeqCst)
            || endpoint.holders.fetch_sub(1, Ordering::SeqCst) > 1
    }

    /// Takes the end of a connection away again before the phase ever was SAN, or when no other
    /// thread can be using it.
    ///
    /// # Safety
    /// No other thread uses the stream of this socket.
    pub unsafe fn detach(&self) {
        let endpoint = self.endpoint.swap(std::ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe {
            if !endpoint.is_null() {
                self.spin.leave_to(&LEARNT[(*endpoint).role() as usize]);
            }
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

    /// Makes it a listener.
    pub fn set_listener(&self, listener: Box<Listener>) {
        self.listener.store(Box::into_raw(listener), Ordering::Release);
        self.set_phase(phase::LISTENER);
    }

    /// What a listener's processes share.
    pub fn listener(&self) -> Option<&Listener> {
        // SAFETY: freed only after the last pin.
        unsafe { self.listener.load(Ordering::Acquire).as_ref() }
    }

    /// Our end. Only in the phases SAN and CONNECTING with a session on offer.
    #[inline]
    pub fn stream(&self) -> Option<Stream<'_>> {
        // SAFETY: set before the phase that lets callers get here, unmapped after the last pin.
        let endpoint = unsafe { self.endpoint.load(Ordering::Acquire).as_ref() }?;
        // SAFETY: written before `endpoint`.
        let segment = unsafe { (*self.segment.get()).as_deref() }?;
        // SAFETY: as the endpoint.
        let fabric = unsafe { self.link.load(Ordering::Relaxed).as_ref() };
        Some(Stream::new(endpoint, segment, self.statistics(), fabric).over(self.anchor()))
    }

    /// True while nobody took the session that this connector offered.
    pub fn is_pending(&self) -> bool {
        self.stream().is_some_and(|s| {
            s.fabric.is_some()
                && s.endpoint.role() == Role::Connector
                && !s.endpoint.has(flag::ESTABLISHED)
                && s.segment.state() != State::Taken
        })
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
        unsafe { (*self.0.at).holders.load(Ordering::SeqCst) > 0 }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: this process does not use it otherwise any more.
        unsafe { self.0.discard() }
    }
}

const CHUNK: usize = 64;

fn allocate_chunk(structure: &mut Structure) -> Option<&'static Socket> {
    let at = file::map_private(CHUNK * std::mem::size_of::<Socket>()).ok()?.cast::<Socket>();
    for i in 0..CHUNK {
        // SAFETY: fresh memory, large enough and page aligned; every field is written.
        let socket = unsafe {
            let one = at.add(i);
            one.write(Socket::blank());
            &*one
        };
        if i == CHUNK - 1 {
            return Some(socket);
        }
        if !spare::give(socket) {
            put_on_list(structure, socket);
        }
    }
    None
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

/// One from the list, or from new memory; and some more for who comes next.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ends together, with their places in the table and a registration, which is in the socket: less than the
    /// kernel's own sockets take by far.
    #[test]
    fn a_connection_that_never_moves_costs_little() {
        let socket = size_of::<Socket>();
        assert!(socket <= 280, "{socket}");
    }
}
