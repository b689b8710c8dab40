//! sendmmsg and recvmmsg: several messages in a call.

use super::message::{has_control, receive_message, recvmsg, send_message, sendmsg, total};
use super::transfer::{find_or_cancel, or_kernel};
use super::{returned, timespec};
use crate::real::hooks;
use libc::{c_int, c_uint, mmsghdr, msghdr, ssize_t};
use sanshim_core::switch::{options, setup, Lane, Outcome};
use sanshim_core::sys::actions::done;
use sanshim_core::sys::time;
use sanshim_core::sys::user::{self, Access};

/// The most messages that the kernel sends in one call.
const MOST_SENT: c_uint = 1024;

/// sendmmsg, which sends one message after the other by `send`.
unsafe fn send_all(
    messages: *mut mmsghdr,
    count: c_uint,
    mut send: impl FnMut(*const msghdr) -> ssize_t,
) -> c_int {
    let count = count.min(MOST_SENT);
    for i in 0..count {
        let one = messages.wrapping_add(i as usize);
        let accessible = user::check(one.cast(), size_of::<mmsghdr>(), Access::Write);
        let sent = match accessible {
            // SAFETY: a header is there.
            Ok(()) => send(unsafe { &raw const (*one).msg_hdr }),
            Err(e) => returned(Err(e)),
        };
        if sent < 0 {
            return if i > 0 { i as c_int } else { -1 };
        }
        // SAFETY: writable, and the buffers have just been read.
        let wanted = unsafe {
            (*one).msg_len = sent as c_uint;
            total(&(*one).msg_hdr)
        };
        if (sent as usize) < wanted {
            return i as c_int + 1;
        }
    }
    count as c_int
}

/// recvmmsg, which receives one message after the other by `receive`. It is as in the kernel: the end of the stream is
/// a message like any other, and the time-out is only looked at after each message, so it ends no wait.
unsafe fn receive_all(
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut libc::timespec,
    mut receive: impl FnMut(*mut msghdr, c_int) -> ssize_t,
) -> c_int {
    let limit = match timespec(timeout) {
        Ok(limit) => limit,
        Err(e) => return returned(Err(e)) as c_int,
    };
    let (begun, mut left) = (time::now(), limit);
    let one_is_enough = flags & libc::MSG_WAITFORONE != 0;
    let (mut flags, mut received) = (flags & !libc::MSG_WAITFORONE, 0);
    while received < count {
        let one = messages.wrapping_add(received as usize);
        let accessible = user::check(one.cast(), size_of::<mmsghdr>(), Access::Write);
        let n = match accessible {
            // SAFETY: a header is there.
            Ok(()) => receive(unsafe { &raw mut (*one).msg_hdr }, flags),
            Err(e) => returned(Err(e)),
        };
        if n < 0 {
            break;
        }
        // SAFETY: writable.
        let is_urgent = unsafe {
            (*one).msg_len = n as c_uint;
            (*one).msg_hdr.msg_flags & libc::MSG_OOB != 0
        };
        received += 1;
        if one_is_enough {
            flags |= libc::MSG_DONTWAIT;
        }
        left = limit.map(|limit| limit.saturating_sub(time::now() - begun));
        if is_urgent || left == Some(0) {
            break;
        }
    }
    if received == 0 && count > 0 {
        return -1;
    }
    match left.filter(|_| received > 0) {
        Some(left) => match user::write(timeout, time::timespec(left)) {
            Ok(()) => received as c_int,
            Err(e) => returned(Err(e)) as c_int,
        },
        None => received as c_int,
    }
}

hooks! {
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int
    = |real| {
        let Some(socket) = find_or_cancel(fd) else {
            let header = |i| messages.wrapping_add(i as usize).cast::<msghdr>();
            // SAFETY: the program gave `count` headers.
            if (0..count.min(MOST_SENT)).any(|i| unsafe { has_control(header(i)) }) {
                // SAFETY: as above.
                return unsafe {
                    send_all(messages, count, |message| sendmsg(fd, message, flags))
                };
            }
            return done(real(fd, messages, count, flags));
        };
        // SAFETY: as above.
        unsafe {
            send_all(messages, count, |message| {
                or_kernel((&socket, fd), send_message(&socket, message, flags), |fd| sendmsg(fd, message, flags))
            })
        }
    }

    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int,
        timeout: *mut libc::timespec) -> c_int
    = |real| {
        let Some(socket) = find_or_cancel(fd) else {
            return real(fd, messages, count, flags, timeout);
        };
        if setup::advance(&socket, 0) == Lane::Tcp || options::follow_to_kernel(&socket) {
            // If the kernel keeps an error, only its own call tells the error first.
            return real(fd, messages, count, flags, timeout);
        }
        let mut is_first = true;
        // SAFETY: as above.
        unsafe {
            receive_all(messages, count, flags, timeout, |message, flags| {
                let is_first = std::mem::take(&mut is_first);
                // An error of the socket is reported before what can be read.
                if is_first && flags & libc::MSG_ERRQUEUE == 0 {
                    if let Some(e) = options::take_error(&socket) {
                        return returned(Err(e));
                    }
                }
                let outcome = receive_message(&socket, message, flags);
                if let (Outcome::Done(Err(e)), false) = (&outcome, is_first) {
                    options::put_error_back(&socket, *e);
                }
                or_kernel((&socket, fd), outcome, |fd| recvmsg(fd, message, flags))
            })
        }
    }
}
