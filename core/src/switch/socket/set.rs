//! An epoll set of this process, and the sockets registered in it. [`readiness`](crate::switch::readiness) knows what
//! it reports.
//!
//! The kernel's set keeps every descriptor that is not on the SAN, with the program's own data. SAN sockets are
//! registered in a hidden shadow set, which is itself a member of the program's set.

use crate::session::Ticket;
use crate::switch::event_bits as bit;
use crate::switch::socket::left_behind::{self, LeftBehind};
use crate::switch::socket::structure::Guarded;
use crate::switch::socket::Socket;
use crate::switch::spin;
use crate::switch::stream::counters::{self, CountedEvent};
use crate::sys::actions::Times;
use crate::sys::lock::FamilyLock;
use crate::sys::lock_order::LockRank;
use crate::sys::{file, hidden, poll, time, Errno, Fd, Result};
use std::cell::Cell;
use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

/// A socket's registration in a set, as the socket remembers it.
#[derive(Clone, Copy)]
pub(crate) struct Watch {
    /// The set.
    pub(crate) set: &'static Set,
    /// Where in it.
    pub(crate) index: u32,
}

/// An epoll set of this process. Never freed, only recycled.
pub struct Set {
    pub(in crate::switch) fd: AtomicI32,
    pub(in crate::switch) descriptors: AtomicU32,
    /// How many sets this was before.
    pub(in crate::switch) generation: AtomicU32,
    /// Hidden set with the SAN sockets' anchors; -1 before the first.
    pub(in crate::switch) shadow: AtomicI32,
    /// SAN registrations; zero: the kernel alone serves the set.
    pub(in crate::switch) san: AtomicU32,
    /// Threads of this process asleep in the kernel on the set.
    pub(in crate::switch) sleepers: AtomicU32,
    /// A thread may wait for the set's own descriptor to be readable.
    pub(in crate::switch) is_watched: AtomicBool,
    pub(in crate::switch) has_members: AtomicBool,
    /// Came over a fork with SAN sockets in it, and has not been waited on since.
    pub(in crate::switch) inherited: AtomicBool,
    /// Busy streams left no room for the kernel's own descriptors, which come first the next time.
    pub(in crate::switch) kernel_was_passed_over: AtomicBool,
    pub(in crate::switch) spin: spin::History,
    /// The registrations that signal handlers removed while the thread that they interrupted had the lock.
    left_behind: LeftBehind,
    /// Guards `inner`.
    pub(in crate::switch) lock: FamilyLock<{ LockRank::EpollSet as u8 }>,
    inner: UnsafeCell<Inner>,
}

// SAFETY: `inner` is only reached with `lock` held.
unsafe impl Sync for Set {}

/// What the set's lock guards.
#[derive(Default)]
pub(in crate::switch) struct Inner {
    /// Changed only with the structure lock held as well.
    pub(in crate::switch) registrations: Vec<Option<Registration>>,
    /// Unused places among them.
    pub(in crate::switch) free: Vec<u32>,
    /// Indices of hot registrations; capacity for all, so that it never grows while scanned.
    pub(in crate::switch) hot: Vec<u32>,
    /// Sets in this set.
    pub(in crate::switch) members: Vec<&'static Set>,
    /// Where the next scan begins, so that none is starved by a small `maxevents`.
    pub(in crate::switch) cursor: usize,
    /// Waits begun.
    pub(in crate::switch) calls: u32,
    /// Clock (ticks) of the last look at the kernel's set.
    pub(in crate::switch) looked_at: u64,
    /// Up to when (ticks) the kernel has told what others did there, all of it.
    pub(in crate::switch) told_until: Times,
    /// Clock (ticks) of the last answer of the kernel that told all it had of the set's descriptors and anchors.
    pub(in crate::switch) answered_at: u64,
    /// Clock (ticks) of the last look after sessions that may go back to TCP.
    pub(in crate::switch) scanned_at: u64,
}

/// User data of the shadow set inside the program's set, and of the nudge.
#[link_section = "sanshim_words"]
static SHADOW_DATA: AtomicU64 = AtomicU64::new(0);

/// Sets to use again.
pub(in crate::switch) static FREE: Guarded<Vec<&'static Set>> = Guarded::new(Vec::new());

/// Always readable: registered in a set for a moment, it wakes the set's sleepers.
static NUDGE: AtomicI32 = AtomicI32::new(-1);

/// The user data of the shadow set's event.
#[inline]
pub(in crate::switch) fn shadow_data() -> u64 {
    match SHADOW_DATA.load(Ordering::Relaxed) {
        0 => choose_shadow_data(),
        data => data,
    }
}

#[cold]
fn choose_shadow_data() -> u64 {
    let mut random = [0u8; 8];
    // Unpredictable enough that no program's own data collides with it.
    let at = (&random as *const _ as u64).rotate_left(32) ^ time::now();
    // SAFETY: eight writable bytes; getrandom is not hooked.
    unsafe { libc::getrandom(random.as_mut_ptr().cast(), 8, libc::GRND_NONBLOCK) };
    let made = (u64::from_ne_bytes(random) ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1;
    let _ = SHADOW_DATA.compare_exchange(0, made & !2, Ordering::Relaxed, Ordering::Relaxed);
    SHADOW_DATA.load(Ordering::Relaxed)
}

/// The user data of the nudge's event.
#[inline]
pub(in crate::switch) fn nudge_data() -> u64 {
    shadow_data() | 2
}

impl Inner {
    /// In a fork child: everything is looked at anew.
    pub(in crate::switch) fn make_all_hot(&mut self) {
        self.answered_at = 0;
        self.hot.clear();
        for (index, slot) in self.registrations.iter_mut().enumerate() {
            if let Some(r) = slot {
                r.forget_parent();
                r.hot = !r.in_kernel;
                if r.hot {
                    self.hot.push(index as u32);
                }
            }
        }
    }

    /// A registration took the socket's bell out of the shadow set. Another one by another descriptor of the same socket puts
    /// the bell there again, or nothing would ring for it.
    #[cold]
    pub(in crate::switch) fn pass_bell_on(&mut self, shadow: Fd, socket: &Socket) {
        let of_socket = |slot: &Option<Registration>| {
            slot.as_ref().is_some_and(|r| r.in_shadow && std::ptr::eq(r.socket, socket))
        };
        let Some(index) = self.registrations.iter().position(of_socket) else { return };
        if let Some(r) = &mut self.registrations[index] {
            r.watch_bell(shadow, index as u32);
        }
        self.make_hot(index as u32);
    }

    /// Takes a registration out of the books.
    pub(in crate::switch) fn take(&mut self, index: u32) -> Option<Registration> {
        let taken = self.registrations.get_mut(index as usize)?.take()?;
        self.free.push(index);
        if taken.hot {
            self.hot.retain(|i| *i != index);
        }
        Some(taken)
    }

    /// Has the set look at a registration itself.
    pub(in crate::switch) fn make_hot(&mut self, index: u32) {
        if let Some(Some(r)) = self.registrations.get_mut(index as usize) {
            r.idle = 0;
            if !r.hot && !r.in_kernel {
                r.hot = true;
                self.hot.push(index);
            }
        }
    }
}

impl Set {
    /// A set of no descriptor yet.
    pub(in crate::switch) fn blank() -> Set {
        Set {
            fd: AtomicI32::new(-1),
            descriptors: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            shadow: AtomicI32::new(-1),
            san: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            is_watched: AtomicBool::new(false),
            has_members: AtomicBool::new(false),
            inherited: AtomicBool::new(false),
            kernel_was_passed_over: AtomicBool::new(false),
            spin: spin::History::new(),
            left_behind: LeftBehind::default(),
            lock: FamilyLock::new(),
            inner: UnsafeCell::new(Inner::default()),
        }
    }

    /// Runs `f` with the set's lock; `None` in a signal handler that interrupted its holder.
    #[inline(always)]
    pub(in crate::switch) fn with<R>(&self, f: impl FnOnce(&mut Inner) -> R) -> Option<R> {
        self.lock.lock().ok()?;
        // SAFETY: the lock is held.
        let inner = unsafe { &mut *self.inner.get() };
        let result = f(inner);
        match self.left_behind.any() {
            true => self.end_interrupted(inner),
            false => self.lock.unlock(),
        }
        Some(result)
    }

    /// A signal handler removes a registration from the set in which its thread just looks. The look goes on with the socket, and
    /// so the session stays until the look ends.
    #[cold]
    pub(in crate::switch) fn leave_behind(&self, index: u32, socket: &'static Socket) {
        socket.pin();
        self.left_behind.note(index);
    }

    /// Ends a look that signal handlers interrupted: gives the lock back.
    #[cold]
    #[inline(never)]
    fn end_interrupted(&self, inner: &mut Inner) {
        let mut sockets = [None; left_behind::MOST];
        for (socket, index) in sockets.iter_mut().zip(self.left_behind.take()) {
            let Some(taken) = inner.take(index) else { continue };
            if !taken.in_kernel {
                self.san.fetch_sub(1, Ordering::SeqCst);
            }
            *socket = Some(taken.socket);
        }
        self.lock.unlock();
        // The last pin may end the session, which takes the structure lock: that comes before the set's.
        sockets.into_iter().flatten().for_each(Socket::unpin);
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    pub(in crate::switch) fn kernel_fd(&self) -> Fd {
        self.fd.load(Ordering::Relaxed)
    }

    /// The shadow set, made when first needed.
    pub(in crate::switch) fn shadow(&self) -> Result<Fd> {
        let shadow = self.shadow.load(Ordering::Relaxed);
        // The program may have put a file of its own there by dup2.
        if shadow >= 0 && hidden::is_hidden(shadow) {
            return Ok(shadow);
        }
        let made = hidden::keep(poll::epoll_create()?);
        let events = libc::EPOLLIN as u32;
        if let Err(e) =
            poll::epoll_ctl(self.kernel_fd(), libc::EPOLL_CTL_ADD, made, events, shadow_data())
        {
            hidden::close(made);
            return Err(e);
        }
        self.shadow.store(made, Ordering::Relaxed);
        Ok(made)
    }

    /// Makes the kernel's set readable once, for sleepers and outer sets.
    pub(in crate::switch) fn wake(&self) {
        let mut nudge = hidden::kept(NUDGE.load(Ordering::Relaxed));
        if nudge < 0 {
            let Ok(made) = file::eventfd(1) else { return };
            nudge = hidden::keep(made);
            NUDGE.store(nudge, Ordering::Relaxed);
        }
        let events = (libc::EPOLLIN | libc::EPOLLONESHOT) as u32;
        let (fd, data) = (self.kernel_fd(), nudge_data());
        if poll::epoll_ctl(fd, libc::EPOLL_CTL_MOD, nudge, events, data) == Err(Errno(libc::ENOENT))
        {
            let _ = poll::epoll_ctl(fd, libc::EPOLL_CTL_ADD, nudge, events, data);
        }
    }

    /// Takes a nudge back that no thread heard.
    pub(in crate::switch) fn withdraw_nudge(&self) {
        let nudge = hidden::kept(NUDGE.load(Ordering::Relaxed));
        if nudge >= 0 {
            let _ = poll::epoll_ctl(self.kernel_fd(), libc::EPOLL_CTL_DEL, nudge, 0, 0);
        }
    }

    /// True if another thread may be waiting for what this set's registrations do.
    pub(in crate::switch) fn has_other_waiters(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) != 0 || self.is_watched.load(Ordering::Relaxed)
    }
}

pub(in crate::switch) const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
const EDGE: u32 = libc::EPOLLET as u32;

/// Bits that say how events are reported.
const PRIVATE: u32 =
    (libc::EPOLLWAKEUP | libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE) as u32;

/// See the module.
pub(in crate::switch) struct Registration {
    /// The descriptor it was made with: with the socket, its name (as in the kernel).
    pub(in crate::switch) fd: Fd,
    pub(in crate::switch) socket: &'static Socket,
    /// The program's events and data, untouched.
    pub(in crate::switch) events: u32,
    pub(in crate::switch) data: u64,
    /// In the kernel's own set, because the socket is not on the SAN (yet).
    pub(in crate::switch) in_kernel: bool,
    /// The anchor is in the shadow set.
    pub(in crate::switch) in_shadow: bool,
    /// The bell is too.
    pub(in crate::switch) bell_in_shadow: bool,
    pub(in crate::switch) hot: bool,
    /// Looks in a row that found nothing.
    pub(in crate::switch) idle: u32,
    /// The wait that reported it last: it reports nothing twice.
    pub(in crate::switch) reported_by: u32,
    /// When (ticks) a look found something last.
    pub(in crate::switch) reported_at: u64,
    /// EPOLLPRI of what came by TCP, as the kernel reported it last.
    pub(in crate::switch) urgent: Cell<bool>,
    pub(in crate::switch) read: Option<Ticket>,
    pub(in crate::switch) write: Option<Ticket>,
    /// Deleted by the program; kept, because it is likely to be added again. Reports nothing.
    pub(in crate::switch) parked: bool,
    /// ONESHOT was reported, or nothing is wanted.
    pub(in crate::switch) disabled: bool,
    /// Nothing was reported since ADD or MOD: the next readiness is an edge.
    pub(in crate::switch) fresh: bool,
    pub(in crate::switch) reported: u64,
    pub(in crate::switch) stalls: u32,
}

impl Registration {
    pub(in crate::switch) fn new(fd: Fd, socket: &'static Socket, events: u32, data: u64) -> Self {
        Self {
            fd,
            socket,
            events,
            data,
            in_kernel: false,
            in_shadow: false,
            bell_in_shadow: false,
            hot: false,
            idle: 0,
            reported_by: 0,
            reported_at: 0,
            urgent: Cell::new(false),
            read: None,
            write: None,
            parked: false,
            disabled: false,
            fresh: true,
            reported: 0,
            stalls: 0,
        }
    }

    /// In a fork child: what was raised and registered is the parent's.
    pub(in crate::switch) fn forget_parent(&mut self) {
        (self.read, self.write, self.in_shadow) = (None, None, false);
        self.bell_in_shadow = false;
        self.idle = 0;
    }

    /// MOD: as if made anew.
    pub(in crate::switch) fn modify(&mut self, events: u32, data: u64) {
        (self.events, self.data) = (events, data);
        (self.disabled, self.fresh, self.idle) = (false, true, 0);
    }

    /// Whether events are reported once only.
    pub(in crate::switch) fn is_one_shot(events: u32) -> bool {
        events & ONE_SHOT != 0
    }

    /// Whether the kernel, which says that it waits for `events`, will report any.
    pub(in crate::switch) fn waits_for_any(events: u32) -> bool {
        events & !PRIVATE != 0
    }

    /// Before it leaves the kernel's set, which reported it, or not.
    pub(in crate::switch) fn note_reported_by_kernel(&mut self, reported: bool) {
        self.disabled = reported;
    }

    /// The events of the anchor that the shadow set has to watch: its edges, since nothing is taken off for the set's
    /// sake.
    pub(in crate::switch) fn kernel_events(&self) -> u32 {
        EDGE | bit::IN | bit::OUT | bit::RDHUP | (self.events & bit::PRI)
    }

    fn bell(&self) -> Option<Fd> {
        self.socket.stream().map(|stream| stream.bell()).filter(|bell| *bell >= 0)
    }

    /// Puts the bell into the shadow set as well. A registration by another descriptor of the same socket has it there already.
    pub(in crate::switch) fn watch_bell(&mut self, shadow: Fd, index: u32) {
        if let Some(bell) = self.bell() {
            let events = EDGE | bit::IN;
            let added = poll::epoll_ctl(shadow, libc::EPOLL_CTL_ADD, bell, events, index.into());
            self.bell_in_shadow = added.is_ok();
        }
    }

    /// Takes it out; true if this registration had put it there.
    pub(in crate::switch) fn unwatch_bell(&mut self, shadow: Fd) -> bool {
        let had_it = std::mem::replace(&mut self.bell_in_shadow, false);
        if let Some(bell) = self.bell().filter(|_| had_it) {
            let _ = poll::epoll_ctl(shadow, libc::EPOLL_CTL_DEL, bell, 0, 0);
        }
        had_it
    }

    /// Nothing was reported of the session that begins.
    pub(in crate::switch) fn begin_anew(&mut self) {
        let stalls = self.socket.stream().map_or(0, |s| s.endpoint.send.stalls.load(Relaxed));
        // The kernel may have refused a send.
        self.stalls = stalls.wrapping_sub(1);
        self.fresh = true;
    }

    /// Takes the counters back.
    pub(in crate::switch) fn disarm(&mut self) {
        let Some(stream) = self.socket.stream() else { return };
        if let Some(ticket) = self.read.take() {
            counters::withdraw(&stream, CountedEvent::Read, ticket);
        }
        if let Some(ticket) = self.write.take() {
            counters::withdraw(&stream, CountedEvent::Write, ticket);
        }
    }
}
