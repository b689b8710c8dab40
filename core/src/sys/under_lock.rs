//! Debug builds check that no system call under the structure lock can wait for somebody else. A stranger who made it wait would
//! stop every thread of the program that opens, closes or accepts.
//!
//! Some calls wait always, or as their flags say. Of others the kernel is asked: an open waits for a FIFO's other end or for a
//! lease, a close for a socket that lingers, a connect or an accept on a socket that blocks.

use std::cell::Cell;
use std::ffi::c_int;
use syscalls::{syscall, Sysno};

thread_local! {
    static HELD: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread has the lock from now on, or not any more.
pub(crate) fn note(held: bool) {
    HELD.set(held);
}

/// Before a system call. Ends the process if that may wait while the lock is held.
pub(crate) fn check(call: Sysno, arguments: &[usize]) {
    if HELD.get() && may_wait(call, arguments) {
        HELD.set(false);
        let trace = std::backtrace::Backtrace::force_capture();
        eprintln!("sanshim: {call:?}{arguments:x?} may wait under the structure lock\n{trace}");
        std::process::abort();
    }
}

fn may_wait(call: Sysno, arguments: &[usize]) -> bool {
    let argument = |at: usize| arguments.get(at).copied().unwrap_or(0);
    match call {
        Sysno::openat => !opens_at_once(argument(2) as c_int),
        Sysno::close => lingers(argument(0)),
        Sysno::connect | Sysno::accept4 => blocks(argument(0)),
        Sysno::sendto | Sysno::recvfrom => {
            blocks(argument(0)) && argument(3) as c_int & libc::MSG_DONTWAIT == 0
        }
        Sysno::sendmsg | Sysno::recvmsg => {
            blocks(argument(0)) && argument(2) as c_int & libc::MSG_DONTWAIT == 0
        }
        Sysno::ppoll => !is_now(argument(2)),
        Sysno::epoll_pwait => argument(3) as c_int != 0,
        Sysno::epoll_pwait2 => !is_now(argument(3)),
        Sysno::nanosleep
        | Sysno::clock_nanosleep
        | Sysno::process_vm_readv
        | Sysno::process_vm_writev
        | Sysno::wait4 => true,
        _ => false,
    }
}

/// Folders, and what else is opened without a wait for whoever has it.
fn opens_at_once(flags: c_int) -> bool {
    const AT_ONCE: c_int = libc::O_NONBLOCK | libc::O_PATH;
    flags & AT_ONCE != 0 || flags & libc::O_DIRECTORY != 0
}

fn lingers(fd: usize) -> bool {
    let mut linger = libc::linger { l_onoff: 0, l_linger: 0 };
    let mut length = size_of::<libc::linger>() as libc::socklen_t;
    let (at, length_at) = ((&raw mut linger) as usize, (&raw mut length) as usize);
    let (level, option) = (libc::SOL_SOCKET as usize, libc::SO_LINGER as usize);
    // SAFETY: both are there for the call.
    let asked = unsafe { syscall!(Sysno::getsockopt, fd, level, option, at, length_at) };
    asked.is_ok() && linger.l_onoff != 0 && linger.l_linger != 0
}

fn blocks(fd: usize) -> bool {
    // SAFETY: no pointers.
    let flags = unsafe { syscall!(Sysno::fcntl, fd, libc::F_GETFL as usize) };
    flags.is_ok_and(|flags| flags as c_int & libc::O_NONBLOCK == 0)
}

/// True if the time to wait is zero.
fn is_now(time: usize) -> bool {
    let time = time as *const libc::timespec;
    // SAFETY: null, or what the caller is about to hand to the kernel.
    unsafe { time.as_ref() }.is_some_and(|time| time.tv_sec == 0 && time.tv_nsec == 0)
}
