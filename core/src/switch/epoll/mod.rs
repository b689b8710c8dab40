//! Epoll sets with SAN sockets in them.
//!
//! The kernel's set keeps every descriptor that is not on the SAN, with the program's own data.
//! SAN sockets are registered in a hidden shadow set, which is itself a member of the program's
//! set, so a sleeper, an outer set or poll on the set's descriptor wakes for them too.
//!
//! A SAN registration is hot or cold. Hot ones have had traffic lately: `epoll_wait` looks at
//! their streams itself, and raises their select counters only to sleep. Cold ones stay raised,
//! and cost nothing until their doorbell rings (A18).

mod control;
mod noted;
mod registration;
mod wait;

pub use control::{
    control, doorbell_drained, forget_socket, look_again, may_switch, to_kernel, to_switch,
};
pub use noted::Noted;
pub use wait::wait;

use super::spin;
use super::structure::Structure;
use super::table;
use crate::sys::lock::FamilyLock;
use crate::sys::{file, hidden, poll, time, Errno, Fd, Result};
use registration::Registration;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

/// A socket's registration in a set, as the socket remembers it.
#[derive(Clone, Copy)]
pub struct Watch {
    /// The set.
    pub set: &'static Set,
    /// Where in it.
    pub index: u32,
}

/// An epoll set of this process. Never freed, only recycled.
pub struct Set {
    fd: AtomicI32,
    descriptors: AtomicU32,
    /// How many sets this was before.
    generation: AtomicU32,
    /// Hidden set with the SAN sockets' anchors; -1 before the first.
    shadow: AtomicI32,
    /// SAN registrations; zero: the kernel alone serves the set.
    san: AtomicU32,
    /// Threads of this process asleep in the kernel on the set.
    sleepers: AtomicU32,
    /// Somebody may wait for the set's own descriptor to be readable.
    nested: AtomicBool,
    has_members: AtomicBool,
    /// Came over a fork with SAN sockets in it, and has not been waited on since.
    inherited: AtomicBool,
    /// Busy streams left no room for the kernel's own descriptors, which come first the next time.
    passed_over: AtomicBool,
    spin: spin::Memory,
    /// Guards `inner`. Taken after the structure lock, never before it.
    lock: FamilyLock,
    inner: UnsafeCell<Inner>,
}

// SAFETY: `inner` is only reached with `lock` held.
unsafe impl Sync for Set {}

#[derive(Default)]
struct Inner {
    /// Changed only with the structure lock held as well.
    registrations: Vec<Option<Registration>>,
    /// Unused places among them.
    free: Vec<u32>,
    /// Indices of hot registrations; capacity for all, so that it never grows while scanned.
    hot: Vec<u32>,
    /// Sets in this set.
    members: Vec<&'static Set>,
    /// Where the next scan begins, so that none is starved by a small `maxevents`.
    cursor: usize,
    /// Waits served.
    calls: u32,
    /// Clock (ticks) of the last look at the kernel's set.
    looked_at: u64,
    /// Clock (ticks) of the last look after sessions that may go back to TCP.
    scanned_at: u64,
}

/// User data of the shadow set inside the program's set, and of the nudge.
static MAGIC: AtomicU64 = AtomicU64::new(0);
/// Always readable; registered in a set for a moment to wake its sleepers.
static NUDGE: AtomicI32 = AtomicI32::new(-1);

fn magic() -> u64 {
    let magic = MAGIC.load(Ordering::Relaxed);
    if magic != 0 {
        return magic;
    }
    let mut random = [0u8; 8];
    // Unpredictable enough that no program's own data collides with it.
    let at = (&random as *const _ as u64).rotate_left(32) ^ time::now();
    // SAFETY: eight writable bytes; getrandom is not hooked.
    unsafe { libc::getrandom(random.as_mut_ptr().cast(), 8, libc::GRND_NONBLOCK) };
    let made = (u64::from_ne_bytes(random) ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1;
    let _ = MAGIC.compare_exchange(0, made & !2, Ordering::Relaxed, Ordering::Relaxed);
    MAGIC.load(Ordering::Relaxed)
}

fn nudge_data() -> u64 {
    magic() | 2
}

/// After epoll_create gave the program `fd`.
pub fn created(fd: Fd) {
    let mut structure = Structure::lock();
    let set = match structure.free_sets.pop() {
        Some(set) => set,
        None => Box::leak(Box::new(Set {
            fd: AtomicI32::new(-1),
            descriptors: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            shadow: AtomicI32::new(-1),
            san: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            nested: AtomicBool::new(false),
            has_members: AtomicBool::new(false),
            inherited: AtomicBool::new(false),
            passed_over: AtomicBool::new(false),
            spin: spin::Memory::new(),
            lock: FamilyLock::new(),
            inner: UnsafeCell::new(Inner::default()),
        })),
    };
    set.fd.store(fd, Ordering::Relaxed);
    set.descriptors.store(1, Ordering::Relaxed);
    set.nested.store(false, Ordering::Relaxed);
    table::put_set(fd, set);
}

/// After the program made another descriptor for a set.
pub fn duplicated(set: &'static Set, to: Fd) {
    let _structure = Structure::lock();
    set.descriptors.fetch_add(1, Ordering::Relaxed);
    table::put_set(to, set);
}

/// Before the program closes a descriptor of a set.
pub fn closing(set: &'static Set, fd: Fd) {
    let mut structure = Structure::lock();
    table::clear(fd);
    if set.descriptors.fetch_sub(1, Ordering::Relaxed) > 1 {
        if set.fd.load(Ordering::Relaxed) == fd {
            let mut other = None;
            table::each_known(0, Fd::MAX - 1, |candidate| {
                if table::set(candidate).is_some_and(|s| std::ptr::eq(s, set)) {
                    other = Some(candidate);
                }
            });
            set.fd.store(other.unwrap_or(-1), Ordering::Relaxed);
        }
        return;
    }
    set.generation.fetch_add(1, Ordering::Relaxed);
    control::clear(&mut structure, set);
    set.with(|inner| inner.members.clear());
    set.has_members.store(false, Ordering::Relaxed);
    let shadow = set.shadow.swap(-1, Ordering::Relaxed);
    if shadow >= 0 {
        hidden::close(shadow);
    }
    structure.free_sets.push(set);
}

/// In a fork child: no other thread exists that could hold a set's lock or sleep in it.
pub fn after_fork_in_child() {
    table::each_known(0, Fd::MAX - 1, |fd| {
        if let Some(set) = table::set(fd) {
            set.lock.reset();
            set.sleepers.store(0, Ordering::Relaxed);
            // The shadow set and the raised counters are the parent's. What the child goes on
            // watching, it watches through a shadow of its own.
            let shadow = set.shadow.swap(-1, Ordering::Relaxed);
            if shadow >= 0 {
                hidden::close(shadow);
                set.inherited.store(true, Ordering::Relaxed);
            }
            // SAFETY: this is the only thread.
            let inner = unsafe { &mut *set.inner.get() };
            inner.heat_all();
        }
    });
}

impl Inner {
    /// In a fork child: everything is looked at anew.
    fn heat_all(&mut self) {
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

    /// Has the set look at a registration itself.
    fn heat(&mut self, index: u32) {
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
    /// Runs `f` with the set's lock; `None` in a signal handler that interrupted its holder.
    fn with<R>(&self, f: impl FnOnce(&mut Inner) -> R) -> Option<R> {
        self.lock.lock().ok()?;
        // SAFETY: the lock is held.
        let result = f(unsafe { &mut *self.inner.get() });
        self.lock.unlock();
        Some(result)
    }

    fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    fn kernel_fd(&self) -> Fd {
        self.fd.load(Ordering::Relaxed)
    }

    /// The shadow set, made when first needed.
    fn shadow(&self) -> Result<Fd> {
        let shadow = self.shadow.load(Ordering::Relaxed);
        // The program may have put a file of its own there by dup2.
        if shadow >= 0 && hidden::is_hidden(shadow) {
            return Ok(shadow);
        }
        let made = hidden::keep(poll::epoll_create()?);
        let events = libc::EPOLLIN as u32;
        if let Err(e) =
            poll::epoll_ctl(self.kernel_fd(), libc::EPOLL_CTL_ADD, made, events, magic())
        {
            hidden::close(made);
            return Err(e);
        }
        self.shadow.store(made, Ordering::Relaxed);
        Ok(made)
    }

    /// Notes a set that became, or is no longer, a member of this one.
    fn note_member(&self, operation: i32, member: &'static Set) {
        let _structure = Structure::lock();
        self.with(|inner| {
            inner.members.retain(|m| !std::ptr::eq(*m, member));
            if operation != libc::EPOLL_CTL_DEL {
                inner.members.push(member);
            }
            self.has_members.store(!inner.members.is_empty(), Ordering::Relaxed);
        });
        if operation != libc::EPOLL_CTL_DEL {
            member.watched();
        }
    }

    /// Has the sets in this one show the kernel what their sockets have.
    fn settle_members(&self) {
        if !self.has_members.load(Ordering::Relaxed) {
            return;
        }
        let members: Vec<_> = self.with(|inner| inner.members.clone()).unwrap_or_default();
        for member in members {
            member.watched();
        }
    }

    /// Makes the kernel's set readable once, for sleepers and outer sets.
    fn kick(&self) {
        let mut nudge = NUDGE.load(Ordering::Relaxed);
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

    /// Takes a nudge back that nobody heard.
    fn quieten(&self) {
        let nudge = NUDGE.load(Ordering::Relaxed);
        if nudge >= 0 {
            let _ = poll::epoll_ctl(self.kernel_fd(), libc::EPOLL_CTL_DEL, nudge, 0, 0);
        }
    }

    /// Somebody else may be waiting for what this set's registrations do.
    fn has_other_waiters(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) != 0 || self.nested.load(Ordering::Relaxed)
    }

    /// Notes that the set's own descriptor is being watched (an outer set, poll, select).
    pub fn watched(&'static self) {
        self.nested.store(true, Ordering::SeqCst);
        self.settle_members();
        if self.san.load(Ordering::Relaxed) != 0 {
            wait::settle(self);
        }
    }
}
