//! socket, listen, accept, connect, shutdown.

use super::{as_result, or_real};
use crate::real::hooks;
use libc::{c_int, sockaddr, socklen_t};
use sanshim_core::switch::{self, lifecycle, shutdown, table, trust};
use sanshim_core::sys::file;
use sanshim_core::sys::net::{self, Target};
use sanshim_core::sys::user::{self, Access};

/// A Unix socket that nobody but this program can have yet: made close-on-exec, which it stays only if the program
/// asked for that.
fn mark(fd: c_int, flags: c_int) {
    trust::mark(fd);
    if flags & libc::SOCK_CLOEXEC == 0 {
        let _ = file::set_close_on_exec(fd, false);
    }
}

hooks! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = |real| {
        if domain == libc::AF_UNIX {
            let fd = real(domain, kind | libc::SOCK_CLOEXEC, protocol);
            if fd >= 0 {
                mark(fd, kind);
            }
            return fd;
        }
        let fd = real(domain, kind, protocol);
        let stream = kind & 0xf == libc::SOCK_STREAM;
        let tcp = protocol == 0 || protocol == libc::IPPROTO_TCP;
        if fd >= 0 && stream && tcp && matches!(domain, libc::AF_INET | libc::AF_INET6)
            && !switch::is_borrowed()
        {
            lifecycle::created(fd);
        }
        fd
    }

    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, fds: *mut c_int) -> c_int
    = |real| {
        if domain != libc::AF_UNIX {
            return real(domain, kind, protocol, fds);
        }
        let result = real(domain, kind | libc::SOCK_CLOEXEC, protocol, fds);
        if result == 0 {
            // SAFETY: the kernel has just written two there.
            let both = unsafe { fds.cast::<[c_int; 2]>().read_unaligned() };
            both.into_iter().for_each(|fd| mark(fd, kind));
        }
        result
    }

    fn listen(fd: c_int, backlog: c_int) -> c_int = |real| {
        let result = real(fd, backlog);
        if result == 0 && !switch::is_borrowed() {
            switch::listening(fd);
        }
        result
    }

    fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int = |real| {
        if table::is_known(fd) {
            switch::serving(fd);
        } else {
            // SAFETY: the same contract.
            return unsafe { accept4(fd, address, length, 0) };
        }
        let accepted = real(fd, address, length);
        if accepted >= 0 && table::is_known(fd) {
            switch::accepted(fd, accepted);
        }
        accepted
    }

    fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int
    = |real| {
        if table::is_known(fd) {
            switch::serving(fd);
        } else if trust::is_unix(fd) {
            let accepted = real(fd, address, length, flags | libc::SOCK_CLOEXEC);
            if accepted >= 0 {
                mark(accepted, flags);
            }
            return accepted;
        }
        let accepted = real(fd, address, length, flags);
        if accepted >= 0 && table::is_known(fd) {
            switch::accepted(fd, accepted);
        }
        accepted
    }

    fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int = |real| {
        if !table::is_known(fd) {
            return real(fd, address, length);
        }
        let readable = user::check(address.cast(), length as usize, Access::Read).is_ok();
        // SAFETY: `length` bytes are readable.
        let target = if readable { unsafe { net::target(address, length) } } else { Target::Other };
        let outcome = switch::connect(fd, target, || {
            as_result(real(fd, address, length) as isize).map(drop)
        });
        or_real(outcome, || real(fd, address, length) as isize) as c_int
    }

    fn __connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int = |real| {
        // SAFETY: the same contract.
        unsafe { connect(fd, address, length) }
    }

    fn shutdown(fd: c_int, how: c_int) -> c_int = |real| {
        let Some(socket) = table::connected(fd).or_else(|| switch::connecting(fd)) else {
            return real(fd, how);
        };
        or_real(shutdown::shutdown(&socket, how), || real(fd, how) as isize) as c_int
    }
}
