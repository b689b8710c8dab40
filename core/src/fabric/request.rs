//! The form of a connection request and of its answer: how the segments are divided, and what the request is for.
//! InfiniBand leaves 56 bytes.

use super::frame;
use crate::proof::{Opening, ProofAnswer, ANSWER, OPENING};
use crate::provider::interface::client::Connector;
use crate::provider::interface::Error;
use crate::provider::shm::Geometry;
use crate::sys::process;
use std::net::{IpAddr, SocketAddr};

/// Begins a request, and an answer.
pub(super) const MAGIC: [u8; 8] = *b"sanshim\x05";

/// Names what a process waits for at its own listener (`sharing::invitations`). No other process can guess it.
pub(super) type Cookie = [u64; 2];

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// At a connector's own number (`meeting`).
    Approach(Approaching),
    /// At a process's own listener (`sharing::invitations`): what has that cookie.
    Invited(Cookie),
}

/// What an acceptor's end says when it approaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Approaching {
    /// The port of its address, which is not zero.
    pub(super) port: u16,
    /// The proof is by both numbers ([`FirstNumbers`](crate::proof::FirstNumbers)).
    pub(super) by_both: bool,
    /// Opens the proof.
    pub(super) opening: Opening,
}

/// In the word of the message buffers: see [`Approaching::by_both`].
const BY_BOTH: u32 = 1 << 31;

/// A cookie that no process had before.
pub(super) fn cookie() -> Cookie {
    let [a, b] = process::random();
    [a, b | 1]
}

fn encode_with(geometry: &Geometry, port: u16, mark: u32, rest: [u8; OPENING]) -> Vec<u8> {
    let mut data = MAGIC.to_vec();
    data.extend_from_slice(&frame::VERSION.to_le_bytes());
    data.extend_from_slice(&port.to_le_bytes());
    for word in [geometry.buffers | mark, geometry.message_size, geometry.send_buffer] {
        data.extend_from_slice(&word.to_le_bytes());
    }
    data.extend_from_slice(&rest);
    data
}

/// The request of a peer that was invited.
pub(super) fn encode_invited(geometry: &Geometry, cookie: Cookie) -> Vec<u8> {
    let mut rest = [0; OPENING];
    rest[..8].copy_from_slice(&cookie[0].to_le_bytes());
    rest[8..16].copy_from_slice(&cookie[1].to_le_bytes());
    encode_with(geometry, 0, 0, rest)
}

/// The request of an end that approaches.
pub(super) fn encode_approach(geometry: &Geometry, said: Approaching) -> Vec<u8> {
    encode_with(geometry, said.port, if said.by_both { BY_BOTH } else { 0 }, said.opening)
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
        buffers: word(4)? & !BY_BOTH,
        message_size,
        send_buffer,
        largest_message: message_size,
        largest_send_buffer: send_buffer,
    };
    let geometry = geometry.check().ok()?;
    let purpose = match half(2)? {
        0 if word(4)? & BY_BOTH == 0 => Purpose::Invited([long(16)?, long(24)?]),
        0 => return None,
        port => Purpose::Approach(Approaching {
            port,
            by_both: word(4)? & BY_BOTH != 0,
            opening: rest.get(16..16 + OPENING)?.try_into().ok()?,
        }),
    };
    (geometry_of(geometry) == geometry).then_some((geometry, purpose))
}

/// The answer to an approach, which answers the proof, too.
pub(super) fn encode_answer(answer: &ProofAnswer) -> Vec<u8> {
    [MAGIC.as_slice(), answer].concat()
}

/// What it answers; `None` if it is not one of ours.
pub(super) fn decode_answer(data: &[u8]) -> Option<ProofAnswer> {
    data.strip_prefix(&MAGIC)?.get(..ANSWER)?.try_into().ok()
}

/// What lies between the ends of a link, as both see it: the address of the end that approached, and of the other one.
/// Only one queue pair at a time has such an address.
pub(super) fn between(connector: &Connector, approaches: bool) -> Result<Vec<u8>, Error> {
    let (own, peer) = (connector.local_address()?, connector.peer_address()?);
    let ends = if approaches { [own, peer] } else { [peer, own] };
    let of = |at: SocketAddr| match at.ip() {
        IpAddr::V4(ip) => (ip.to_ipv6_mapped().octets(), at.port().to_le_bytes()),
        IpAddr::V6(ip) => (ip.octets(), at.port().to_le_bytes()),
    };
    Ok(ends.map(of).into_iter().flat_map(|(ip, port)| ip.into_iter().chain(port)).collect())
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
        Purpose::Approach(said) => encode_approach(&geometry, said),
        Purpose::Invited(cookie) => encode_invited(&geometry, cookie),
    };
    assert_eq!(decode(&again), Some((geometry, purpose)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that a request may have there.
    const INFINIBAND: usize = 56;

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
        for by_both in [false, true] {
            let opening = std::array::from_fn(|i| i as u8);
            let said = Approaching { port: 65535, by_both, opening };
            let data = encode_approach(&geometry, said);
            assert!(data.len() <= INFINIBAND);
            assert_eq!(decode(&data), Some((geometry, Purpose::Approach(said))));
        }
        let answer = std::array::from_fn(|i| i as u8);
        let data = encode_answer(&answer);
        assert!(data.len() <= INFINIBAND);
        assert_eq!(decode_answer(&data), Some(answer));
        assert_eq!((decode_answer(&data[1..]), decode_answer(&data[..50])), (None, None));
        let mut data = encode_invited(&geometry, own);
        data.resize(INFINIBAND, 0);
        assert_eq!(decode(&data), Some((geometry, Purpose::Invited(own))));
        assert_eq!(decode(&data[..30]), None);
        data[12] = 3;
        assert_eq!(decode(&data), None, "16 buffers, not 3");
    }
}
