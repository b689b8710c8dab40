//! The epoll sets that watch a socket. Its registrations move between the kernel's sets and the shadow sets as the
//! socket moves between TCP and the SAN, and a set can be made to look at the socket itself. This module reports no
//! events ([`readiness`](crate::switch::readiness)).

use crate::switch::socket::set::{Inner, Registration, Set, Watch};
use crate::switch::socket::structure::Structure;
use crate::switch::socket::table;
use crate::switch::socket::Socket;
use crate::sys::{file, poll, Errno, Fd, Result};
use std::sync::atomic::Ordering;

/// Puts the registration that is noted in a socket into its set's books. False: it is not known what the kernel has.
pub(in crate::switch) fn enter_kernel_registration(
    structure: &mut Structure,
    socket: &Socket,
) -> bool {
    let Ok(noted) = socket.kernel_registration.take() else { return false };
    if let Some(noted) = noted {
        // SAFETY: what a set watches was in the table, and such sockets are never freed.
        let socket = unsafe { &*std::ptr::from_ref(socket) };
        let mut registration = Registration::new(noted.fd, socket, noted.events, noted.data);
        registration.in_kernel = true;
        return add(structure, noted.set, registration).is_some();
    }
    true
}

/// Where the registration of `fd` is in the set.
pub(in crate::switch) fn find(
    structure: &mut Structure,
    set: &Set,
    fd: Fd,
    socket: &Socket,
) -> Option<u32> {
    let watches = &socket.guarded(structure).watches;
    watches.iter().filter(|w| std::ptr::eq(w.set, set)).map(|w| w.index).find(|index| {
        set.with(|inner| inner.registrations[*index as usize].as_ref().is_some_and(|r| r.fd == fd))
            .unwrap_or(false)
    })
}

impl Registration {
    /// True if the descriptor is there by which the registration was made. Otherwise the program has closed it, while
    /// another one keeps the socket open.
    pub(in crate::switch) fn has_descriptor(&self) -> bool {
        table::is_of(self.fd, self.socket)
    }
}

impl Inner {
    /// Room for one more, with the hot list able to hold it. Structure lock.
    fn insert(&mut self, registration: Registration) -> u32 {
        if let Some(free) = self.free.pop() {
            self.registrations[free as usize] = Some(registration);
            return free;
        }
        self.registrations.push(Some(registration));
        let missing = self.registrations.len().saturating_sub(self.hot.len());
        self.hot.reserve(missing);
        self.free.reserve(self.registrations.len().saturating_sub(self.free.len()));
        self.registrations.len() as u32 - 1
    }
}

/// Puts a registration into the books of its set and its socket; where it is in the set. `None`, in a signal handler that
/// interrupted a look at the set: it is not there.
pub(in crate::switch) fn add(
    structure: &mut Structure,
    set: &'static Set,
    registration: Registration,
) -> Option<u32> {
    let socket = registration.socket;
    let index = set.with(|inner| inner.insert(registration))?;
    socket.guarded(structure).watches.push(Watch { set, index });
    socket.watch_count.fetch_add(1, Ordering::Relaxed);
    socket.watched_at.store(index, Ordering::Relaxed);
    socket.watched_by.store(std::ptr::from_ref(set).cast_mut(), Ordering::Release);
    Some(index)
}

/// Takes a registration out of the books, and returns it.
pub(in crate::switch) fn remove(
    structure: &mut Structure,
    set: &'static Set,
    socket: &'static Socket,
    index: u32,
) -> Option<Registration> {
    let watches = &mut socket.guarded(structure).watches;
    let before = watches.len();
    watches.retain(|w| !(std::ptr::eq(w.set, set) && w.index == index));
    socket.watch_count.fetch_sub((before - watches.len()) as u32, Ordering::Relaxed);
    let taken = set.with(|inner| {
        let mut taken = inner.take(index)?;
        if !taken.in_kernel {
            taken.disarm();
            set.san.fetch_sub(1, Ordering::SeqCst);
        }
        Some(taken)
    });
    if taken.is_none() {
        set.leave_behind(index, socket);
    }
    taken.flatten()
}

/// Removes a parked registration, which is deleted as far as the program knows. True if it was parked.
pub(in crate::switch) fn remove_if_parked(
    structure: &mut Structure,
    set: &'static Set,
    index: u32,
) -> bool {
    let parked = set.with(|inner| {
        inner.registrations[index as usize].as_ref().filter(|r| r.parked).map(|r| r.socket)
    });
    let Some(socket) = parked.flatten() else { return false };
    if let Some(mut r) = remove(structure, set, socket, index) {
        leave_shadow(set, &mut r);
    }
    true
}

/// The events that the program asked for.
pub(in crate::switch) fn events_of(set: &Set, index: u32) -> u32 {
    set.with(|inner| inner.registrations[index as usize].as_ref().map_or(0, |r| r.events))
        .unwrap_or(0)
}

/// True if a registration that is reported once was reported before the socket went back to TCP: the kernel's set has it when
/// the program modifies it.
pub(in crate::switch) fn check_kept_back(set: &Set, index: u32) -> bool {
    set.with(|inner| {
        inner.registrations[index as usize].as_ref().is_some_and(|r| r.in_kernel && r.disabled)
    })
    .unwrap_or(false)
}

/// Puts a registration into the shadow set, hot.
pub(in crate::switch) fn enter_shadow(set: &'static Set, index: u32) -> Result<()> {
    let shadow = set.shadow()?;
    set.with(|inner| {
        let r = inner.registrations[index as usize].as_mut().ok_or(Errno(libc::ENOENT))?;
        let events = r.kernel_events();
        poll::epoll_ctl(shadow, libc::EPOLL_CTL_ADD, r.fd, events, u64::from(index))?;
        r.in_shadow = true;
        r.watch_bell(shadow, index);
        r.in_kernel = false;
        set.san.fetch_add(1, Ordering::SeqCst);
        inner.make_hot(index);
        Ok(())
    })
    .unwrap_or(Err(Errno(libc::EINTR)))
}

/// In a fork child that goes on waiting on a set of its parent's: the sockets' anchors enter a
/// shadow of the child's own.
#[cold]
#[inline(never)]
pub(in crate::switch) fn take_over(set: &'static Set) {
    let _structure = Structure::lock();
    let Ok(shadow) = set.shadow() else { return };
    set.with(|inner| {
        for (index, slot) in inner.registrations.iter_mut().enumerate() {
            if let Some(r) = slot.as_mut().filter(|r| !r.in_kernel && !r.in_shadow) {
                let (fd, events) = (r.fd, r.kernel_events());
                r.in_shadow =
                    poll::epoll_ctl(shadow, libc::EPOLL_CTL_ADD, fd, events, index as u64).is_ok();
                r.watch_bell(shadow, index as u32);
            }
        }
    });
}

/// Takes a registration out of the shadow set.
pub(in crate::switch) fn leave_shadow(set: &Set, registration: &mut Registration) {
    let shadow = set.shadow.load(Ordering::Relaxed);
    if registration.unwatch_bell(shadow)
        && registration.socket.watch_count.load(Ordering::Relaxed) > 0
    {
        // A caller that holds the set's lock takes all of them out: this does nothing there.
        set.with(|inner| inner.pass_bell_on(shadow, registration.socket));
    }
    // Its number may be another file's by now, which is to stay there.
    if registration.in_shadow && shadow >= 0 && registration.has_descriptor() {
        let _ = poll::epoll_ctl(shadow, libc::EPOLL_CTL_DEL, registration.fd, 0, 0);
    }
}

/// A change may have made something ready that sleepers, or watchers of the set, have to see.
pub(in crate::switch) fn wake_others(set: &'static Set) {
    if set.has_other_waiters() {
        set.wake();
    }
}

/// Makes the sets that watch the socket ready to do so on the SAN; false if one cannot.
pub(in crate::switch) fn prepare_to_switch(structure: &mut Structure, socket: &Socket) -> bool {
    if !enter_kernel_registration(structure, socket) {
        return false;
    }
    let watches = &socket.guarded(structure).watches;
    watches.iter().all(|watch| check_deletable(watch) && watch.set.shadow().is_ok())
}

/// False if the program has closed the descriptor by which the registration was made, while another one keeps the
/// socket open. The kernel goes on with such a registration, and lets nobody take it back.
fn check_deletable(watch: &Watch) -> bool {
    let is_so = |inner: &mut Inner| {
        inner.registrations[watch.index as usize].as_ref().is_some_and(Registration::has_descriptor)
    };
    watch.set.with(is_so).unwrap_or(false)
}

/// The socket is on the SAN now: its registrations move from the kernel's sets.
pub(in crate::switch) fn to_switch(structure: &mut Structure, socket: &Socket) {
    let _ = enter_kernel_registration(structure, socket);
    let count = socket.guarded(structure).watches.len();
    for at in 0..count {
        let Watch { set, index } = socket.guarded(structure).watches[at];
        let fd = set
            .with(|inner| {
                inner.registrations[index as usize].as_ref().filter(|r| r.in_kernel).map(|r| r.fd)
            })
            .flatten();
        let Some(fd) = fd else { continue };
        note_reported(set, index, fd);
        set.with(|inner| {
            if let Some(r) = inner.registrations[index as usize].as_mut() {
                r.begin_anew();
            }
        });
        let _ = poll::epoll_ctl(set.kernel_fd(), libc::EPOLL_CTL_DEL, fd, 0, 0);
        if let Err(e) = enter_shadow(set, index) {
            log::error!("fd {fd}: its epoll registration was lost: {e}");
        }
        wake_others(set);
    }
}

/// Notes whether the kernel reported a registration that it reports once.
pub(in crate::switch) fn note_reported(set: &Set, index: u32, fd: Fd) {
    if !Registration::is_one_shot(events_of(set, index)) || check_kept_back(set, index) {
        return;
    }
    let waited_for = poll::epoll_events(set.kernel_fd(), fd);
    let is_over = waited_for.is_some_and(|events| !Registration::waits_for_any(events));
    set.with(|inner| {
        if let Some(Some(r)) = inner.registrations.get_mut(index as usize) {
            r.note_reported_by_kernel(is_over);
        }
    });
}

/// The socket went back to TCP: its registrations move to the kernel's sets.
pub(in crate::switch) fn to_kernel(structure: &mut Structure, socket: &Socket) {
    let mut at = 0;
    // Each under another number. The kernel's registrations outlive them.
    let mut copies = Vec::new();
    while let Some(Watch { set, index }) = socket.guarded(structure).watches.get(at).copied() {
        if remove_if_parked(structure, set, index) {
            continue;
        }
        at += 1;
        set.with(|inner| {
            inner.hot.retain(|i| *i != index);
            let r = inner.registrations[index as usize].as_mut()?;
            if r.in_kernel {
                return None;
            }
            r.disarm();
            leave_shadow(set, r);
            (r.in_kernel, r.in_shadow, r.hot) = (true, false, false);
            set.san.fetch_sub(1, Ordering::SeqCst);
            if r.disabled {
                // The kernel would tell an error or a hang-up of it.
                return Some(());
            }
            let (events, data) = (r.events, r.data);
            let fd = if r.has_descriptor() {
                r.fd
            } else {
                // The program cannot name it any more, and goes on hearing of it.
                copies.push(file::duplicate_high(socket.anchor()).ok()?);
                *copies.last()?
            };
            let _ = poll::epoll_ctl(set.kernel_fd(), libc::EPOLL_CTL_ADD, fd, events, data);
            Some(())
        });
    }
    copies.into_iter().for_each(file::close);
}

/// The last descriptor of a socket in this process is going: so do its registrations.
pub(in crate::switch) fn forget_socket(structure: &mut Structure, socket: &'static Socket) {
    while let Some(Watch { set, index }) = socket.guarded(structure).watches.last().copied() {
        match remove(structure, set, socket, index) {
            Some(mut r) => leave_shadow(set, &mut r),
            None => {
                socket.guarded(structure).watches.pop();
            }
        }
    }
}

/// A set is going: so do its registrations.
pub(in crate::switch) fn clear(structure: &mut Structure, set: &'static Set) {
    let all = set.with(|inner| inner.registrations.len()).unwrap_or(0);
    for index in 0..all as u32 {
        let socket = set
            .with(|inner| inner.registrations[index as usize].as_ref().map(|r| r.socket))
            .flatten();
        if let Some(socket) = socket {
            remove(structure, set, socket, index);
        }
    }
}

/// Another thread took a ring off: the sets that were to hear the ring look themselves.
pub(in crate::switch) fn ring_taken_off(socket: &Socket) {
    have_looked_at(socket, Registration::disarm);
}

/// The sets that watch the socket look at it themselves for now.
pub(in crate::switch) fn look_again(socket: &Socket) {
    have_looked_at(socket, |_| {});
}

/// When (ticks) the kernel last told all about the socket's anchor to the one set that watches it; zero if there is none.
pub(in crate::switch) fn answered_at(socket: &Socket) -> u64 {
    if socket.watch_count.load(Ordering::Relaxed) != 1 {
        return 0;
    }
    let index = socket.watched_at.load(Ordering::Relaxed) as usize;
    // SAFETY: sets are never freed.
    let set = unsafe { socket.watched_by.load(Ordering::Acquire).as_ref() };
    let answered = |inner: &mut Inner| {
        let r = inner.registrations.get(index)?.as_ref()?;
        (std::ptr::eq(r.socket, socket) && r.in_shadow).then_some(inner.answered_at)
    };
    set.and_then(|set| set.with(answered)?).unwrap_or(0)
}

/// Has the sets that watch the socket look at it, each after `before`.
fn have_looked_at(socket: &Socket, before: impl Fn(&mut Registration)) {
    if socket.watch_count.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut structure = Structure::lock();
    for Watch { set, index } in &socket.guarded(&mut structure).watches {
        let asleep = set.with(|inner| {
            if let Some(Some(r)) = inner.registrations.get_mut(*index as usize) {
                before(r);
            }
            inner.make_hot(*index);
            set.has_other_waiters()
        });
        if asleep == Some(true) {
            set.wake();
        }
    }
}
