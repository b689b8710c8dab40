//! Debug builds check that no system call under the structure lock can wait for somebody else. A stranger who made it
//! wait would stop every thread of the program that opens, closes or accepts.
//!
//! Some calls wait always, or as their flags say. For the others the check asks the kernel: an open waits for a FIFO's
//! other end or for a lease, a close for a socket that lingers, a connect, an accept, a read or a write on what blocks.
//!
//! The check leaves out two kinds. A thread waits for a lock of the library under this one in an order and for a holder
//! that lives ([`lock`](super::lock)). A call by a path, or that asks about a file, waits where a file system of the
//! network or of a program does not answer. A change that adds such a call names only what is the kernel's own, or what
//! [`folder::open_within`](super::folder::open_within) opens.

use super::lock_order::{held, LockRank};
use std::ffi::c_int;
use syscalls::{syscall, Sysno};

/// Before a system call. Ends the process if that may wait while the lock is held.
pub(crate) fn check(call: Sysno, arguments: &[usize]) {
    if held::has(LockRank::Structure) && may_wait(call, arguments) {
        held::end_process(format_args!("{call:?}{arguments:x?} may wait"));
    }
}

fn may_wait(call: Sysno, arguments: &[usize]) -> bool {
    let argument = |at: usize| arguments.get(at).copied().unwrap_or(0);
    match call {
        Sysno::openat => !opens_at_once(argument(2) as c_int),
        Sysno::openat2 => !opens_at_once(flags_of_openat2(argument(2))),
        Sysno::close => lingers(argument(0)),
        // The file that has the number is closed.
        Sysno::dup3 => lingers(argument(1)),
        Sysno::connect | Sysno::accept4 => blocks(argument(0)),
        Sysno::sendto | Sysno::recvfrom => {
            blocks(argument(0)) && argument(3) as c_int & libc::MSG_DONTWAIT == 0
        }
        Sysno::sendmsg | Sysno::recvmsg => {
            blocks(argument(0)) && argument(2) as c_int & libc::MSG_DONTWAIT == 0
        }
        Sysno::read | Sysno::write => makes_wait(argument(0)),
        Sysno::preadv2 | Sysno::pwritev2 => {
            makes_wait(argument(0)) && argument(5) as c_int & libc::RWF_NOWAIT == 0
        }
        Sysno::splice => argument(5) & libc::SPLICE_F_NONBLOCK as usize == 0,
        Sysno::fcntl => matches!(argument(1) as c_int, libc::F_SETLKW | libc::F_OFD_SETLKW),
        Sysno::ppoll | Sysno::rt_sigtimedwait => !is_now(argument(2)),
        Sysno::pselect6 => !is_now(argument(4)),
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

/// True for folders, new files, and what else opens without a wait for a process that has it.
fn opens_at_once(flags: c_int) -> bool {
    const AT_ONCE: c_int = libc::O_NONBLOCK | libc::O_PATH;
    const NEW: c_int = libc::O_CREAT | libc::O_EXCL;
    flags & AT_ONCE != 0 || flags & libc::O_DIRECTORY != 0 || flags & NEW == NEW
}

fn flags_of_openat2(how: usize) -> c_int {
    let how = how as *const libc::open_how;
    // SAFETY: null, or what the caller is about to hand to the kernel.
    unsafe { how.as_ref() }.map_or(0, |how| how.flags as c_int)
}

/// True of a pipe, a socket or a device that blocks. Files and those of /proc never do.
fn makes_wait(fd: usize) -> bool {
    // SAFETY: plain data, of which zero is a valid value.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills one struct.
    let asked = unsafe { syscall!(Sysno::fstat, fd, &raw mut found as usize) };
    let kind = found.st_mode & libc::S_IFMT;
    asked.is_ok() && matches!(kind, libc::S_IFIFO | libc::S_IFSOCK | libc::S_IFCHR) && blocks(fd)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{file, net, pipe};
    use std::os::fd::AsRawFd;

    #[test]
    fn calls_that_may_wait_are_told_from_those_that_do_not() {
        let (read_end, write_end) = pipe::pipe().unwrap();
        let [from, to] = [read_end, write_end].map(|fd| fd as usize);
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let now = (&raw const now) as usize;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let linger = libc::linger { l_onoff: 1, l_linger: 9 };
        net::set_option(one.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, &linger).unwrap();
        let slow = one.as_raw_fd() as usize;
        let flags = |flags: c_int| {
            // SAFETY: plain data.
            let mut how: libc::open_how = unsafe { std::mem::zeroed() };
            how.flags = flags as u64;
            how
        };
        let (at_once, waits) = (flags(libc::O_NONBLOCK), flags(libc::O_RDONLY));
        let [at_once, waits] = [&at_once, &waits].map(|how| std::ptr::from_ref(how) as usize);
        let no_wait = [libc::RWF_NOWAIT as usize, libc::SPLICE_F_NONBLOCK as usize];
        for (call, arguments, expected) in [
            (Sysno::read, [from, 0, 0, 0, 0, 0], true),
            (Sysno::write, [to, 0, 0, 0, 0, 0], true),
            (Sysno::preadv2, [from, 0, 0, 0, 0, 0], true),
            (Sysno::preadv2, [from, 0, 0, 0, 0, no_wait[0]], false),
            (Sysno::splice, [from, 0, to, 0, 1, 0], true),
            (Sysno::splice, [from, 0, to, 0, 1, no_wait[1]], false),
            (Sysno::dup3, [from, slow, 0, 0, 0, 0], true),
            (Sysno::dup3, [from, to, 0, 0, 0, 0], false),
            (Sysno::fcntl, [to, libc::F_OFD_SETLKW as usize, 0, 0, 0, 0], true),
            (Sysno::fcntl, [to, libc::F_OFD_SETLK as usize, 0, 0, 0, 0], false),
            (Sysno::openat2, [0, 0, waits, 0, 0, 0], true),
            (Sysno::openat2, [0, 0, at_once, 0, 0, 0], false),
            (Sysno::openat, [0, 0, libc::O_CREAT as usize, 0, 0, 0], true),
            (Sysno::openat, [0, 0, (libc::O_CREAT | libc::O_EXCL) as usize, 0, 0, 0], false),
            (Sysno::pselect6, [0, 0, 0, 0, 0, 0], true),
            (Sysno::pselect6, [0, 0, 0, 0, now, 0], false),
            (Sysno::rt_sigtimedwait, [0, 0, 0, 0, 0, 0], true),
            (Sysno::rt_sigtimedwait, [0, 0, now, 0, 0, 0], false),
        ] {
            assert_eq!(may_wait(call, &arguments), expected, "{call:?}{arguments:x?}");
        }
        let file = file::open_to_read(c"/proc/self/stat").unwrap();
        assert!(!may_wait(Sysno::read, &[file as usize]));
        file::set_status_flags(read_end, libc::O_NONBLOCK).unwrap();
        assert!(!may_wait(Sysno::read, &[from]));
        [file, read_end, write_end].into_iter().for_each(file::close);
    }
}
