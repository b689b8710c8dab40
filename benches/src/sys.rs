//! System calls through libc, with typed errors. A function that a shim may hook is called by its plain libc name here and in
//! `socket`, never by a raw system call.

use crate::error::BenchError;
use crate::options::{BenchRole, Placement};
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU64;
use std::{mem, ptr};

/// Turns the result of a call that gives a negative number on failure into a `Result`.
pub(crate) fn check(call: &'static str, result: c_int) -> Result<c_int, BenchError> {
    if result < 0 {
        return Err(BenchError::last(call));
    }
    Ok(result)
}

/// The CPUs this process may run on.
fn cpus() -> Result<Vec<usize>, BenchError> {
    // SAFETY: cpu_set_t is plain bits, all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes at most the given size into `set`.
    let result = unsafe { libc::sched_getaffinity(0, mem::size_of_val(&set), &mut set) };
    check("sched_getaffinity", result)?;
    // SAFETY: every index is below CPU_SETSIZE.
    Ok((0..libc::CPU_SETSIZE as usize)
        .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) })
        .collect())
}

/// The CPU that an end is pinned to, if it is pinned.
pub(crate) fn cpu_for(role: BenchRole, placement: Placement) -> Result<Option<usize>, BenchError> {
    let cpus = cpus()?;
    match placement {
        Placement::Free => Ok(None),
        Placement::OneCore => Ok(cpus.first().copied()),
        Placement::TwoCores if cpus.len() < 2 => {
            Err(BenchError::Unavailable("two cores need two CPUs in the affinity mask".into()))
        }
        Placement::TwoCores => Ok(Some(cpus[usize::from(role == BenchRole::Server)])),
    }
}

/// Pins the calling thread. Async-signal-safe, because it runs between fork and exec.
pub(crate) fn pin(cpu: usize) -> std::io::Result<()> {
    // SAFETY: cpu_set_t is plain bits; the index comes from an affinity mask, so it is in range.
    let result = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, mem::size_of_val(&set), &set)
    };
    if result < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

/// Has the kernel end this process when its parent dies, so that a killed run leaves nothing behind.
pub(crate) fn die_with_parent() -> std::io::Result<()> {
    // SAFETY: PR_SET_PDEATHSIG takes a signal number and touches no memory.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

/// Lets the process open as many descriptors as the hard limit allows.
pub(crate) fn raise_descriptor_limit() -> std::io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls get a valid rlimit.
    let result = unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) < 0 {
            -1
        } else {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit)
        }
    };
    if result < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

/// An eventfd, and an epoll set that has it, edge-triggered.
pub(crate) fn edge_triggered_eventfd() -> Result<(OwnedFd, OwnedFd), BenchError> {
    // SAFETY: neither call takes memory.
    let (event, set) = unsafe { (libc::eventfd(0, libc::EFD_NONBLOCK), libc::epoll_create1(0)) };
    // SAFETY: made just now, and nobody else's.
    let event = unsafe { OwnedFd::from_raw_fd(check("eventfd", event)?) };
    // SAFETY: as above.
    let set = unsafe { OwnedFd::from_raw_fd(check("epoll_create1", set)?) };
    let mut wanted = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
    // SAFETY: `wanted` is live.
    let added = unsafe {
        libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, event.as_raw_fd(), &mut wanted)
    };
    check("epoll_ctl", added)?;
    Ok((event, set))
}

/// Adds one to an eventfd.
pub(crate) fn ring(event: RawFd) -> Result<(), BenchError> {
    let one = 1_u64;
    // SAFETY: eight readable bytes.
    match unsafe { libc::write(event, (&raw const one).cast(), 8) } {
        8 => Ok(()),
        _ => Err(BenchError::last("write")),
    }
}

/// Waits until something in the set is ready.
pub(crate) fn epoll_wait_one(set: RawFd) -> Result<(), BenchError> {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: room for one event.
    check("epoll_wait", unsafe { libc::epoll_wait(set, &mut event, 1, -1) }).map(drop)
}

/// A futex operation on the low half of a word.
fn futex(word: &AtomicU64, operation: c_int, value: u32) -> Result<(), BenchError> {
    // SAFETY: the word is live and aligned; the half at its address is the low one, as on every machine this runs on.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation,
            value,
            ptr::null::<libc::timespec>(),
        )
    };
    // The word had changed already.
    if result < 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EAGAIN) {
        return Err(BenchError::last("futex"));
    }
    Ok(())
}

/// Sleeps while the low half of the word is that of `value`.
pub(crate) fn futex_wait(word: &AtomicU64, value: u64) -> Result<(), BenchError> {
    futex(word, libc::FUTEX_WAIT, value as u32)
}

/// Wakes a process that sleeps there.
pub(crate) fn futex_wake(word: &AtomicU64) -> Result<(), BenchError> {
    futex(word, libc::FUTEX_WAKE, 1)
}
