//! Asks the kernel about the other end of a TCP connection of this host.

use super::hidden::Spare;
use super::{call, net, Fd, Result};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};

pub(super) const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// What every question begins with (nlmsghdr).
#[repr(C)]
pub(super) struct Header {
    length: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    pid: u32,
}

impl Header {
    /// The header of a `Question`, with a number that no other question has.
    pub(super) fn of<Question>() -> Self {
        Self::with_flags::<Question>(libc::NLM_F_REQUEST)
    }

    /// The header of a [`Request`] for all sockets.
    pub(super) fn of_dump() -> Self {
        Self::with_flags::<Request>(libc::NLM_F_REQUEST | libc::NLM_F_DUMP)
    }

    fn with_flags<Question>(flags: i32) -> Self {
        static SEQUENCE: AtomicU32 = AtomicU32::new(0);
        Header {
            length: size_of::<Question>() as u32,
            kind: SOCK_DIAG_BY_FAMILY,
            flags: flags as u16,
            sequence: SEQUENCE.fetch_add(1, Ordering::Relaxed),
            pid: 0,
        }
    }
}

/// Puts a question to the kernel.
pub(super) fn send<Question>(fd: Fd, question: &Question) -> Result<()> {
    call!(sendto, fd, &raw const *question as usize, size_of::<Question>(), 0, 0, 0).map(drop)
}

/// Asks the kernel, which answers before the call returns. Gives the length of the reply. `question` begins with
/// `header`, whose number tells this answer from those to questions that were given up.
pub(super) fn ask<Question>(
    fd: Fd,
    question: &Question,
    header: &Header,
    reply: &mut [u8; 1024],
) -> Result<usize> {
    send(fd, question)?;
    loop {
        let n = net::recv(fd, reply, libc::MSG_DONTWAIT)?;
        if reply[8..12] == header.sequence.to_ne_bytes() {
            return Ok(n);
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SocketId {
    source_port: [u8; 2],
    destination_port: [u8; 2],
    source: [u8; 16],
    destination: [u8; 16],
    interface: u32,
    cookie: [u32; 2],
}

impl SocketId {
    /// For all sockets.
    pub(super) const ANY: Self = SocketId {
        source_port: [0; 2],
        destination_port: [0; 2],
        source: [0; 16],
        destination: [0; 16],
        interface: 0,
        cookie: [u32::MAX; 2],
    };
}

/// A question about TCP sockets (inet_diag_req_v2).
#[repr(C)]
pub(super) struct Request {
    header: Header,
    family: u8,
    protocol: u8,
    extensions: u8,
    pad: u8,
    states: u32,
    id: SocketId,
}

impl Request {
    /// About those in states that a mask names.
    pub(super) fn new(header: Header, family: u8, states: u32, id: SocketId) -> Self {
        let protocol = libc::IPPROTO_TCP as u8;
        Request { header, family, protocol, extensions: 0, pad: 0, states, id }
    }
}

/// A TCP socket as the kernel sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// User who owns the socket.
    pub uid: u32,
    /// Inode; zero while no process has accepted the connection.
    pub(crate) inode: u32,
}

/// The socket by which the kernel is asked.
pub(super) static KERNEL: Spare = Spare::new(open);

/// A socket to ask the kernel by.
pub(super) fn open() -> Result<Fd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    net::socket(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG)
}

/// In a fork child: the socket is its parent's.
pub(crate) fn after_fork_in_child() {
    KERNEL.forget();
}

/// Looks up the socket whose own address is `local` and whose peer is `peer`, in the network namespace of the socket
/// `like`.
pub(crate) fn lookup(like: Fd, local: SocketAddr, peer: SocketAddr) -> Result<Option<Owner>> {
    KERNEL.with(like, |fd| lookup_through(fd, local, peer))?
}

fn lookup_through(fd: Fd, local: SocketAddr, peer: SocketAddr) -> Result<Option<Owner>> {
    // A dual-stack listener's connections are IPv6 sockets with IPv4-mapped addresses.
    let families = if local.is_ipv4() { [false, true].as_slice() } else { [true].as_slice() };
    let mut found = Ok(None);
    for mapped in families {
        found = ask_owner(fd, local, peer, *mapped);
        if !matches!(found, Ok(None)) {
            break;
        }
    }
    found
}

fn octets(ip: IpAddr, as_ipv6: bool) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) if as_ipv6 => ip.to_ipv6_mapped().octets(),
        IpAddr::V4(ip) => {
            let mut all = [0; 16];
            all[..4].copy_from_slice(&ip.octets());
            all
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn ask_owner(fd: Fd, local: SocketAddr, peer: SocketAddr, as_ipv6: bool) -> Result<Option<Owner>> {
    let family = if as_ipv6 { libc::AF_INET6 } else { libc::AF_INET } as u8;
    let id = SocketId {
        source_port: local.port().to_be_bytes(),
        destination_port: peer.port().to_be_bytes(),
        source: octets(local.ip(), as_ipv6),
        destination: octets(peer.ip(), as_ipv6),
        ..SocketId::ANY
    };
    let request = Request::new(Header::of::<Request>(), family, u32::MAX, id);
    let mut reply = [0u8; 1024];
    let word = |reply: &[u8; 1024], at: usize| {
        u32::from_ne_bytes([reply[at], reply[at + 1], reply[at + 2], reply[at + 3]])
    };
    let n = ask(fd, &request, &request.header, &mut reply)?;
    // The reply is nlmsghdr (16), then inet_diag_msg: 4 bytes, SocketId (48), expires, rqueue, wqueue, uid, inode.
    let kind = u16::from_ne_bytes([reply[4], reply[5]]);
    const UID: usize = 16 + 4 + 48 + 12;
    if kind != SOCK_DIAG_BY_FAMILY || n < UID + 8 {
        return Ok(None);
    }
    Ok(Some(Owner { uid: word(&reply, UID), inode: word(&reply, UID + 4) }))
}
