//! sendmsg, recvmsg and the calls for several messages: on the SAN, and where messages take descriptors along.

use super::transfer::{cancellation_point, checked, on_san};
use super::{or_real, returned};
use crate::real::hooks;
use libc::{c_int, c_uint, iovec, mmsghdr, msghdr, ssize_t, timespec};
use sanshim_core::switch::buffers::Buffers;
use sanshim_core::switch::passing::{self, Sent};
use sanshim_core::switch::table::Pinned;
use sanshim_core::switch::{arrival, transfer, Outcome};
use sanshim_core::sys::user::{self, Access};
use sanshim_core::sys::{net, time};

/// A recvmsg's header after a receive with `flags` on a stream: no address, no control data.
unsafe fn clear_received(message: *mut msghdr, flags: c_int) {
    // SAFETY: the program gave a message header.
    unsafe {
        (*message).msg_namelen = 0;
        (*message).msg_controllen = 0;
        (*message).msg_flags = flags & libc::MSG_OOB;
    }
}

unsafe fn receive_message(socket: &Pinned, message: *mut msghdr, flags: c_int) -> Outcome {
    if let Err(e) = user::check(message.cast(), size_of::<msghdr>(), Access::Write) {
        return Outcome::Done(Err(e));
    }
    // SAFETY: a writable message header.
    let buffers = unsafe { Buffers::from_raw((*message).msg_iov, (*message).msg_iovlen) };
    let outcome = checked(buffers, |b| transfer::receive(socket, b, flags));
    if matches!(outcome, Outcome::Done(Ok(_))) {
        // SAFETY: as above.
        unsafe { clear_received(message, flags) };
    }
    outcome
}

unsafe fn send_message(socket: &Pinned, message: *const msghdr, flags: c_int) -> Outcome {
    let header = match user::read(message) {
        Ok(header) => header,
        Err(e) => return Outcome::Done(Err(e)),
    };
    if header.msg_controllen > 0 {
        // The kernel judges the control messages, on a message without bytes.
        let alone = msghdr { msg_iov: std::ptr::null_mut(), msg_iovlen: 0, ..header };
        // SAFETY: the program's own control messages.
        let judged = unsafe { net::send_message(socket.anchor(), &alone, flags) };
        if let Err(e) = judged {
            return Outcome::Done(Err(e));
        }
    }
    // SAFETY: the array stays as it is during the call.
    let buffers = unsafe { Buffers::from_raw(header.msg_iov, header.msg_iovlen) };
    checked(buffers, |b| transfer::send(socket, b, flags))
}

/// Bytes of a message.
unsafe fn total(message: &msghdr) -> usize {
    // SAFETY: the program gave `msg_iovlen` buffers.
    (0..message.msg_iovlen).map(|i| unsafe { (*message.msg_iov.add(i)).iov_len }).sum()
}

/// True if a message has control messages, or cannot be read.
unsafe fn has_control(message: *const msghdr) -> bool {
    user::read(message).is_ok_and(|message| message.msg_controllen > 0)
}

/// sendmsg where the socket is not ours: descriptors that are get to another process.
unsafe fn pass_message(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
    real: impl Fn(c_int, *const msghdr, c_int) -> ssize_t,
) -> ssize_t {
    // SAFETY: the program's message.
    if !unsafe { has_control(message) } {
        return real(fd, message, flags);
    }
    cancellation_point();
    // SAFETY: as above.
    let sent = match unsafe { passing::send(fd, message, flags) } {
        Sent::Kernel => return real(fd, message, flags),
        Sent::Failed(e) => return returned(Err(e)),
        Sent::Part(sent) => sent,
    };
    // SAFETY: the kernel has just read it.
    let header = unsafe { message.read_unaligned() };
    // SAFETY: as above.
    if sent < unsafe { total(&header) } && passing::may_block(fd, flags) {
        // SAFETY: as above.
        let mut rest = unsafe { rest_of(&header, sent) };
        let (iov, count) = (rest.as_mut_ptr(), rest.len());
        let more = msghdr {
            msg_iov: iov,
            msg_iovlen: count,
            msg_control: std::ptr::null_mut(),
            msg_controllen: 0,
            ..header
        };
        return sent as ssize_t + real(fd, &more, flags).max(0);
    }
    sent as ssize_t
}

/// The buffers of a message after its first `sent` bytes.
unsafe fn rest_of(message: &msghdr, mut sent: usize) -> Vec<iovec> {
    let mut rest = Vec::new();
    for i in 0..message.msg_iovlen {
        // SAFETY: the program gave `msg_iovlen` buffers.
        let one = unsafe { message.msg_iov.add(i).read_unaligned() };
        let skipped = sent.min(one.iov_len);
        sent -= skipped;
        if one.iov_len > skipped {
            let base = one.iov_base.cast::<u8>().wrapping_add(skipped).cast();
            rest.push(iovec { iov_base: base, iov_len: one.iov_len - skipped });
        }
    }
    rest
}

/// sendmmsg, a message at a time.
unsafe fn pass_messages(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    // As many as the kernel takes at most.
    let count = count.min(1024);
    for i in 0..count {
        // SAFETY: the program gave `count` headers.
        let one = unsafe { messages.add(i as usize) };
        // SAFETY: as above.
        let sent = unsafe { sendmsg(fd, &raw const (*one).msg_hdr, flags) };
        if sent < 0 {
            return if i > 0 { i as c_int } else { -1 };
        }
        // SAFETY: as above.
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

/// recvmmsg, a message at a time, with the kernel's rules for its time-out: looked at after each message.
unsafe fn receive_messages(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: the program gave a timespec, or null.
    let limit = match unsafe { super::timespec(timeout) } {
        Ok(limit) => limit,
        Err(e) => return returned(Err(e)) as c_int,
    };
    let (begun, count) = (time::now(), count.min(1024));
    let one_is_enough = flags & libc::MSG_WAITFORONE != 0;
    let (mut flags, mut received) = (flags & !libc::MSG_WAITFORONE, 0);
    while received < count {
        // SAFETY: the program gave `count` headers.
        let one = unsafe { messages.add(received as usize) };
        // SAFETY: as above.
        let n = unsafe { recvmsg(fd, &raw mut (*one).msg_hdr, flags) };
        if n < 0 {
            return if received > 0 { received as c_int } else { -1 };
        }
        // SAFETY: as above.
        unsafe { (*one).msg_len = n as c_uint };
        received += 1;
        if one_is_enough {
            flags |= libc::MSG_DONTWAIT;
        }
        if let Some(limit) = limit {
            let left = limit.saturating_sub(time::now() - begun);
            let _ = user::write(timeout, time::timespec(left));
            if left == 0 {
                break;
            }
        }
    }
    received as c_int
}

hooks! {
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t = |real| {
        match on_san(fd) {
            // SAFETY: the program gave a message header.
            None => unsafe { pass_message(fd, message, flags, real) },
            // SAFETY: as above.
            Some(socket) => or_real(unsafe { send_message(&socket, message, flags) },
                || real(fd, message, flags)),
        }
    }

    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int
    = |real| {
        let Some(socket) = on_san(fd) else {
            // SAFETY: the program gave `count` headers.
            if (0..count as usize).any(|i| unsafe { has_control(&raw const (*messages.add(i)).msg_hdr) }) {
                // SAFETY: as above.
                return unsafe { pass_messages(fd, messages, count, flags) };
            }
            return real(fd, messages, count, flags);
        };
        let mut sent = 0;
        while sent < count {
            // SAFETY: the program gave `count` headers.
            let (one, wanted) = unsafe {
                let one = messages.add(sent as usize);
                (one, total(&(*one).msg_hdr))
            };
            // SAFETY: as above.
            match unsafe { send_message(&socket, &raw const (*one).msg_hdr, flags) } {
                Outcome::Done(Ok(n)) => {
                    // SAFETY: as above.
                    unsafe { (*one).msg_len = n as c_uint };
                    sent += 1;
                    if n < wanted {
                        break;
                    }
                }
                Outcome::Done(Err(e)) if sent == 0 => return returned(Err(e)) as c_int,
                Outcome::Pass if sent == 0 => return real(fd, messages, count, flags),
                _ => break,
            }
        }
        sent as c_int
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = |real| {
        match on_san(fd) {
            None if arrival::asks(fd, message) => {
                // SAFETY: the program gave a message header.
                unsafe { arrival::receive(fd, message, flags, |message, flags| real(fd, message, flags)) }
            }
            None => real(fd, message, flags),
            // SAFETY: the program gave a message header.
            Some(socket) => or_real(unsafe { receive_message(&socket, message, flags) },
                || real(fd, message, flags)),
        }
    }

    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int,
        timeout: *mut libc::timespec) -> c_int
    = |real| {
        let Some(socket) = on_san(fd) else {
            // SAFETY: the program gave `count` headers.
            if count > 0 && arrival::asks(fd, unsafe { &raw const (*messages).msg_hdr }) {
                // SAFETY: as above.
                return unsafe { receive_messages(fd, messages, count, flags, timeout) };
            }
            return real(fd, messages, count, flags, timeout);
        };
        let mut received = 0;
        let mut flags = flags;
        while received < count {
            // SAFETY: the program gave `count` headers.
            let one = unsafe { messages.add(received as usize) };
            // SAFETY: as above.
            match unsafe { receive_message(&socket, &raw mut (*one).msg_hdr, flags) } {
                Outcome::Done(Ok(n)) => {
                    // SAFETY: as above.
                    unsafe { (*one).msg_len = n as c_uint };
                    received += 1;
                    if n == 0 {
                        break;
                    }
                }
                Outcome::Done(Err(e)) if received == 0 => return returned(Err(e)) as c_int,
                Outcome::Pass if received == 0 => {
                    return real(fd, messages, count, flags, timeout);
                }
                _ => break,
            }
            if flags & libc::MSG_WAITFORONE != 0 {
                flags |= libc::MSG_DONTWAIT;
            }
        }
        received as c_int
    }
}
