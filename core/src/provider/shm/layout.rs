//! What lies where in a connection's segment, and why an end refuses a segment.
//!
//! A connection made for one request touches two pages. One has the head, the buffers of both directions' second
//! messages (the first with data), and the beginning of the connector's send buffer, which has what the connector sends
//! before there is credit. The other begins with the buffers of the opening messages. The buffer of the connector's
//! third message follows, because the acceptor looks for it.

use super::exchange::Exchange;
use super::side::{Line, Side};
use crate::session::{Agreement, Role};
use crate::sys::{self, PAGE};
use std::sync::atomic::{AtomicU32, AtomicU64};

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"sanshim\x01");
/// Version of the segment's layout and of the session protocol in it.
pub(super) const VERSION: u32 = 16;

/// How a segment is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Message buffers per direction: 4 to 64, a power of two.
    pub buffers: u32,
    /// Bytes of a message buffer with its header: 256 to 65536, a multiple of 64.
    pub message_size: u32,
    /// Bytes of the send buffer per direction: 64 KiB to 64 MiB, a power of two.
    pub send_buffer: u32,
    /// Most bytes of a message buffer after a resize (A9), as `message_size`, and at least that.
    pub(crate) largest_message: u32,
    /// Bytes of the send buffer that a streaming direction changes to, as `send_buffer`, and at
    /// least that.
    pub(crate) largest_send_buffer: u32,
}

/// Bytes between large message buffers: messages that fill a part of theirs lie in all of a cache's sets.
const SKEW: usize = PAGE + 64;
/// Most message buffers per direction.
pub(super) const MOST_BUFFERS: u32 = 64;

impl Geometry {
    /// Refuses what does not fit the documented ranges.
    pub(crate) fn check(self) -> Result<Self, SegmentError> {
        let fits = (4..=MOST_BUFFERS).contains(&self.buffers)
            && self.buffers.is_power_of_two()
            && [self.message_size, self.largest_message]
                .iter()
                .all(|size| (256..=65536).contains(size) && size.is_multiple_of(64))
            && [self.send_buffer, self.largest_send_buffer]
                .iter()
                .all(|size| (1 << 16..=1 << 26).contains(size) && size.is_power_of_two())
            && self.message_size <= self.largest_message
            && self.send_buffer <= self.largest_send_buffer;
        if fits {
            Ok(self)
        } else {
            Err(SegmentError::Geometry)
        }
    }

    /// True if no part is larger than in the other.
    pub(crate) fn is_within(self, most: Self) -> bool {
        self.buffers <= most.buffers
            && self.message_size <= most.message_size
            && self.send_buffer <= most.send_buffer
            && self.largest_message <= most.largest_message
            && self.largest_send_buffer <= most.largest_send_buffer
    }

    /// The same with smaller send buffers, where all segments of the process may have so many bytes of memory.
    /// Sixty-four segments then get their first buffers, and sixteen get large ones.
    pub(super) fn within(self, most: Option<u64>) -> Self {
        const LEAST: u64 = 1 << 16;
        let Some(most) = most else { return self };
        let share = |of: u64| 1 << (most / of).clamp(LEAST, 1 << 26).ilog2();
        let send_buffer = self.send_buffer.min(share(64));
        let largest_send_buffer = self.largest_send_buffer.min(share(16)).max(send_buffer);
        Self { send_buffer, largest_send_buffer, ..self }
    }

    /// Where the message buffer for `sequence` lies in the segment; `pairs` is
    /// [`pairs_offset`](Self::pairs_offset).
    #[inline]
    pub(super) fn slot_offset(self, pairs: usize, sender: Role, sequence: u32) -> usize {
        let size = self.message_size as usize;
        let last = self.buffers - 1;
        let index = sequence.wrapping_sub(2) & last;
        // The pairs' order: 2, send buffers, 1, 3, 4, ...
        let pair = if index == 0 {
            size_of::<Head>()
        } else if index == last {
            pairs
        } else {
            pairs + 2 * index as usize * size
        };
        pair + sender as usize * size
    }

    /// Where all pairs of message buffers but the first begin: on a page of their own.
    #[inline]
    pub(super) fn pairs_offset(self) -> usize {
        let send_buffers = self.send_buffer_offset(Role::Connector) + 2 * self.send_buffer as usize;
        send_buffers.next_multiple_of(PAGE)
    }

    #[inline]
    pub(super) fn send_buffer_offset(self, sender: Role) -> usize {
        let first = size_of::<Head>() + 2 * self.message_size as usize;
        first + sender as usize * self.send_buffer as usize
    }

    pub(super) fn large_messages_bytes(self) -> usize {
        let stride = self.largest_message as usize + SKEW;
        (self.buffers as usize * stride).next_multiple_of(PAGE)
    }

    /// Where the large message buffer for `sequence` lies, after a resize (A9); `messages` is where they begin.
    #[inline]
    pub(super) fn large_slot_offset(self, messages: usize, sender: Role, sequence: u32) -> usize {
        let index = (sequence & (self.buffers - 1)) as usize;
        let stride = self.largest_message as usize + SKEW;
        messages + sender as usize * self.large_messages_bytes() + index * stride
    }

    /// Where the parts begin that are used only after a resize (A9): large messages, large send buffers, end. A part
    /// that nobody touches costs no memory.
    pub(super) fn large_offsets(self) -> [usize; 3] {
        let pairs = 2 * (self.buffers as usize - 1) * self.message_size as usize;
        let messages = (self.pairs_offset() + pairs).next_multiple_of(PAGE);
        let send_buffers = messages + 2 * self.large_messages_bytes();
        [messages, send_buffers, send_buffers + 2 * self.largest_send_buffer as usize]
    }

    pub(super) fn total(self) -> usize {
        self.large_offsets()[2]
    }
}

/// Why a segment can not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SegmentError {
    /// The kernel refused memory or a mapping.
    #[error("no memory for the segment: {0}")]
    System(sys::Errno),
    /// The peer sent something else than a segment, or its size is not sealed.
    #[error("the peer did not send a sealed segment")]
    NotASegment,
    /// Made by another version of sanshim.
    #[error("the peer's segment has version {0}, ours is {VERSION}: run one version")]
    Version(u32),
    /// Sizes out of range.
    #[error("the peer's segment has sizes out of range, or larger ones than our configuration")]
    Geometry,
}

/// How a segment begins.
#[repr(C, align(64))]
pub(super) struct Head {
    pub(super) magic: AtomicU64,
    pub(super) version: AtomicU32,
    pub(super) buffers: AtomicU32,
    pub(super) message_size: AtomicU32,
    pub(super) send_buffer: AtomicU32,
    pub(super) largest_message: AtomicU32,
    pub(super) largest_send_buffer: AtomicU32,
    pub(super) joining: Line<Joining>,
    pub(super) sides: [Side; 2],
}

/// What the ends say to each other before both use the segment.
#[repr(C)]
pub(super) struct Joining {
    pub(super) agreement: Agreement,
    pub(super) exchange: Exchange,
}

const _: () = assert!(std::mem::size_of::<Head>() <= PAGE);

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry {
        buffers: 16,
        message_size: 1536,
        send_buffer: 1 << 16,
        largest_message: 4096,
        largest_send_buffer: 1 << 17,
    };

    #[test]
    fn one_is_within_another_only_in_all_its_parts() {
        let parts: [fn(&mut Geometry) -> &mut u32; 5] = [
            |g| &mut g.buffers,
            |g| &mut g.message_size,
            |g| &mut g.send_buffer,
            |g| &mut g.largest_message,
            |g| &mut g.largest_send_buffer,
        ];
        assert!(GEOMETRY.is_within(GEOMETRY));
        for part in parts {
            let mut larger = GEOMETRY;
            *part(&mut larger) *= 2;
            assert!(!larger.is_within(GEOMETRY) && GEOMETRY.is_within(larger));
        }
    }

    #[test]
    fn buffers_are_small_where_there_is_little() {
        let all = Geometry { send_buffer: 1 << 20, largest_send_buffer: 1 << 22, ..GEOMETRY };
        assert_eq!(all.within(None), all);
        assert_eq!(all.within(Some(64 << 20)), all);
        for most in [0, 1 << 16, 5 << 20, 40 << 20, u64::MAX] {
            let within = all.within(Some(most));
            assert!(within.check().is_ok(), "{within:?}");
        }
        let small = Geometry { send_buffer: 1 << 16, largest_send_buffer: 1 << 19, ..all };
        assert_eq!(all.within(Some(8 << 20)).largest_send_buffer, small.largest_send_buffer);
        assert_eq!(all.within(Some(1 << 20)).send_buffer, small.send_buffer);
    }

    #[test]
    fn m4_buffers_lie_apart_and_inside() {
        let small = Geometry {
            buffers: 4,
            message_size: 256,
            send_buffer: 1 << 16,
            largest_message: 512,
            largest_send_buffer: 1 << 17,
        };
        for g in [GEOMETRY, small, Geometry { buffers: 64, message_size: 65536, ..small }] {
            let mut taken = vec![(0, size_of::<Head>())];
            for sender in [Role::Connector, Role::Acceptor] {
                let size = g.message_size as usize;
                let slots = (u32::MAX - 1..=u32::MAX).chain(0..g.buffers - 2);
                taken.extend(slots.map(|s| (g.slot_offset(g.pairs_offset(), sender, s), size)));
                taken.push((g.send_buffer_offset(sender), g.send_buffer as usize));
                let [messages, send_buffers, _] = g.large_offsets();
                let (size, large) = (g.largest_message, g.largest_send_buffer as usize);
                let slots = (0..g.buffers)
                    .map(|s| (g.large_slot_offset(messages, sender, s), size as usize));
                taken.extend(slots);
                taken.push((send_buffers + sender as usize * large, large));
                let slot = |sequence| g.slot_offset(g.pairs_offset(), sender, sequence);
                assert_eq!(slot(7), slot(7 + g.buffers));
            }
            taken.sort_unstable();
            assert!(taken.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0), "{g:?}");
            assert!(taken.iter().all(|t| t.0 % 64 == 0 && t.0 + t.1 <= g.total()), "{g:?}");
        }
    }
}
