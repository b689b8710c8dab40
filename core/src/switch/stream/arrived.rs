//! Messages that arrived and are not read to the end: what this end keeps of each, and where its data lies.
//!
//! A header lies where the peer can write. So this end reads it once and checks it, and keeps the sizes in its own
//! memory until the message is read.

use super::Stream;
use crate::provider::shm::Span;
use crate::session::Header;
use std::sync::atomic::Ordering::Relaxed;

/// The sizes of a message's payload, in one word: bytes of data in the lower 24 bits, of the body before it in the upper 8.
#[derive(Clone, Copy)]
pub(super) struct Sizes(u32);

impl Sizes {
    #[inline]
    fn of(header: &Header) -> Sizes {
        Sizes(header.data_size() | header.body_size() << 24)
    }

    /// Bytes of data.
    #[inline]
    pub(super) fn data(self) -> usize {
        (self.0 & 0xff_ffff) as usize
    }

    /// Bytes of the body before it.
    #[inline]
    pub(super) fn body(self) -> usize {
        (self.0 >> 24) as usize
    }
}

impl Stream<'_> {
    /// The sizes that were kept of message `sequence`.
    #[inline]
    pub(super) fn sizes(&self, sequence: u32) -> Sizes {
        Sizes(self.endpoint.receive.lengths[sequence as usize & 63].load(Relaxed))
    }

    /// Keeps the sizes of a message that is about to count as received. Receive lock.
    #[inline]
    pub(super) fn keep_sizes(&self, header: &Header) {
        let place = &self.endpoint.receive.lengths[header.sequence as usize & 63];
        place.store(Sizes::of(header).0, Relaxed);
    }

    /// The data of message `sequence`.
    #[inline]
    pub(super) fn arrived_data(&self, sequence: u32) -> Span {
        let sizes = self.sizes(sequence);
        self.slot_in(sequence).payload().part(sizes.body(), sizes.data())
    }

    /// The first message with data, from `sequence` on. Without one, the message that is expected next.
    #[inline]
    pub(super) fn next_with_data(&self, mut sequence: u32) -> u32 {
        while sequence != self.endpoint.session.expected() && self.sizes(sequence).data() == 0 {
            sequence = sequence.wrapping_add(1);
        }
        sequence
    }
}
