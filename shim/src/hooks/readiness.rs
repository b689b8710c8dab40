//! select, poll, epoll. The kernel's forms of those that differ from libc's are in `kernel_waits`.

use super::{as_result, milliseconds, or_real, returned, timespec};
use crate::real::hooks;
use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, timeval};
use sanshim_core::switch::poll::PollCall;
use sanshim_core::switch::{self, epoll, poll as core_poll, select as core_select};
use sanshim_core::switch::{sets, table, BitSets, Outcome};
use sanshim_core::sys::event_array::EventArray;
use sanshim_core::sys::signal_mask::SignalMask;
use sanshim_core::sys::user::{self, Access};
use sanshim_core::sys::{Errno, Result};

/// The program's descriptors. `None` if the array cannot be written, or is empty.
unsafe fn descriptors<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    if fds.is_null() || count == 0 || count > 1 << 20 {
        return None;
    }
    user::check(fds.cast(), count as usize * size_of::<pollfd>(), Access::Write).ok()?;
    // SAFETY: `count` entries are writable.
    Some(unsafe { std::slice::from_raw_parts_mut(fds, count as usize) })
}

/// True if any of them is ours. Asked before anything else.
fn any_known(fds: &[pollfd]) -> bool {
    fds.iter().any(|one| table::is_known(one.fd))
}

/// How long a call may wait, in nanoseconds, and with which signals.
pub(super) type How<'a> = (Option<u64>, Option<SignalMask<'a>>);

/// poll in all its forms. How long it may wait, and with which signals, is asked only if one of the descriptors is ours.
pub(super) unsafe fn poll_by_switch<'a>(
    fds: *mut pollfd,
    count: nfds_t,
    how: &mut dyn FnMut() -> Result<How<'a>>,
) -> Outcome {
    // SAFETY: the program's arguments.
    match unsafe { descriptors(fds, count) } {
        Some(all) if any_known(all) => match how() {
            Ok((limit, mask)) => core_poll::poll(PollCall::Poll, all, limit, mask),
            Err(e) => Outcome::Done(Err(e)),
        },
        _ => Outcome::Pass,
    }
}

/// select in all its forms; as [`poll_by_switch`].
pub(super) unsafe fn select_by_switch<'a>(
    nfds: c_int,
    sets: [*mut fd_set; 3],
    how: &mut dyn FnMut() -> Result<How<'a>>,
) -> Outcome {
    // SAFETY: the program's sets stay during the call.
    let sets = unsafe { BitSets::from_raw(nfds, sets) };
    sets.map_or(Outcome::Pass, |sets| core_select::select(&sets, how))
}

/// epoll_wait in all its forms; as [`poll_by_switch`].
pub(super) unsafe fn wait_by_switch<'a>(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    how: &mut dyn FnMut() -> Result<How<'a>>,
) -> Outcome {
    match table::set(set).map(|_| how()) {
        // SAFETY: the program's arguments.
        Some(Ok((limit, mask))) => unsafe { wait_for_events(set, events, most, limit, mask) },
        Some(Err(e)) => Outcome::Done(Err(e)),
        None => Outcome::Pass,
    }
}

#[inline]
unsafe fn wait_for_events(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: Option<u64>,
    mask: Option<SignalMask<'_>>,
) -> Outcome {
    // SAFETY: the program gave it for the call.
    match unsafe { EventArray::of_program(events, most) } {
        Some(events) => epoll::wait(set, events, timeout, mask),
        None => Outcome::Pass,
    }
}

hooks! {
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int = |real| {
        // SAFETY: the program's arguments.
        let outcome = unsafe { poll_by_switch(fds, count, &mut || Ok((milliseconds(timeout), None))) };
        or_real(outcome, || real(fds, count, timeout) as isize) as c_int
    }

    fn __poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int = |real| {
        // SAFETY: the same contract.
        unsafe { poll(fds, count, timeout) }
    }

    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const libc::timespec,
        mask: *const sigset_t) -> c_int
    = |real| {
        // SAFETY: the program's arguments.
        let outcome = unsafe {
            poll_by_switch(fds, count, &mut || Ok((timespec(timeout)?, SignalMask::of_program(mask)?)))
        };
        or_real(outcome, || real(fds, count, timeout, mask) as isize) as c_int
    }

    fn select(nfds: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval) -> c_int
    = |real| {
        let mut limit = None;
        let start = sanshim_core::sys::time::now();
        let mut read_limit = || {
            limit = timeval_at(timeout)?;
            Ok((limit, None))
        };
        // SAFETY: the program's arguments.
        let outcome = unsafe { select_by_switch(nfds, [read, write, except], &mut read_limit) };
        if let (Outcome::Done(_), Some(limit)) = (&outcome, limit) {
            // Linux tells how much time is left.
            let left = limit.saturating_sub(sanshim_core::sys::time::now() - start);
            let (tv_sec, tv_usec) = (left / 1_000_000_000, left % 1_000_000_000 / 1000);
            let left = timeval { tv_sec: tv_sec as i64, tv_usec: tv_usec as i64 };
            // As in the kernel, there is no error if it cannot be written.
            let _ = user::write(timeout, left);
        }
        or_real(outcome, || real(nfds, read, write, except, timeout) as isize) as c_int
    }

    fn __select(nfds: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval) -> c_int
    = |real| {
        // SAFETY: the same contract.
        unsafe { select(nfds, read, write, except, timeout) }
    }

    fn pselect(nfds: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *const libc::timespec, mask: *const sigset_t) -> c_int
    = |real| {
        // SAFETY: the program's arguments.
        let outcome = unsafe {
            select_by_switch(nfds, [read, write, except], &mut || {
                Ok((timespec(timeout)?, SignalMask::of_program(mask)?))
            })
        };
        or_real(outcome, || real(nfds, read, write, except, timeout, mask) as isize) as c_int
    }

    fn epoll_create(size: c_int) -> c_int = |real| {
        let fd = real(size);
        if fd >= 0 && !switch::is_borrowed() {
            sets::created(fd);
        }
        fd
    }

    fn epoll_create1(flags: c_int) -> c_int = |real| {
        let fd = real(flags);
        if fd >= 0 && !switch::is_borrowed() {
            sets::created(fd);
        }
        fd
    }

    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int
    = |real| {
        if !table::is_known(fd) {
            return real(set, operation, fd, event);
        }
        let wanted = if event.is_null() || operation == libc::EPOLL_CTL_DEL {
            None
        } else {
            match user::read(event) {
                Ok(e) => Some((e.events, e.u64)),
                Err(e) => return returned(Err(e)) as c_int,
            }
        };
        let outcome = sets::control(set, operation, fd, wanted, || {
            as_result(real(set, operation, fd, event) as isize).map(drop)
        });
        or_real(outcome, || real(set, operation, fd, event) as isize) as c_int
    }

    #[link_section = "sanshim_path"]
    fn epoll_wait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int
    = |real| {
        // SAFETY: the program's arguments.
        let outcome =
            unsafe { wait_for_events(set, events, most, milliseconds(timeout), None) };
        or_real(outcome, || real(set, events, most, timeout) as isize) as c_int
    }

    #[link_section = "sanshim_path"]
    fn epoll_pwait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int,
        mask: *const sigset_t) -> c_int
    = |real| {
        // SAFETY: the program's arguments.
        let outcome = unsafe {
            match SignalMask::of_program(mask) {
                Ok(mask) => wait_for_events(set, events, most, milliseconds(timeout), mask),
                // The kernel says so.
                Err(_) => Outcome::Pass,
            }
        };
        or_real(outcome, || real(set, events, most, timeout, mask) as isize) as c_int
    }

    fn epoll_pwait2(set: c_int, events: *mut epoll_event, most: c_int,
        timeout: *const libc::timespec, mask: *const sigset_t) -> c_int
    = |real| {
        // SAFETY: the program's arguments.
        let outcome = unsafe {
            wait_by_switch(set, events, most, &mut || {
                Ok((timespec(timeout)?, SignalMask::of_program(mask)?))
            })
        };
        or_real(outcome, || real(set, events, most, timeout, mask) as isize) as c_int
    }
}

/// A timeval as nanoseconds. `None`, for null, waits for ever. `Err` if the time is not valid, or cannot be read.
fn timeval_at(at: *const timeval) -> Result<Option<u64>> {
    if at.is_null() {
        return Ok(None);
    }
    let t = user::read(at)?;
    if t.tv_sec < 0 || t.tv_usec < 0 {
        return Err(Errno(libc::EINVAL));
    }
    let microseconds = (t.tv_usec as u64).saturating_mul(1000);
    Ok(Some((t.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(microseconds)))
}
