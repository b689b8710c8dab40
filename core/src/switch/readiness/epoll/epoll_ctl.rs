//! Serves epoll_ctl, also for sockets that change between the kernel and the SAN.

use crate::switch::anchor::ends;
use crate::switch::anchor::watchers;
use crate::switch::back_to_tcp::detach;
use crate::switch::event_bits as bit;
use crate::switch::outcome::Outcome;
use crate::switch::socket::set::{Registration, Set};
use crate::switch::socket::structure::Structure;
use crate::switch::socket::table;
use crate::switch::socket::{phase, Socket};
use crate::sys::{poll, Errno, Fd, Result};
use std::sync::atomic::Ordering;

/// Serves epoll_ctl. `event` is `None` for EPOLL_CTL_DEL, and where the program gave a null pointer.
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
    pinned.note_awaited();
    if let Some(stream) = pinned.stream() {
        // A registration that moves with the socket later would report its edge once more.
        detach::look_after(&pinned, &stream);
    }
    let is_watched = pinned.watch_count.load(Ordering::Relaxed) != 0;
    let is_left = matches!(pinned.phase(), phase::NATIVE | phase::LISTENER);
    if is_left && !is_watched && pinned.kernel_registration.is_empty() {
        return Outcome::Pass;
    }
    let is_tcps = is_left || matches!(pinned.phase(), phase::TCP | phase::FRESH);
    if is_tcps && !is_watched {
        if let Some(change) = pinned.kernel_registration.change(set, operation, fd, event) {
            let done = real();
            change.end(&done);
            return Outcome::Done(done.map(|()| 0));
        }
    }
    if pinned.phase() == phase::SAN {
        if is_refused(operation, event) {
            return Outcome::Done(Err(Errno(libc::EINVAL)));
        }
        if let Some(done) = quickly(set, operation, fd, &pinned, event) {
            return Outcome::Done(done.map(|()| 0));
        }
        if let Some(stream) = pinned.stream().filter(|_| operation == libc::EPOLL_CTL_ADD) {
            // The registration's first report includes an end that nothing else has reported.
            ends::look(&pinned, &stream);
        }
    }
    let mut structure = Structure::lock();
    let _ = watchers::enter_kernel_registration(&mut structure, pinned.get());
    let done = if pinned.phase() == phase::SAN {
        on_san(&mut structure, set, operation, fd, pinned.get(), event)
    } else {
        let kept_back = watchers::find(&mut structure, set, fd, pinned.get())
            .is_some_and(|index| watchers::check_kept_back(set, index));
        let done = if kept_back { put_back(set, operation, fd, event, real) } else { real() };
        done.inspect(|()| in_kernel(&mut structure, set, operation, fd, pinned.get(), event))
    };
    Outcome::Done(done.map(|()| 0))
}

/// Changes a registration that was [kept back](watchers::check_kept_back) from the kernel's set.
fn put_back(
    set: &Set,
    operation: i32,
    fd: Fd,
    event: Option<(u32, u64)>,
    real: impl FnOnce() -> Result<()>,
) -> Result<()> {
    if operation == libc::EPOLL_CTL_ADD && !is_refused(operation, event) {
        return Err(Errno(libc::EEXIST));
    }
    match (real(), event) {
        // The kernel's set does not have the descriptor, unless a process that shares the set has put it there.
        (Err(Errno(libc::ENOENT)), Some((events, data))) => {
            poll::epoll_ctl(set.kernel_fd(), libc::EPOLL_CTL_ADD, fd, events, data)
        }
        (Err(Errno(libc::ENOENT)), None) => Ok(()),
        (done, _) => done,
    }
}

/// True if the kernel refuses this change before it looks into the set.
fn is_refused(operation: i32, event: Option<(u32, u64)>) -> bool {
    let Some((events, _)) = event.filter(|(events, _)| events & EXCLUSIVE != 0) else {
        return false;
    };
    operation == libc::EPOLL_CTL_MOD
        || operation == libc::EPOLL_CTL_ADD && events & !WITH_EXCLUSIVE != 0
}

/// Makes the changes that programs make for every request, without the structure lock and without the kernel: MOD, and
/// DEL followed by ADD. `None`: the caller goes the long way.
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
                inner.make_hot(index);
                Some(Ok(()))
            }
            (libc::EPOLL_CTL_MOD, Some((events, data))) if !r.parked && same_in_kernel(events) => {
                r.disarm();
                r.modify(events, data);
                inner.make_hot(index);
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
    watchers::wake_others(set);
    Some(done)
}

/// Remembers a change that succeeded in the kernel's set, because the socket may move to the SAN later.
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
            if watchers::add(structure, set, registration).is_none() {
                socket.kernel_registration.lose();
            }
        }
        (libc::EPOLL_CTL_MOD, Some((events, data))) => {
            let Some(index) = watchers::find(structure, set, fd, socket) else { return };
            set.with(|inner| {
                inner.registrations[index as usize].as_mut()?.modify(events, data);
                Some(())
            });
        }
        _ => {
            if let Some(index) = watchers::find(structure, set, fd, socket) {
                watchers::remove(structure, set, socket, index);
            }
        }
    }
}

/// Changes the registration of a socket on the SAN, with the kernel's errors.
fn on_san(
    structure: &mut Structure,
    set: &'static Set,
    operation: i32,
    fd: Fd,
    socket: &'static Socket,
    event: Option<(u32, u64)>,
) -> Result<()> {
    let found = watchers::find(structure, set, fd, socket)
        .filter(|index| !watchers::remove_if_parked(structure, set, *index));
    match (operation, event, found) {
        (libc::EPOLL_CTL_ADD, Some(_), Some(_)) => Err(Errno(libc::EEXIST)),
        (libc::EPOLL_CTL_MOD, Some(_), Some(index))
            if watchers::events_of(set, index) & EXCLUSIVE != 0 =>
        {
            Err(Errno(libc::EINVAL))
        }
        (libc::EPOLL_CTL_ADD, Some((events, data)), None) => {
            add(structure, set, Registration::new(fd, socket, events, data))
        }
        (libc::EPOLL_CTL_MOD, Some((events, data)), Some(index)) => {
            modify(set, index, events, data)
        }
        (libc::EPOLL_CTL_DEL, _, Some(index)) => {
            if let Some(mut r) = watchers::remove(structure, set, socket, index) {
                watchers::leave_shadow(set, &mut r);
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

fn add(structure: &mut Structure, set: &'static Set, registration: Registration) -> Result<()> {
    let socket = registration.socket;
    let index = watchers::add(structure, set, registration).ok_or(Errno(libc::EINTR))?;
    if let Err(e) = watchers::enter_shadow(set, index) {
        // The registration never counted as one of the set's SAN registrations, and its removal takes one off the
        // count.
        set.san.fetch_add(1, Ordering::SeqCst);
        watchers::remove(structure, set, socket, index);
        return Err(e);
    }
    watchers::wake_others(set);
    Ok(())
}

fn modify(set: &'static Set, index: u32, events: u32, data: u64) -> Result<()> {
    let shadow = set.shadow()?;
    set.with(|inner| {
        let r = inner.registrations[index as usize].as_mut()?;
        let before = r.kernel_events();
        r.disarm();
        r.modify(events, data);
        let after = r.kernel_events();
        if r.in_shadow && before != after {
            let _ = poll::epoll_ctl(shadow, libc::EPOLL_CTL_MOD, r.fd, after, u64::from(index));
        }
        inner.make_hot(index);
        Some(())
    });
    watchers::wake_others(set);
    Ok(())
}

/// EPOLLEXCLUSIVE goes with few other bits and can not be modified.
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
const WITH_EXCLUSIVE: u32 = EXCLUSIVE
    | (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP) as u32
    | (libc::EPOLLWAKEUP | libc::EPOLLET) as u32;
