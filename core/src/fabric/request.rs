//! The form of a connection request and of its answer: how the segments are divided, and what the request is for.
//! InfiniBand leaves 56 bytes.

use super::frame;
use crate::provider::shm::Geometry;
use crate::sys::process;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Begins a request, and is all of an answer.
pub(super) const MAGIC: [u8; 8] = *b"sanshim\x04";

/// Names what a process waits for at its own listener (`sharing::invitations`). No other process can guess it.
pub(super) type Cookie = [u64; 2];

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// At a connector's own number (`meeting`): the connection that it has with that address.
    Approach(SocketAddr),
    /// At a process's own listener (`sharing::invitations`): what has that cookie.
    Invited(Cookie),
}

/// A cookie that no process had before.
pub(super) fn cookie() -> Cookie {
    let [a, b] = process::random();
    [a, b | 1]
}

fn encode_with(geometry: &Geometry, port: u16, rest: [u8; 16]) -> Vec<u8> {
    let mut data = MAGIC.to_vec();
    data.extend_from_slice(&frame::VERSION.to_le_bytes());
    data.extend_from_slice(&port.to_le_bytes());
    for word in [geometry.buffers, geometry.message_size, geometry.send_buffer] {
        data.extend_from_slice(&word.to_le_bytes());
    }
    data.extend_from_slice(&rest);
    data
}

/// The request of a peer that was invited.
pub(super) fn encode_invited(geometry: &Geometry, cookie: Cookie) -> Vec<u8> {
    let mut rest = [0; 16];
    rest[..8].copy_from_slice(&cookie[0].to_le_bytes());
    rest[8..].copy_from_slice(&cookie[1].to_le_bytes());
    encode_with(geometry, 0, rest)
}

/// The request of an end that approaches the connector of a connection with that acceptor.
pub(super) fn encode_approach(geometry: &Geometry, acceptor: SocketAddr) -> Vec<u8> {
    let ip = match acceptor.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    encode_with(geometry, acceptor.port(), ip.octets())
}

/// A request's meaning; `None` if it is not one of ours. (Some fabrics pad it.)
pub(super) fn decode(data: &[u8]) -> Option<(Geometry, Purpose)> {
    let rest = data.strip_prefix(&MAGIC)?;
    let half = |at: usize| Some(u16::from_le_bytes(rest.get(at..at + 2)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_le_bytes(rest.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_le_bytes(rest.get(at..at + 8)?.try_into().ok()?));
    if half(0)? != frame::VERSION {
        return None;
    }
    let (message_size, send_buffer) = (word(8)?, word(12)?);
    let geometry = Geometry {
        buffers: word(4)?,
        message_size,
        send_buffer,
        largest_message: message_size,
        largest_send_buffer: send_buffer,
    };
    let geometry = geometry.check().ok()?;
    let purpose = match half(2)? {
        0 => Purpose::Invited([long(16)?, long(24)?]),
        port => {
            let ip: [u8; 16] = rest.get(16..32)?.try_into().ok()?;
            let ip = IpAddr::V6(Ipv6Addr::from(ip)).to_canonical();
            Purpose::Approach(SocketAddr::new(ip, port))
        }
    };
    (geometry_of(geometry) == geometry).then_some((geometry, purpose))
}

/// How a segment is divided whose ends are on different hosts: nothing is resized, since nothing but frames has a size
/// there.
pub(crate) fn geometry_of(shm: Geometry) -> Geometry {
    let largest = (frame::LARGEST - frame::HEADER) as u32 / 64 * 64;
    let message_size = shm.message_size.min(largest);
    Geometry {
        message_size,
        largest_message: message_size,
        largest_send_buffer: shm.send_buffer,
        ..shm
    }
}

/// Feeds a connection request of arbitrary bytes: it is nothing, or what it says.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(data: &[u8]) {
    let Some((geometry, purpose)) = decode(data) else { return };
    let again = match purpose {
        Purpose::Approach(acceptor) => encode_approach(&geometry, acceptor),
        Purpose::Invited(cookie) => encode_invited(&geometry, cookie),
    };
    assert_eq!(decode(&again), Some((geometry, purpose)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_say_what_they_are_for_and_nonsense_is_refused() {
        let geometry = Geometry {
            buffers: 16,
            message_size: 1536,
            send_buffer: 1 << 16,
            largest_message: 1536,
            largest_send_buffer: 1 << 16,
        };
        let own = cookie();
        for acceptor in ["192.0.2.1:80", "[fd77::1]:65535"] {
            let acceptor = acceptor.parse().unwrap();
            let data = encode_approach(&geometry, acceptor);
            assert!(data.len() <= 56);
            assert_eq!(decode(&data), Some((geometry, Purpose::Approach(acceptor))));
        }
        let mut data = encode_invited(&geometry, own);
        data.resize(56, 0);
        assert_eq!(decode(&data), Some((geometry, Purpose::Invited(own))));
        assert_eq!(decode(&data[..30]), None);
        data[12] = 3;
        assert_eq!(decode(&data), None, "16 buffers, not 3");
    }
}
