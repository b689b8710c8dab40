//! What a connection request carries, and its answer: who asks, how the segments are divided, and
//! what for.

use super::frame;
use crate::provider::shm::Geometry;
use crate::sys::process;

/// Begins a request, and is all of an answer.
pub(super) const MAGIC: [u8; 8] = *b"sanshim\x03";

/// Names what a process waits for at its own listener (`sharing::invitations`); nobody else can guess it.
pub(super) type Cookie = [u64; 2];
/// In a request at a TCP listener's number: a connection that is to be made.
pub(super) const NEW: Cookie = [0; 2];

/// A cookie that nobody had before.
pub(super) fn cookie() -> Cookie {
    let [a, b] = process::random();
    [a, b | 1]
}

/// A request.
pub(super) fn encode(geometry: &Geometry, cookie: Cookie) -> Vec<u8> {
    let mut data = MAGIC.to_vec();
    for word in [frame::VERSION, geometry.buffers, geometry.message_size, geometry.send_buffer] {
        data.extend_from_slice(&word.to_le_bytes());
    }
    for half in cookie {
        data.extend_from_slice(&half.to_le_bytes());
    }
    data
}

/// A request's meaning; `None` if it is not one of ours. (Some fabrics pad it.)
pub(super) fn decode(data: &[u8]) -> Option<(Geometry, Cookie)> {
    let rest = data.strip_prefix(&MAGIC)?;
    let word = |i: usize| Some(u32::from_le_bytes(rest.get(4 * i..4 * i + 4)?.try_into().ok()?));
    let half =
        |i: usize| Some(u64::from_le_bytes(rest.get(16 + 8 * i..24 + 8 * i)?.try_into().ok()?));
    if word(0)? != frame::VERSION {
        return None;
    }
    let (message_size, send_buffer) = (word(2)?, word(3)?);
    let geometry = Geometry {
        buffers: word(1)?,
        message_size,
        send_buffer,
        largest_message: message_size,
        largest_send_buffer: send_buffer,
    };
    let geometry = geometry.check().ok()?;
    (geometry_of(geometry) == geometry).then_some((geometry, [half(0)?, half(1)?]))
}

/// How a segment is divided whose ends are on different hosts: nothing is resized, since nothing but
/// frames has a size there.
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
        assert_ne!(own, NEW);
        let mut data = encode(&geometry, own);
        // What InfiniBand leaves of a request.
        assert!(data.len() <= 56);
        data.resize(56, 0);
        assert_eq!(decode(&data), Some((geometry, own)));
        assert_eq!(decode(&data[..30]), None);
        data[12] = 3;
        assert_eq!(decode(&data), None, "16 buffers, not 3");
    }
}
