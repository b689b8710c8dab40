//! Sending and receiving.

use super::{or_real, returned};
use crate::real::{hooks, set_errno};
use libc::{
    c_int, c_uint, c_void, iovec, mmsghdr, msghdr, off64_t, off_t, size_t, sockaddr, socklen_t,
    ssize_t,
};
use sanshim_core::switch::buffers::Buffers;
use sanshim_core::switch::table::{self, Pinned};
use sanshim_core::switch::{self, exec, files, transfer, Outcome};
use sanshim_core::sys::user::{self, Access};
use sanshim_core::sys::{file, net, Errno, Result};

/// The socket behind `fd` if its bytes go over the SAN.
#[inline]
fn on_san(fd: c_int) -> Option<Pinned> {
    let socket = find(fd)?;
    cancellation_point();
    Some(socket)
}

#[inline]
fn find(fd: c_int) -> Option<Pinned> {
    table::san(fd).or_else(|| if table::is_known(fd) { switch::connecting(fd) } else { None })
}

extern "C-unwind" {
    fn pthread_testcancel();
}

/// All transfers are cancellation points, whether they sleep or not.
#[inline]
fn cancellation_point() {
    // SAFETY: unwinds if the thread was cancelled; callers hold nothing that minds.
    unsafe { pthread_testcancel() }
}

#[inline]
fn one(buffer: *const c_void, length: size_t) -> [iovec; 1] {
    [iovec { iov_base: buffer.cast_mut(), iov_len: length.min(isize::MAX as usize) }]
}

fn checked(buffers: Result<Buffers>, run: impl FnOnce(Buffers) -> Outcome) -> Outcome {
    match buffers {
        Ok(buffers) => run(buffers),
        Err(e) => Outcome::Done(Err(e)),
    }
}

#[inline]
fn send_one(socket: &Pinned, buffer: *const c_void, length: size_t, flags: c_int) -> Outcome {
    checked(Buffers::new(&one(buffer, length)), |b| transfer::send(socket, b, flags))
}

#[inline]
fn receive_one(socket: &Pinned, buffer: *mut c_void, length: size_t, flags: c_int) -> Outcome {
    checked(Buffers::new(&one(buffer, length)), |b| transfer::receive(socket, b, flags))
}

/// A recvmsg's header after a receive on a stream: no address, no control data.
unsafe fn clear_received(message: *mut msghdr) {
    // SAFETY: the program gave a message header.
    unsafe {
        (*message).msg_namelen = 0;
        (*message).msg_controllen = 0;
        (*message).msg_flags = 0;
    }
}

/// Brings connections whose descriptors the message hands to another process back to TCP; true if
/// one has to stay on the SAN.
unsafe fn passes_san_socket(message: *const msghdr) -> bool {
    if user::read(message).is_err() {
        return false;
    }
    // SAFETY: the program gave a message header with well-formed control messages.
    unsafe {
        if (*message).msg_controllen == 0 || (*message).msg_control.is_null() {
            return false;
        }
        let mut c = libc::CMSG_FIRSTHDR(message);
        while !c.is_null() {
            if (*c).cmsg_level == libc::SOL_SOCKET && (*c).cmsg_type == libc::SCM_RIGHTS {
                let count = ((*c).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize)) / 4;
                for i in 0..count {
                    let fd = libc::CMSG_DATA(c).cast::<c_int>().add(i).read_unaligned();
                    if !exec::pass(fd) {
                        return true;
                    }
                }
            }
            c = libc::CMSG_NXTHDR(message.cast_mut(), c);
        }
    }
    false
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
        unsafe { clear_received(message) };
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

/// readv and writev call a negative or too large count EINVAL where sendmsg says EMSGSIZE.
unsafe fn vector<'a>(buffers: *const iovec, count: c_int) -> Result<Buffers<'a>> {
    if !(0..=1024).contains(&count) {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: the program gave `count` buffers.
    unsafe { Buffers::from_raw(buffers, count as usize) }
}

hooks! {
    fn send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t = |real| {
        match on_san(fd) {
            None => real(fd, buffer, length, flags),
            Some(socket) => or_real(send_one(&socket, buffer, length, flags),
                || real(fd, buffer, length, flags)),
        }
    }

    fn __send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t
    = |real| {
        // SAFETY: the same contract.
        unsafe { send(fd, buffer, length, flags) }
    }

    fn sendto(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int,
        to: *const sockaddr, to_length: socklen_t) -> ssize_t
    = |real| {
        match on_san(fd) {
            None => real(fd, buffer, length, flags, to, to_length),
            // As the kernel does: the address is ignored on a connected stream.
            Some(socket) => or_real(send_one(&socket, buffer, length, flags),
                || real(fd, buffer, length, flags, to, to_length)),
        }
    }

    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t = |real| {
        match on_san(fd) {
            None => {
                // SAFETY: the program gave a message header.
                if unsafe { passes_san_socket(message) } {
                    return returned(Err(Errno(libc::EOPNOTSUPP)));
                }
                real(fd, message, flags)
            }
            // SAFETY: as above.
            Some(socket) => or_real(unsafe { send_message(&socket, message, flags) },
                || real(fd, message, flags)),
        }
    }

    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int
    = |real| {
        let Some(socket) = on_san(fd) else {
            for i in 0..count as usize {
                // SAFETY: the program gave `count` headers.
                if unsafe { passes_san_socket(&raw const (*messages.add(i)).msg_hdr) } {
                    return returned(Err(Errno(libc::EOPNOTSUPP))) as c_int;
                }
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

    fn write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t = |real| {
        match on_san(fd) {
            None => real(fd, buffer, length),
            Some(socket) => or_real(send_one(&socket, buffer, length, 0),
                || real(fd, buffer, length)),
        }
    }

    fn __write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t = |real| {
        // SAFETY: the same contract.
        unsafe { write(fd, buffer, length) }
    }

    fn writev(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t = |real| {
        match on_san(fd) {
            None => real(fd, buffers, count),
            // SAFETY: the program gave `count` buffers.
            Some(socket) => or_real(checked(unsafe { vector(buffers, count) },
                |b| transfer::send(&socket, b, 0)), || real(fd, buffers, count)),
        }
    }

    fn pwritev2(fd: c_int, buffers: *const iovec, count: c_int, offset: off64_t, flags: c_int)
        -> ssize_t
    = |real| {
        match on_san(fd) {
            // Without an offset it is writev.
            Some(_) if offset == -1 && flags == 0 => {
                // SAFETY: the same contract.
                unsafe { writev(fd, buffers, count) }
            }
            _ => real(fd, buffers, count, offset, flags),
        }
    }

    fn pwritev64v2(fd: c_int, buffers: *const iovec, count: c_int, offset: off64_t, flags: c_int)
        -> ssize_t
    = |real| {
        // SAFETY: the same contract.
        unsafe { pwritev2(fd, buffers, count, offset, flags) }
    }

    fn recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t = |real| {
        match on_san(fd) {
            None => real(fd, buffer, length, flags),
            Some(socket) => or_real(receive_one(&socket, buffer, length, flags),
                || real(fd, buffer, length, flags)),
        }
    }

    fn recvfrom(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int,
        from: *mut sockaddr, from_length: *mut socklen_t) -> ssize_t
    = |real| {
        let Some(socket) = on_san(fd) else {
            return real(fd, buffer, length, flags, from, from_length);
        };
        let outcome = receive_one(&socket, buffer, length, flags);
        if matches!(outcome, Outcome::Done(Ok(_))) && !from.is_null() && !from_length.is_null() {
            // SAFETY: the program gave room for the length. A stream's bytes have no address.
            unsafe { *from_length = 0 };
        }
        or_real(outcome, || real(fd, buffer, length, flags, from, from_length))
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = |real| {
        match on_san(fd) {
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

    fn read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t = |real| {
        match on_san(fd) {
            None => real(fd, buffer, length),
            Some(socket) => or_real(checked(Buffers::new(&one(buffer, length)),
                |b| transfer::read(&socket, b)), || real(fd, buffer, length)),
        }
    }

    fn __read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t = |real| {
        // SAFETY: the same contract.
        unsafe { read(fd, buffer, length) }
    }

    fn readv(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t = |real| {
        match on_san(fd) {
            None => real(fd, buffers, count),
            // SAFETY: the program gave `count` buffers.
            Some(socket) => or_real(checked(unsafe { vector(buffers, count) },
                |b| transfer::read(&socket, b)), || real(fd, buffers, count)),
        }
    }

    fn preadv2(fd: c_int, buffers: *const iovec, count: c_int, offset: off64_t, flags: c_int)
        -> ssize_t
    = |real| {
        match on_san(fd) {
            // Without an offset it is readv.
            Some(_) if offset == -1 && flags == 0 => {
                // SAFETY: the same contract.
                unsafe { readv(fd, buffers, count) }
            }
            _ => real(fd, buffers, count, offset, flags),
        }
    }

    fn preadv64v2(fd: c_int, buffers: *const iovec, count: c_int, offset: off64_t, flags: c_int)
        -> ssize_t
    = |real| {
        // SAFETY: the same contract.
        unsafe { preadv2(fd, buffers, count, offset, flags) }
    }

    fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t = |real| {
        let Some(socket) = on_san(out) else {
            // A socket's stream can not be mapped: the kernel says so for the anchor as well.
            return real(out, from, offset, count);
        };
        if !offset.is_null()
            && user::check(offset.cast(), size_of::<off_t>(), Access::Write).is_err()
        {
            return returned(Err(Errno(libc::EFAULT)));
        }
        // SAFETY: null, or writable.
        let outcome = files::send_file(&socket, from, unsafe { offset.as_mut() }, count);
        or_real(outcome, || real(out, from, offset, count))
    }

    fn sendfile64(out: c_int, from: c_int, offset: *mut off64_t, count: size_t) -> ssize_t
    = |real| {
        // SAFETY: the same contract; off_t is 64 bits wide.
        unsafe { sendfile(out, from, offset, count) }
    }

    fn splice(from: c_int, from_offset: *mut off64_t, to: c_int, to_offset: *mut off64_t,
        length: size_t, flags: c_uint) -> ssize_t
    = |real| {
        let pass = || real(from, from_offset, to, to_offset, length, flags);
        if let Some(socket) = on_san(to) {
            if !file::is_pipe(from) {
                return returned(Err(Errno(libc::EINVAL)));
            }
            if let Some(e) = misplaced(to_offset, from_offset) {
                return returned(Err(e));
            }
            return or_real(files::splice_in(&socket, from, length, flags), pass);
        }
        if let Some(socket) = on_san(from) {
            if !file::is_pipe(to) {
                return returned(Err(Errno(libc::EINVAL)));
            }
            if let Some(e) = misplaced(from_offset, to_offset) {
                return returned(Err(e));
            }
            return or_real(files::splice_out(&socket, to, length, flags), pass);
        }
        pass()
    }
}

/// What the kernel says of a splice with an offset for the socket, or for the pipe.
fn misplaced(socket: *mut off64_t, pipe: *mut off64_t) -> Option<Errno> {
    if !pipe.is_null() {
        Some(Errno(libc::ESPIPE))
    } else if !socket.is_null() {
        Some(Errno(libc::EINVAL))
    } else {
        None
    }
}

/// Bytes of a message.
unsafe fn total(message: &msghdr) -> usize {
    // SAFETY: the program gave `msg_iovlen` buffers.
    (0..message.msg_iovlen).map(|i| unsafe { (*message.msg_iov.add(i)).iov_len }).sum()
}

/// Used by entries that report their own kind of failure.
pub(super) fn fail(e: i32) -> isize {
    set_errno(e);
    -1
}
