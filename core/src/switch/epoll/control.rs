//! epoll_ctl, and sockets that change sides between the kernel and the SAN.

use super::super::endpoint::flag;
use super::super::readiness::bit;
use super::super::socket::{phase, Socket};
use super::super::structure::Structure;
use super::super::table;
use super::super::Outcome;
use super::registration::Registration;
use super::{Inner, Set, Watch};
use crate::fabric;
use crate::sys::{poll, Errno, Fd, Result};
use std::sync::atomic::Ordering;

/// epoll_ctl. `event` is null only for EPOLL_CTL_DEL.
pub fn control(
    epoll: Fd,
    operation: i32,
    fd: Fd,
    event: Option<(u32, u64)>,
    real: impl FnOnce() -> Result<()>,
) -> Outcome {
    let Some(set) = table::set(epoll) else { return Outcome::Pass };
    if let Some(inner) = table::set(fd) {
        let done = real();
        if done.is_ok() {
            set.note_member(operation, inner);
        }
        return Outcome::Done(done.map(|()| 0));
    }
    let Some(pinned) = table::socket(fd) else { return Outcome::Pass };
    if pinned.phase() == phase::LISTENER && fabric::may_exist() {
        super::super::setup::serve(&pinned);
    }
    let is_watched = pinned.watch_count.load(Ordering::Relaxed) != 0;
    let is_left = matches!(pinned.phase(), phase::NATIVE | phase::LISTENER);
    if is_left && !is_watched && pinned.noted.is_empty() {
        return Outcome::Pass;
    }
    // Only from FRESH, and for other hosts, it is on the SAN without having been on TCP.
    let is_tcps = pinned.phase() == phase::TCP
        || !fabric::may_exist() && (is_left || pinned.phase() == phase::FRESH);
    if is_tcps && !is_watched {
        if let Some(change) = pinned.noted.change(set, operation, fd, event) {
            let done = real();
            change.end(&done);
            return Outcome::Done(done.map(|()| 0));
        }
    }
    super::super::setup::establish(pinned.get());
    if pinned.phase() == phase::SAN {
        if let Some(done) = quickly(set, operation, fd, &pinned, event) {
            return Outcome::Done(done.map(|()| 0));
        }
    }
    let mut structure = Structure::lock();
    let _ = enter_noted(&mut structure, pinned.get());
    let done = if pinned.phase() == phase::SAN {
        on_san(&mut structure, set, operation, fd, pinned.get(), event)
    } else {
        real().inspect(|()| {
            in_kernel(&mut structure, set, operation, fd, pinned.get(), event);
        })
    };
    Outcome::Done(done.map(|()| 0))
}

/// The changes that programs make for every request, without the structure lock and without the
/// kernel: MOD, and DEL followed by ADD. `None`: the long way.
fn quickly(
    set: &'static Set,
    operation: i32,
    fd: Fd,
    socket: &Socket,
    event: Option<(u32, u64)>,
) -> Option<Result<()>> {
    if !std::ptr::eq(socket.watched_by.load(Ordering::Acquire), set) {
        return None;
    }
    let index = socket.watched_at.load(Ordering::Relaxed);
    let done = set.with(|inner| {
        let r = inner.registrations.get_mut(index as usize)?.as_mut()?;
        if r.fd != fd || !std::ptr::eq(r.socket, socket) || r.in_kernel {
            return None;
        }
        let same_in_kernel = |events: u32| (events ^ r.events) & (bit::PRI | EXCLUSIVE) == 0;
        match (operation, event) {
            (libc::EPOLL_CTL_ADD, Some((events, data)))
                if r.parked && r.in_shadow && same_in_kernel(events) =>
            {
                r.parked = false;
                r.modify(events, data);
                inner.heat(index);
                Some(Ok(()))
            }
            (libc::EPOLL_CTL_MOD, Some((events, data)))
                if !r.parked && same_in_kernel(events) && events & EXCLUSIVE == 0 =>
            {
                r.disarm();
                r.modify(events, data);
                inner.heat(index);
                Some(Ok(()))
            }
            (libc::EPOLL_CTL_DEL, _) if !r.parked => {
                r.disarm();
                r.parked = true;
                Some(Ok(()))
            }
            _ => None,
        }
    })??;
    wake_others(set);
    Some(done)
}

/// What is noted in a socket is put into the books. False: nobody knows what the kernel has.
fn enter_noted(structure: &mut Structure, socket: &Socket) -> bool {
    let Ok(noted) = socket.noted.take() else { return false };
    if let Some(noted) = noted {
        // SAFETY: what a set watches was in the table, and such sockets are never freed.
        let socket = unsafe { &*std::ptr::from_ref(socket) };
        let mut registration = Registration::new(noted.fd, socket, noted.events, noted.data);
        registration.in_kernel = true;
        add(structure, noted.set, registration);
    }
    true
}

/// Where the registration of `fd` is in the set.
fn find(structure: &mut Structure, set: &Set, fd: Fd, socket: &Socket) -> Option<u32> {
    let watches = &socket.guarded(structure).watches;
    watches.iter().filter(|w| std::ptr::eq(w.set, set)).map(|w| w.index).find(|index| {
        set.with(|inner| inner.registrations[*index as usize].as_ref().is_some_and(|r| r.fd == fd))
            .unwrap_or(false)
    })
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

/// A change of a socket that the kernel's set serves, which succeeded there: remembered, because
/// the socket may move to the SAN later.
fn in_kernel(
    structure: &mut Structure,
    set: &'static Set,
    operation: i32,
    fd: Fd,
    socket: &'static Socket,
    event: Option<(u32, u64)>,
) {
    match (operation, event) {
        (libc::EPOLL_CTL_ADD, Some((events, data))) => {
            let mut registration = Registration::new(fd, socket, events, data);
            registration.in_kernel = true;
            add(structure, set, registration);
        }
        (libc::EPOLL_CTL_MOD, Some((events, data))) => {
            let Some(index) = find(structure, set, fd, socket) else { return };
            set.with(|inner| {
                inner.registrations[index as usize].as_mut()?.modify(events, data);
                Some(())
            });
        }
        _ => {
            if let Some(index) = find(structure, set, fd, socket) {
                remove(structure, set, socket, index);
            }
        }
    }
}

fn add(structure: &mut Structure, set: &'static Set, registration: Registration) -> u32 {
    let socket = registration.socket;
    let index = set.with(|inner| inner.insert(registration)).unwrap_or(0);
    socket.guarded(structure).watches.push(Watch { set, index });
    socket.watch_count.fetch_add(1, Ordering::Relaxed);
    socket.watched_at.store(index, Ordering::Relaxed);
    socket.watched_by.store(std::ptr::from_ref(set).cast_mut(), Ordering::Release);
    index
}

/// Takes a registration out of the books, and returns it.
fn remove(
    structure: &mut Structure,
    set: &'static Set,
    socket: &Socket,
    index: u32,
) -> Option<Registration> {
    let watches = &mut socket.guarded(structure).watches;
    let before = watches.len();
    watches.retain(|w| !(std::ptr::eq(w.set, set) && w.index == index));
    socket.watch_count.fetch_sub((before - watches.len()) as u32, Ordering::Relaxed);
    set.with(|inner| {
        let mut taken = inner.registrations.get_mut(index as usize)?.take()?;
        inner.free.push(index);
        if taken.hot {
            inner.hot.retain(|i| *i != index);
        }
        if !taken.in_kernel {
            taken.disarm();
            set.san.fetch_sub(1, Ordering::SeqCst);
        }
        Some(taken)
    })
    .flatten()
}

/// What is deleted as far as the program knows now is; true if it was so.
fn remove_if_parked(
    structure: &mut Structure,
    set: &'static Set,
    socket: &Socket,
    index: u32,
) -> bool {
    let is_parked = set
        .with(|inner| inner.registrations[index as usize].as_ref().is_some_and(|r| r.parked))
        .unwrap_or(false);
    if is_parked {
        if let Some(mut r) = remove(structure, set, socket, index) {
            leave_shadow(set, &mut r);
        }
    }
    is_parked
}

fn on_san(
    structure: &mut Structure,
    set: &'static Set,
    operation: i32,
    fd: Fd,
    socket: &'static Socket,
    event: Option<(u32, u64)>,
) -> Result<()> {
    let found = find(structure, set, fd, socket)
        .filter(|index| !remove_if_parked(structure, set, socket, *index));
    match (operation, event, found) {
        (libc::EPOLL_CTL_ADD, Some(_), Some(_)) => Err(Errno(libc::EEXIST)),
        (libc::EPOLL_CTL_ADD, Some((events, _)), None)
            if events & EXCLUSIVE != 0 && events & !WITH_EXCLUSIVE != 0 =>
        {
            Err(Errno(libc::EINVAL))
        }
        (libc::EPOLL_CTL_MOD, Some((events, _)), Some(index))
            if (events | events_of(set, index)) & EXCLUSIVE != 0 =>
        {
            Err(Errno(libc::EINVAL))
        }
        (libc::EPOLL_CTL_ADD, Some((events, data)), None) => {
            let index = add(structure, set, Registration::new(fd, socket, events, data));
            if let Err(e) = enter_shadow(set, index) {
                // It never counted as one of the set's SAN registrations.
                set.san.fetch_add(1, Ordering::SeqCst);
                remove(structure, set, socket, index);
                return Err(e);
            }
            wake_others(set);
            Ok(())
        }
        (libc::EPOLL_CTL_MOD, Some((events, data)), Some(index)) => {
            let shadow = set.shadow()?;
            set.with(|inner| {
                let r = inner.registrations[index as usize].as_mut()?;
                let before = r.kernel_events();
                r.disarm();
                r.modify(events, data);
                if r.in_shadow && before != r.kernel_events() {
                    let events = r.kernel_events();
                    let _ =
                        poll::epoll_ctl(shadow, libc::EPOLL_CTL_MOD, fd, events, u64::from(index));
                }
                inner.heat(index);
                Some(())
            });
            wake_others(set);
            Ok(())
        }
        (libc::EPOLL_CTL_DEL, _, Some(index)) => {
            if let Some(mut r) = remove(structure, set, socket, index) {
                leave_shadow(set, &mut r);
            }
            Ok(())
        }
        (libc::EPOLL_CTL_MOD, Some(_), None) | (libc::EPOLL_CTL_DEL, _, None) => {
            Err(Errno(libc::ENOENT))
        }
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, None, _) => Err(Errno(libc::EFAULT)),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// EPOLLEXCLUSIVE goes with few other bits and can not be modified.
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
const WITH_EXCLUSIVE: u32 = EXCLUSIVE
    | (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP) as u32
    | (libc::EPOLLWAKEUP | libc::EPOLLET) as u32;

fn events_of(set: &Set, index: u32) -> u32 {
    set.with(|inner| inner.registrations[index as usize].as_ref().map_or(0, |r| r.events))
        .unwrap_or(0)
}

/// Puts a registration into the shadow set, hot.
fn enter_shadow(set: &'static Set, index: u32) -> Result<()> {
    let shadow = set.shadow()?;
    set.with(|inner| {
        let r = inner.registrations[index as usize].as_mut().ok_or(Errno(libc::ENOENT))?;
        let ended =
            r.socket.stream().is_some_and(|s| s.endpoint.has(flag::ANCHOR_ENDED | flag::UNBELLED));
        if !ended {
            let events = r.kernel_events();
            poll::epoll_ctl(shadow, libc::EPOLL_CTL_ADD, r.fd, events, u64::from(index))?;
            r.in_shadow = true;
        }
        r.watch_bell(shadow, index);
        r.in_kernel = false;
        set.san.fetch_add(1, Ordering::SeqCst);
        inner.heat(index);
        Ok(())
    })
    .unwrap_or(Err(Errno(libc::EINTR)))
}

/// In a fork child that goes on waiting on a set of its parent's: the sockets' anchors enter a
/// shadow of the child's own.
pub(super) fn take_over(set: &'static Set) {
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

fn leave_shadow(set: &Set, registration: &mut Registration) {
    let shadow = set.shadow.load(Ordering::Relaxed);
    registration.forget_bell(shadow);
    if registration.in_shadow && shadow >= 0 {
        let _ = poll::epoll_ctl(shadow, libc::EPOLL_CTL_DEL, registration.fd, 0, 0);
    }
}

/// A change may have made something ready that sleepers, or watchers of the set, have to see.
fn wake_others(set: &'static Set) {
    if set.has_other_waiters() {
        set.kick();
    }
}

/// True if the sets that watch the socket can do so on the SAN.
pub fn may_switch(structure: &mut Structure, socket: &Socket) -> bool {
    if !enter_noted(structure, socket) {
        return false;
    }
    let watches = &socket.guarded(structure).watches;
    watches.iter().all(|watch| watch.set.shadow().is_ok())
}

/// The socket is on the SAN now: its registrations move from the kernel's sets.
pub fn to_switch(structure: &mut Structure, socket: &Socket) {
    let _ = enter_noted(structure, socket);
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
fn note_reported(set: &Set, index: u32, fd: Fd) {
    if !Registration::is_one_shot(events_of(set, index)) {
        return;
    }
    let waited_for = poll::epoll_events(set.kernel_fd(), fd);
    let is_over = waited_for.is_some_and(|events| !Registration::waits_for_any(events));
    set.with(|inner| {
        if let Some(Some(r)) = inner.registrations.get_mut(index as usize) {
            r.was_reported_by_kernel(is_over);
        }
    });
}

/// The socket went back to TCP: its registrations move to the kernel's sets.
pub fn to_kernel(structure: &mut Structure, socket: &Socket) {
    let mut at = 0;
    while let Some(Watch { set, index }) = socket.guarded(structure).watches.get(at).copied() {
        if remove_if_parked(structure, set, socket, index) {
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
            let (events, data) = (r.events_for_kernel(), r.data);
            let _ = poll::epoll_ctl(set.kernel_fd(), libc::EPOLL_CTL_ADD, r.fd, events, data);
            Some(())
        });
    }
}

/// The last descriptor of a socket in this process is going: so do its registrations.
pub fn forget_socket(structure: &mut Structure, socket: &'static Socket) {
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
pub(super) fn clear(structure: &mut Structure, set: &'static Set) {
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

/// A doorbell was taken off an anchor by somebody else: the sets that were to hear it look
/// themselves.
pub fn doorbell_drained(socket: &Socket) {
    have_looked_at(socket, |registration| {
        registration.belled = false;
        registration.disarm();
    });
}

/// The sets that watch the socket look at it themselves for now.
pub fn look_again(socket: &Socket) {
    have_looked_at(socket, |_| {});
}

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
            inner.heat(*index);
            set.has_other_waiters()
        });
        if asleep == Some(true) {
            set.kick();
        }
    }
}
