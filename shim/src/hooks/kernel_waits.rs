//! select, poll and epoll_wait in the kernel's own forms, as programs make them by number. These tell in the time-out how
//! much of it is left, take a mask along with its size, and say EFAULT where libc's functions would touch what is not there.

use super::readiness::{poll_by_switch, select_by_switch, wait_by_switch};
use super::{milliseconds, or_real, timespec};
use libc::{c_int, fd_set, sigset_t, timeval};
use sanshim_core::switch::Outcome;
use sanshim_core::sys::signal_mask::SignalMask;
use sanshim_core::sys::{time, user, Errno, Result};

/// The arguments of a call.
type Arguments = [usize; 6];

/// A mask, and how large it is: nothing but the kernel's size will do.
unsafe fn mask<'a>(at: usize, size: usize) -> Result<Option<SignalMask<'a>>> {
    if at != 0 && size != SignalMask::SIZE {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: the program's mask, which stays during the call.
    unsafe { SignalMask::of_program(at as *const sigset_t) }
}

/// A timeval as nanoseconds: also one with more than a second's microseconds.
fn normalized(at: *const timeval) -> Result<Option<u64>> {
    const SECOND: i64 = 1_000_000;
    if at.is_null() {
        return Ok(None);
    }
    let t = user::read(at)?;
    let (seconds, rest) = (t.tv_sec.wrapping_add(t.tv_usec / SECOND), t.tv_usec % SECOND);
    match (u64::try_from(seconds), u64::try_from(rest)) {
        (Ok(s), Ok(us)) => Ok(Some(s.saturating_mul(1_000_000_000).saturating_add(us * 1000))),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// A call that tells how much of its time is left.
struct Clock {
    begun: u64,
    limit: Option<u64>,
}

impl Clock {
    fn start() -> Self {
        Self { begun: time::now(), limit: None }
    }

    /// Notes how long the call may take.
    fn limited<T>(&mut self, how: (Option<u64>, T)) -> (Option<u64>, T) {
        self.limit = how.0;
        how
    }

    /// What is left after a call of the switch. `None` if there is nothing to say: there is no limit, or it was zero.
    fn left(&self, outcome: &Outcome) -> Option<u64> {
        let limit = self.limit.filter(|limit| *limit > 0 && matches!(outcome, Outcome::Done(_)))?;
        Some(limit.saturating_sub(time::now() - self.begun))
    }
}

/// # Safety
/// The arguments are the program's own. So for all of these.
#[link_section = ".text.unlikely.sanshim_numbers"]
pub(super) unsafe fn poll([fds, count, timeout, ..]: Arguments, pass: &dyn Fn() -> isize) -> isize {
    let mut how = || Ok((milliseconds(timeout as c_int), None));
    // SAFETY: the caller's promise. The kernel takes 32 bits of the count.
    or_real(unsafe { poll_by_switch(fds as _, (count as u32).into(), &mut how) }, pass)
}

#[link_section = ".text.unlikely.sanshim_numbers"]
pub(super) unsafe fn ppoll(
    [fds, count, timeout, set, size, _]: Arguments,
    pass: &dyn Fn() -> isize,
) -> isize {
    let (at, mut clock) = (timeout as *mut libc::timespec, Clock::start());
    // SAFETY: the caller's promise.
    let outcome = unsafe {
        poll_by_switch(fds as _, (count as u32).into(), &mut || {
            Ok(clock.limited((timespec(at)?, mask(set, size)?)))
        })
    };
    if let Some(left) = clock.left(&outcome) {
        // As in the kernel, there is no error if it cannot be written. So below.
        let _ = user::write(at, time::timespec(left));
    }
    or_real(outcome, pass)
}

fn sets(read: usize, write: usize, except: usize) -> [*mut fd_set; 3] {
    [read as _, write as _, except as _]
}

#[link_section = ".text.unlikely.sanshim_numbers"]
pub(super) unsafe fn select(
    [nfds, read, write, except, timeout, _]: Arguments,
    pass: &dyn Fn() -> isize,
) -> isize {
    let (at, mut clock) = (timeout as *mut timeval, Clock::start());
    // SAFETY: the caller's promise.
    let outcome = unsafe {
        select_by_switch(nfds as c_int, sets(read, write, except), &mut || {
            Ok(clock.limited((normalized(at)?, None)))
        })
    };
    if let Some(left) = clock.left(&outcome) {
        let libc::timespec { tv_sec, tv_nsec } = time::timespec(left);
        let _ = user::write(at, timeval { tv_sec, tv_usec: tv_nsec / 1000 });
    }
    or_real(outcome, pass)
}

#[link_section = ".text.unlikely.sanshim_numbers"]
pub(super) unsafe fn pselect6(
    [nfds, read, write, except, timeout, sixth]: Arguments,
    pass: &dyn Fn() -> isize,
) -> isize {
    let (at, mut clock) = (timeout as *mut libc::timespec, Clock::start());
    let mask = || match sixth {
        0 => Ok(None),
        // It points to the mask's address and its size.
        sixth => {
            let [set, size] = user::read(sixth as *const [usize; 2])?;
            // SAFETY: the caller's promise.
            unsafe { mask(set, size) }
        }
    };
    // SAFETY: the caller's promise.
    let outcome = unsafe {
        select_by_switch(nfds as c_int, sets(read, write, except), &mut || {
            Ok(clock.limited((timespec(at)?, mask()?)))
        })
    };
    if let Some(left) = clock.left(&outcome) {
        let _ = user::write(at, time::timespec(left));
    }
    or_real(outcome, pass)
}

/// epoll_wait, and epoll_pwait with a mask and its size.
#[link_section = ".text.unlikely.sanshim_numbers"]
pub(super) unsafe fn epoll_wait(
    [set, events, most, timeout, signals, size]: Arguments,
    pass: &dyn Fn() -> isize,
) -> isize {
    // SAFETY: the caller's promise.
    let outcome = unsafe {
        wait_by_switch(set as c_int, events as _, most as c_int, &mut || {
            Ok((milliseconds(timeout as c_int), mask(signals, size)?))
        })
    };
    or_real(outcome, pass)
}

#[link_section = ".text.unlikely.sanshim_numbers"]
pub(super) unsafe fn epoll_pwait2(
    [set, events, most, timeout, signals, size]: Arguments,
    pass: &dyn Fn() -> isize,
) -> isize {
    // SAFETY: the caller's promise.
    let outcome = unsafe {
        wait_by_switch(set as c_int, events as _, most as c_int, &mut || {
            Ok((timespec(timeout as _)?, mask(signals, size)?))
        })
    };
    or_real(outcome, pass)
}
