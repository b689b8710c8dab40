//! Asks the kernel about the other end of a TCP connection of this host.

use super::hidden::Spare;
use super::{call, net, Fd, Result};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};

pub(super) const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// What every question begins with (nlmsghdr).
#[repr(C)]
pub(super) struct QuestionHeader {
    length: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    pid: u32,
}

impl QuestionHeader {
    /// The header of a `Question`, with a number that no other question has.
    pub(super) fn of<Question>() -> Self {
        Self::with_flags::<Question>(libc::NLM_F_REQUEST)
    }

    /// The header of a [`SocketQuestion`] for all sockets.
    pub(super) fn of_dump() -> Self {
        Self::with_flags::<SocketQuestion>(libc::NLM_F_REQUEST | libc::NLM_F_DUMP)
    }

    fn with_flags<Question>(flags: i32) -> Self {
        static SEQUENCE: AtomicU32 = AtomicU32::new(0);
        QuestionHeader {
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
    let (at, length, flags) =
        (&raw const *question as usize, size_of::<Question>(), libc::MSG_DONTWAIT);
    call!(sendto, fd, at, length, flags, 0, 0).map(drop)
}

/// Asks the kernel, which answers before the call returns. Gives the length of the reply. `question` begins with
/// `header`. Its number tells this answer from those to questions that were given up.
pub(super) fn ask<Question>(
    fd: Fd,
    question: &Question,
    header: &QuestionHeader,
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
pub(super) struct SocketQuestion {
    header: QuestionHeader,
    family: u8,
    protocol: u8,
    extensions: u8,
    pad: u8,
    states: u32,
    id: SocketId,
}

impl SocketQuestion {
    /// About those in states that a mask names.
    pub(super) fn new(header: QuestionHeader, family: u8, states: u32, id: SocketId) -> Self {
        let protocol = libc::IPPROTO_TCP as u8;
        SocketQuestion { header, family, protocol, extensions: 0, pad: 0, states, id }
    }
}

/// A TCP socket as the kernel sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketOwner {
    /// User who owns the socket.
    pub uid: u32,
    /// Inode; zero while no process has accepted the connection.
    pub(crate) inode: u32,
    /// What SO_COOKIE says of the socket. No other socket ever has it.
    pub(crate) cookie: u64,
    /// The kernel's number of its state (TCP_ESTABLISHED and so on). Where no connection has the addresses the kernel
    /// gives a listener that would accept one.
    pub(crate) state: u8,
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
/// `like`. Finds one that is bound to an interface if that is the loopback device, or `like` is bound to the same one, as
/// both ends between link-local addresses are.
pub(crate) fn lookup(like: Fd, local: SocketAddr, peer: SocketAddr) -> Result<Option<SocketOwner>> {
    const LOOPBACK: u32 = 1;
    let ask = |interface| KERNEL.with(like, |fd| lookup_through(fd, local, peer, interface))?;
    let mut found = ask(0)?;
    for interface in [net::bound_interface(like), LOOPBACK] {
        if !found.is_some_and(SocketOwner::is_connected) && interface != 0 {
            found = ask(interface)?.or(found);
        }
    }
    Ok(found)
}

impl SocketOwner {
    /// False for a listener.
    pub(crate) fn is_connected(self) -> bool {
        const LISTEN: u8 = 10;
        self.state != LISTEN
    }
}

fn lookup_through(
    fd: Fd,
    local: SocketAddr,
    peer: SocketAddr,
    interface: u32,
) -> Result<Option<SocketOwner>> {
    // A dual-stack listener's connections are IPv6 sockets with IPv4-mapped addresses.
    let families = if local.is_ipv4() { [false, true].as_slice() } else { [true].as_slice() };
    let mut found = Ok(None);
    for mapped in families {
        let id = id(local, peer, interface, *mapped);
        let family = if *mapped { libc::AF_INET6 } else { libc::AF_INET };
        found = ask_owner(fd, family as u8, id);
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

fn id(local: SocketAddr, peer: SocketAddr, interface: u32, as_ipv6: bool) -> SocketId {
    SocketId {
        source_port: local.port().to_be_bytes(),
        destination_port: peer.port().to_be_bytes(),
        source: octets(local.ip(), as_ipv6),
        destination: octets(peer.ip(), as_ipv6),
        interface,
        ..SocketId::ANY
    }
}

fn ask_owner(fd: Fd, family: u8, id: SocketId) -> Result<Option<SocketOwner>> {
    let request = SocketQuestion::new(QuestionHeader::of::<SocketQuestion>(), family, u32::MAX, id);
    let mut reply = [0u8; 1024];
    let n = ask(fd, &request, &request.header, &mut reply)?;
    Ok(reply.get(..n).and_then(decode))
}

/// The kernel's answer: nlmsghdr, inet_diag_msg, attributes.
fn decode(reply: &[u8]) -> Option<SocketOwner> {
    const MESSAGE: usize = size_of::<QuestionHeader>();
    const COOKIE: usize = MESSAGE + 4 + size_of::<SocketId>() - 8;
    // After the cookie: expires, rqueue, wqueue, uid, inode.
    const UID: usize = COOKIE + 8 + 12;
    let word = |at: usize| {
        let bytes = reply.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_ne_bytes(bytes))
    };
    if u16::from_ne_bytes([*reply.get(4)?, *reply.get(5)?]) != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    Some(SocketOwner {
        uid: word(UID)?,
        inode: word(UID + 4)?,
        cookie: u64::from(word(COOKIE)?) | u64::from(word(COOKIE + 4)?) << 32,
        state: *reply.get(MESSAGE + 1)?,
    })
}

/// Feeds an answer of the kernel of arbitrary bytes.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    let _ = decode(data);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn the_other_end_is_the_socket_with_its_cookie() {
        for (at, to) in [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1")] {
            let listener = TcpListener::bind((at, 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            let connector = TcpStream::connect((to, port)).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            let ours = connector.local_addr().unwrap();
            let theirs = SocketAddr::new(to.parse().unwrap(), port);
            let owner = || lookup(connector.as_raw_fd(), theirs, ours).unwrap().unwrap();
            assert_eq!(owner().cookie, net::cookie(accepted.as_raw_fd()).unwrap());
            assert!(owner().is_connected());
            // The kernel finds one that is bound to an interface only there.
            if net::set_option(
                accepted.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_BINDTODEVICE,
                b"lo\0",
            )
            .is_ok()
            {
                assert!(owner().is_connected());
            }
            // No process has this connection, but there is a listener for it.
            let nobody = SocketAddr::new(ours.ip(), 1);
            let found = lookup(connector.as_raw_fd(), theirs, nobody).unwrap();
            assert!(!found.is_some_and(SocketOwner::is_connected));
        }
    }

    #[test]
    fn an_answer_that_is_cut_off_is_none() {
        let mut reply = [0; 300];
        reply[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        assert!(decode(&reply).is_some());
        for length in 0..88 {
            assert_eq!(decode(&reply[..length]), None);
        }
    }
}
