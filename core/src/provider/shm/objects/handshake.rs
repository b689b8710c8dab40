//! How two processes of one host find each other, and what they say until there is a connection.
//!
//! A listener is a packet socket in the abstract Unix namespace. That namespace belongs to the network namespace, as
//! the listener's address does. The connecting process sends the connection's memory and one end of its doorbell with
//! its request. The answers are packets of the same socket, and the socket's end is the connection's end. Only
//! processes of one user meet, also where the listener was root's when it began to listen.

use crate::provider::interface::{Error, ProviderResult};
use crate::provider::software::inherited::Descriptor;
use crate::sys::packet::{self, Name};
use crate::sys::{process, Errno, Fd};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The first bytes of a packet. The last one is the version of this, and of the shared memory's layout.
const MAGIC: [u8; 8] = *b"shmqp\0\0\x01";
/// Most bytes of private data.
pub(super) const PRIVATE_DATA: usize = 64;
/// Magic, kind, family, port, address.
const HEADER: usize = 8 + 1 + 1 + 2 + 16;
const LARGEST: usize = HEADER + PRIVATE_DATA;

/// What a packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum PacketKind {
    /// Connector: with the connection's memory and its listener's end of the doorbell.
    Request = 1,
    /// Acceptor: agrees.
    Accept = 2,
    /// Acceptor: refuses.
    Reject = 3,
    /// Connector: the connection is there.
    Established = 4,
}

/// A packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) kind: PacketKind,
    /// Its sender's address, as that says.
    pub(super) from: SocketAddr,
    pub(super) private_data: Vec<u8>,
}

impl Packet {
    fn encode(kind: PacketKind, from: SocketAddr, private_data: &[u8]) -> ([u8; LARGEST], usize) {
        let mut bytes = [0; LARGEST];
        let n = private_data.len().min(PRIVATE_DATA);
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8] = kind as u8;
        bytes[10..12].copy_from_slice(&from.port().to_be_bytes());
        match from.ip() {
            IpAddr::V4(ip) => {
                bytes[9] = 4;
                bytes[12..16].copy_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                bytes[9] = 6;
                bytes[12..28].copy_from_slice(&ip.octets());
            }
        }
        bytes[HEADER..HEADER + n].copy_from_slice(&private_data[..n]);
        (bytes, HEADER + n)
    }

    /// `None`: of another version, or nonsense.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, private_data) = bytes.split_first_chunk::<HEADER>()?;
        if header[..8] != MAGIC || private_data.len() > PRIVATE_DATA {
            return None;
        }
        let kinds =
            [PacketKind::Request, PacketKind::Accept, PacketKind::Reject, PacketKind::Established];
        let kind = kinds.into_iter().find(|&kind| kind as u8 == header[8])?;
        let port = u16::from_be_bytes([header[10], header[11]]);
        let ip = match header[9] {
            4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(&header[12..16]).ok()?)),
            6 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(&header[12..28]).ok()?)),
            _ => return None,
        };
        let from = SocketAddr::new(ip, port);
        Some(Packet { kind, from, private_data: private_data.to_vec() })
    }
}

/// What came from a socket.
pub(super) enum Received {
    Nothing,
    /// With the descriptors of a request.
    Message(Packet, [Option<Descriptor>; 2]),
    /// The other end is closed, or says nonsense.
    End,
}

/// The name of a listener.
pub(super) fn name(at: SocketAddr) -> Name {
    let text = format!("sanshim/queue-pairs/1/{}:{}", at.ip().to_canonical(), at.port());
    Name::abstract_of(text.as_bytes())
}

/// Connects to the listener at an address; its process, as [`peer_of`] tells.
///
/// # Errors
/// [`Error::ConnectionRefused`] if there is none, it is another user's, or too many wait there.
pub(super) fn approach(to: SocketAddr) -> ProviderResult<(Descriptor, u32)> {
    let made = packet::socket(true).map_err(|_| Error::InsufficientResources)?;
    let socket = Descriptor::new(made);
    packet::connect(socket.get(), &name(to)).map_err(|error| match error {
        Errno(libc::ENOMEM | libc::ENOBUFS) => Error::InsufficientResources,
        _ => Error::ConnectionRefused,
    })?;
    peer_of(&socket).map(|process| (socket, process))
}

/// The process at the other end, as the kernel says: the one that connected, or that began to listen.
///
/// # Errors
///
/// [`Error::ConnectionRefused`] if it is another user's.
pub(super) fn peer_of(socket: &Descriptor) -> ProviderResult<u32> {
    let (pid, uid) =
        packet::peer_credentials(socket.get()).map_err(|_| Error::ConnectionRefused)?;
    if uid != 0 && uid != process::euid() {
        log::info!("shm: a process of user {uid} may not share memory with us");
        return Err(Error::ConnectionRefused);
    }
    Ok(pid)
}

/// Sends a packet, with the descriptors of a request.
///
/// # Errors
///
/// [`Error::ConnectionReset`] if no process is there any more.
pub(super) fn say(
    socket: &Descriptor,
    kind: PacketKind,
    from: SocketAddr,
    private_data: &[u8],
    pass: &[Fd],
) -> ProviderResult<()> {
    let (bytes, length) = Packet::encode(kind, from, private_data);
    match packet::send_passing(socket.get(), &bytes[..length], pass) {
        Ok(_) => Ok(()),
        Err(Errno(libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN)) => Err(Error::ConnectionReset),
        Err(_) => Err(Error::InsufficientResources),
    }
}

/// Takes what the other end said.
pub(super) fn hear(socket: &Descriptor) -> Received {
    let mut bytes = [0u8; LARGEST + 1];
    let receive = |bytes: &mut [u8]| {
        let received = packet::receive_passing::<2>(socket.get(), bytes);
        received.map(|(length, passed)| (length, passed.map(|fd| fd.map(Descriptor::new))))
    };
    let received = match receive(&mut bytes) {
        // A packet may have come between the kernel's look for one and for the end.
        Ok((0, _)) => receive(&mut bytes),
        received => received,
    };
    match received {
        Err(Errno(libc::EAGAIN | libc::EINTR)) => Received::Nothing,
        Ok((0, _)) | Err(_) => Received::End,
        Ok((length, passed)) => match Packet::decode(&bytes[..length]) {
            Some(message) => Received::Message(message, passed),
            None => Received::End,
        },
    }
}

/// Feeds a listener a packet of arbitrary bytes: it is nothing, or what it says.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    if let Some(message) = Packet::decode(data) {
        let (bytes, length) = Packet::encode(message.kind, message.from, &message.private_data);
        let again =
            Packet::decode(&bytes[..length]).map(|m| (m.kind as u8, m.from, m.private_data));
        assert_eq!(again, Some((message.kind as u8, message.from, message.private_data)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive() {
        for (kind, from) in
            [(PacketKind::Request, "127.0.0.1:80"), (PacketKind::Reject, "[fd77::1]:9")]
        {
            let from = from.parse().unwrap();
            let (bytes, length) = Packet::encode(kind, from, b"hello");
            let private_data = b"hello".to_vec();
            assert_eq!(Packet::decode(&bytes[..length]), Some(Packet { kind, from, private_data }));
            assert_eq!(Packet::decode(&bytes[..HEADER - 1]), None);
            let mut other = bytes;
            other[7] += 1;
            assert_eq!(Packet::decode(&other[..length]), None);
        }
    }
}
