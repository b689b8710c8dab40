//! socket, listen, accept, connect, shutdown.

use super::{as_result, or_real};
use crate::real::hooks;
use libc::{c_int, sockaddr, socklen_t};
use sanshim_core::switch::{self, lifecycle, shutdown as core_shutdown, table};
use sanshim_core::sys::actions::done;
use sanshim_core::sys::net::{self, Target};
use sanshim_core::sys::process::may_be_borrowed;
use sanshim_core::sys::user::{self, Access};

/// Notes the descriptor that accept gave the program, and returns it.
fn accepted(listener: c_int, fd: c_int) -> c_int {
    if fd >= 0 {
        switch::accepted(listener, fd);
    }
    fd
}

hooks! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = |real| {
        let fd = real(domain, kind, protocol);
        let stream = kind & 0xf == libc::SOCK_STREAM;
        let tcp = protocol == 0 || protocol == libc::IPPROTO_TCP;
        if fd >= 0 && stream && tcp && matches!(domain, libc::AF_INET | libc::AF_INET6)
            && !may_be_borrowed()
        {
            lifecycle::created(fd);
        }
        fd
    }

    fn listen(fd: c_int, backlog: c_int) -> c_int = |real| {
        let result = real(fd, backlog);
        if result == 0 && !switch::is_borrowed() {
            switch::listening(fd);
        }
        result
    }

    fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int = |real| {
        accepted(fd, real(fd, address, length))
    }

    fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int
    = |real| {
        accepted(fd, real(fd, address, length, flags))
    }

    fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int = |real| {
        if !table::is_known(fd) {
            return done(real(fd, address, length));
        }
        let readable = user::check(address.cast(), length as usize, Access::Read).is_ok();
        // SAFETY: `length` bytes are readable.
        let target = if readable { unsafe { net::target(address, length) } } else { Target::Other };
        let outcome = switch::connect(fd, target, || {
            as_result(done(real(fd, address, length)) as isize).map(drop)
        });
        or_real(outcome, || done(real(fd, address, length)) as isize) as c_int
    }

    fn __connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int = |real| {
        // SAFETY: the same contract.
        unsafe { connect(fd, address, length) }
    }

    fn shutdown(fd: c_int, how: c_int) -> c_int = |real| {
        let Some(socket) = table::connected(fd) else {
            return done(real(fd, how));
        };
        or_real(core_shutdown::shutdown(&socket, how), || done(real(fd, how)) as isize) as c_int
    }
}
