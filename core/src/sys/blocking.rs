//! The system calls in which a thread may sleep.
//!
//! Under the shim these are libc's own functions, because they are cancellation points. So pthread_cancel works as on
//! plain TCP. Callers give back what they hold in destructors, because the call may be unwound: by a cancellation, or
//! when a signal handler leaves it by longjmp ([`jump`](super::jump)).

use super::event_array::EventArray;
use super::jump::sleeping;
use super::no_limit::{or_select, Sets};
use super::signal_mask::SignalMask;
use super::{errno, Errno, Fd, Result};
use std::sync::OnceLock;

/// libc's recv.
pub type Recv = unsafe extern "C-unwind" fn(i32, *mut libc::c_void, usize, i32) -> isize;
/// libc's ppoll.
pub type Ppoll = unsafe extern "C-unwind" fn(
    *mut libc::pollfd,
    libc::nfds_t,
    *const libc::timespec,
    *const libc::sigset_t,
) -> i32;
/// libc's pselect.
pub type Pselect = unsafe extern "C-unwind" fn(
    i32,
    *mut libc::fd_set,
    *mut libc::fd_set,
    *mut libc::fd_set,
    *const libc::timespec,
    *const libc::sigset_t,
) -> i32;
/// libc's epoll_pwait.
pub type EpollPwait = unsafe extern "C-unwind" fn(
    i32,
    *mut libc::epoll_event,
    i32,
    i32,
    *const libc::sigset_t,
) -> i32;

/// The functions to sleep in.
#[derive(Clone, Copy)]
pub struct Blocking {
    /// recv
    pub recv: Recv,
    /// ppoll
    pub ppoll: Ppoll,
    /// pselect
    pub pselect: Pselect,
    /// epoll_pwait
    pub epoll_pwait: EpollPwait,
}

#[link_section = "sanshim_words"]
static BLOCKING: OnceLock<Blocking> = OnceLock::new();

/// Installs libc's functions. Only the first call counts.
pub fn install(blocking: Blocking) {
    let _ = BLOCKING.set(blocking);
}

/// Calls a function of libc's. The function's errno becomes the result, and the program does not see it.
#[inline(always)]
fn sleep<T: TryInto<usize>>(call: impl FnOnce() -> T) -> Result<usize> {
    errno::kept(|| sleeping(call).try_into().map_err(|_| Errno(errno::get())))
}

/// recv into memory of ours.
pub fn receive(fd: Fd, to: &mut [u8], flags: i32) -> Result<usize> {
    match BLOCKING.get() {
        Some(b) => {
            // SAFETY: the slice is writable.
            sleep(|| unsafe { (b.recv)(fd, to.as_mut_ptr().cast(), to.len(), flags) })
        }
        None => super::net::recv(fd, to, flags),
    }
}

/// ppoll for a wait of the library's own, also of more descriptors than RLIMIT_NOFILE allows. The time-out is in nanoseconds.
/// `None` waits for ever. Zero comes early where there is no memory to wait with.
pub(crate) fn wait_for(
    fds: &mut [libc::pollfd],
    timeout: Option<u64>,
    mask: Option<SignalMask<'_>>,
) -> Result<usize> {
    let polled = poll(fds, timeout, mask);
    or_select(polled, fds, timeout, |sets, timeout| select(sets, timeout, mask))
}

fn select(sets: &mut Sets, timeout: Option<u64>, mask: Option<SignalMask<'_>>) -> Result<usize> {
    match BLOCKING.get() {
        Some(b) => {
            let mask = SignalMask::pointer(mask);
            let t = timeout.map(super::time::timespec);
            let t = t.as_ref().map_or(std::ptr::null(), |t| t as *const _);
            let (n, [read, write, except]) = sets.for_kernel();
            let [read, write, except] = [read.cast(), write.cast(), except.cast()];
            // SAFETY: the sets have room for `n` descriptors, and all other arguments are valid for the call.
            sleep(|| unsafe { (b.pselect)(n, read, write, except, t, mask) })
        }
        None => super::poll::select(sets, timeout, None),
    }
}

/// ppoll as the kernel has it. The time-out is in nanoseconds. `None` waits for ever.
pub fn poll(
    fds: &mut [libc::pollfd],
    timeout: Option<u64>,
    mask: Option<SignalMask<'_>>,
) -> Result<usize> {
    match BLOCKING.get() {
        Some(b) => {
            let mask = SignalMask::pointer(mask);
            let t = timeout.map(super::time::timespec);
            let t = t.as_ref().map_or(std::ptr::null(), |t| t as *const _);
            // SAFETY: all arguments are valid for the call.
            sleep(|| unsafe { (b.ppoll)(fds.as_mut_ptr(), fds.len() as u64, t, mask) })
        }
        None => super::poll::poll_within_limit(fds, timeout, None),
    }
}

/// epoll_pwait. The time-out is in nanoseconds, and rounded up to milliseconds. `None` waits for ever.
pub fn epoll_wait(
    set: Fd,
    events: &mut [libc::epoll_event],
    timeout: Option<u64>,
    mask: Option<SignalMask<'_>>,
) -> Result<usize> {
    epoll_wait_into(set, &mut events.into(), timeout, mask).map(|written| written.len())
}

/// The same, with an array that the kernel is to check. Gives what it has written.
#[link_section = "sanshim_path"]
pub(crate) fn epoll_wait_into<'a>(
    set: Fd,
    events: &'a mut EventArray<'_>,
    timeout: Option<u64>,
    mask: Option<SignalMask<'_>>,
) -> Result<&'a mut [libc::epoll_event]> {
    match BLOCKING.get() {
        Some(b) => {
            let mask = SignalMask::pointer(mask);
            let ms = timeout.map_or(-1, |t| t.div_ceil(1_000_000).min(i32::MAX as u64) as i32);
            let (at, most) = events.for_kernel();
            // SAFETY: the kernel checks the array, which nobody else has. All other arguments are valid for the call.
            let n = sleep(move || unsafe { (b.epoll_pwait)(set, at, most, ms, mask) })?;
            // SAFETY: it has.
            Ok(unsafe { events.written(n) })
        }
        None => {
            let events = events.checked()?;
            let n = super::poll::epoll_wait(set, events, timeout, None)?;
            Ok(&mut events[..n])
        }
    }
}
