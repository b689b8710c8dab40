//! The functions that compilers call instead of the plain ones with `_FORTIFY_SOURCE`.

use super::readiness::{poll, ppoll};
use super::transfer::{read, recv, recvfrom};
use crate::real::hooks;
use libc::{c_int, c_void, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t};

// If the check fails, libc's own function ends the program as it always does.
hooks! {
    fn __read_chk(fd: c_int, buffer: *mut c_void, length: size_t, room: size_t) -> ssize_t
    = |real| {
        if length > room {
            return real(fd, buffer, length, room);
        }
        // SAFETY: the same contract.
        unsafe { read(fd, buffer, length) }
    }

    fn __recv_chk(fd: c_int, buffer: *mut c_void, length: size_t, room: size_t, flags: c_int)
        -> ssize_t
    = |real| {
        if length > room {
            return real(fd, buffer, length, room, flags);
        }
        // SAFETY: the same contract.
        unsafe { recv(fd, buffer, length, flags) }
    }

    fn __recvfrom_chk(fd: c_int, buffer: *mut c_void, length: size_t, room: size_t, flags: c_int,
        from: *mut sockaddr, from_length: *mut socklen_t) -> ssize_t
    = |real| {
        if length > room {
            return real(fd, buffer, length, room, flags, from, from_length);
        }
        // SAFETY: the same contract.
        unsafe { recvfrom(fd, buffer, length, flags, from, from_length) }
    }

    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int
    = |real| {
        if room / size_of::<pollfd>() < count as usize {
            return real(fds, count, timeout, room);
        }
        // SAFETY: the same contract.
        unsafe { poll(fds, count, timeout) }
    }

    fn __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const libc::timespec,
        mask: *const libc::sigset_t, room: size_t) -> c_int
    = |real| {
        if room / size_of::<pollfd>() < count as usize {
            return real(fds, count, timeout, mask, room);
        }
        // SAFETY: the same contract.
        unsafe { ppoll(fds, count, timeout, mask) }
    }
}
