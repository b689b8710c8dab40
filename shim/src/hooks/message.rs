//! sendmsg and recvmsg: on the SAN, and on other sockets, whose messages may take descriptors along.

use super::transfer::{
    after, checked, find_or_cancel, or_kernel, send_flagged, send_pieces_by_kernel,
};
use super::{addresses, returned};
use crate::real::hooks;
use libc::{c_int, msghdr, ssize_t};
use sanshim_core::switch::buffers::Buffers;
use sanshim_core::switch::table::Pinned;
use sanshim_core::switch::{passing, transfer, Outcome};
use sanshim_core::sys::actions::done;
use sanshim_core::sys::user::{self, Access};
use sanshim_core::sys::{cmsg, net, Errno, Result};

/// A flag that says that the message is a 32-bit program's. Others may not say so.
const MSG_CMSG_COMPAT: c_int = 1 << 31;

/// The header of a message that is to be sent or received.
fn header(message: *const msghdr, flags: c_int) -> Result<msghdr> {
    if flags & MSG_CMSG_COMPAT != 0 {
        return Err(Errno(libc::EINVAL));
    }
    let header = user::read(message)?;
    if !header.msg_name.is_null() && (header.msg_namelen as c_int) < 0 {
        return Err(Errno(libc::EINVAL));
    }
    Ok(header)
}

/// Sets the header as recvmsg leaves it after a receive with `flags` on a stream: there is no address and no control
/// data.
unsafe fn clear_received(message: *mut msghdr, flags: c_int) {
    // SAFETY: the program gave a message header.
    unsafe {
        if !(*message).msg_name.is_null() {
            (*message).msg_namelen = 0;
        }
        (*message).msg_controllen = 0;
        (*message).msg_flags = flags & (libc::MSG_OOB | libc::MSG_CMSG_CLOEXEC);
    }
}

pub(super) unsafe fn receive_message(
    socket: &Pinned,
    message: *mut msghdr,
    flags: c_int,
) -> Outcome {
    let writable = || user::check(message.cast(), size_of::<msghdr>(), Access::Write);
    let header = match header(message, flags).and_then(|header| writable().map(|()| header)) {
        Ok(header) => header,
        Err(e) => return Outcome::Done(Err(e)),
    };
    // SAFETY: the array stays as it is during the call.
    let buffers = unsafe { Buffers::from_raw(header.msg_iov, header.msg_iovlen) };
    let outcome = checked(buffers, |b| transfer::receive(socket, b, flags));
    if matches!(outcome, Outcome::Done(Ok(_))) {
        // SAFETY: as above.
        unsafe { clear_received(message, flags) };
    }
    outcome
}

pub(super) unsafe fn send_message(
    socket: &Pinned,
    message: *const msghdr,
    flags: c_int,
) -> Outcome {
    let addressed = |header: msghdr| addresses::of_message(&header).map(|()| header);
    let header = match header(message, flags).and_then(addressed) {
        Ok(header) => header,
        Err(e) => return Outcome::Done(Err(e)),
    };
    if header.msg_controllen > 0 {
        // The kernel judges the control messages. For that this sends them without bytes.
        let alone = msghdr { msg_iov: std::ptr::null_mut(), msg_iovlen: 0, ..header };
        // SAFETY: the program's own control messages.
        let judged = unsafe { net::send_message(socket.anchor(), &alone, flags) };
        if let Err(e) = judged {
            return Outcome::Done(Err(e));
        }
    }
    // SAFETY: the array stays as it is during the call.
    let buffers = unsafe { Buffers::from_raw(header.msg_iov, header.msg_iovlen) };
    send_flagged(socket, buffers, flags)
}

/// Bytes of a message.
pub(super) unsafe fn total(message: &msghdr) -> usize {
    // SAFETY: the program gave `msg_iovlen` buffers.
    (0..message.msg_iovlen).map(|i| unsafe { (*message.msg_iov.add(i)).iov_len }).sum()
}

/// The pieces of a message that is nothing else.
unsafe fn plain_pieces(message: *const msghdr) -> Option<Buffers<'static>> {
    let header = user::read(message).ok()?;
    let is_plain = header.msg_controllen == 0 && header.msg_name.is_null();
    // SAFETY: the program's array, which stays as it is during the call.
    is_plain.then(|| unsafe { Buffers::from_raw(header.msg_iov, header.msg_iovlen) }.ok())?
}

/// True if a message has control messages, or cannot be read.
pub(super) unsafe fn has_control(message: *const msghdr) -> bool {
    user::read(message).is_ok_and(|message| message.msg_controllen > 0)
}

/// sendmsg on a socket that is not on the SAN. It may take descriptors to another process that are.
unsafe fn pass_message(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
    real: impl Fn(c_int, *const msghdr, c_int) -> ssize_t,
) -> ssize_t {
    // SAFETY: the program's message, which stays as it is during the call.
    let control = unsafe { cmsg::of_message(message) };
    if control.is_some_and(|control| !passing::before_message(control)) {
        return returned(Err(Errno(libc::EOPNOTSUPP)));
    }
    done(real(fd, message, flags))
}

hooks! {
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t = |real| {
        match find_or_cancel(fd) {
            // SAFETY: the program gave a message header.
            None => unsafe { pass_message(fd, message, flags, real) },
            // SAFETY: as above.
            Some(socket) => or_kernel((&socket, fd), unsafe { send_message(&socket, message, flags) },
                // SAFETY: as above.
                |fd| send_pieces_by_kernel(&socket, || unsafe { plain_pieces(message) }, flags,
                    || real(fd, message, flags))),
        }
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = |real| {
        match find_or_cancel(fd) {
            None => real(fd, message, flags),
            // SAFETY: the program gave a message header.
            Some(socket) => or_kernel((&socket, fd), unsafe { receive_message(&socket, message, flags) },
                |fd| after(&socket, real(fd, message, flags))),
        }
    }
}
