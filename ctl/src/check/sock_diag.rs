//! Asks the kernel about TCP sockets (sock_diag). The shim learns in this way who owns the other end of a connection.

use std::io::{self, Error};
use std::os::fd::OwnedFd;

use rustix::net::{
    netlink, recv, send, socket_with, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType,
};

use super::Finding;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// The states that are asked for: only listening sockets.
const LISTENING: u32 = 1 << 10;
/// Bytes of `struct nlmsghdr` and of `struct inet_diag_req_v2`.
const HEADER_SIZE: usize = 16;
const REQUEST_SIZE: usize = 56;

/// Asks for the listening TCP sockets, and looks at the kind of the answer.
pub(super) fn query() -> Finding {
    ask().map(|()| "the kernel tells the owners of sockets".to_owned()).map_err(|error| {
        format!(
            "the kernel does not tell the owners of sockets: {error}; load tcp_diag or allow it"
        )
    })
}

fn ask() -> io::Result<()> {
    let (family, kind, flags) = (AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC);
    let socket = socket_with(family, kind, flags, Some(netlink::SOCK_DIAG))?;
    send(&socket, &request(), SendFlags::empty())?;
    answer(&socket)
}

fn request() -> [u8; HEADER_SIZE + REQUEST_SIZE] {
    let mut request = [0; HEADER_SIZE + REQUEST_SIZE];
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    let length = request.len() as u32;
    request[..4].copy_from_slice(&length.to_ne_bytes());
    request[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&flags.to_ne_bytes());
    request[HEADER_SIZE] = libc::AF_INET as u8;
    request[HEADER_SIZE + 1] = libc::IPPROTO_TCP as u8;
    request[HEADER_SIZE + 4..HEADER_SIZE + 8].copy_from_slice(&LISTENING.to_ne_bytes());
    request
}

/// Reads the first message. It is well if it is a socket or the end of the list. An error has its number.
fn answer(socket: &OwnedFd) -> io::Result<()> {
    let mut message = [0; 8192];
    let (received, _) = recv(socket, &mut message, RecvFlags::empty())?;
    if received < HEADER_SIZE + 4 {
        return Err(Error::other("the answer is cut off"));
    }
    let kind = u16::from_ne_bytes([message[4], message[5]]);
    let code = i32::from_ne_bytes([message[16], message[17], message[18], message[19]]);
    match i32::from(kind) {
        // The end of the list has an error too, if the protocol has no module.
        libc::NLMSG_ERROR | libc::NLMSG_DONE if code < 0 => Err(Error::from_raw_os_error(-code)),
        _ => Ok(()),
    }
}
