//! The registered buffers for what comes in over a port. All of its links share them.
//!
//! There are as many as the links need: each pins memory, and hundreds of processes may have one adapter in use. They
//! grow with the links of the process and stay, because a posted receive cannot be taken back.

use super::memory::{Block, Buffer};
use crate::provider::interface::client::SharedReceiveQueue;
use crate::provider::interface::{Error, ProviderResult};

/// How many are added at a time.
pub(super) const STEP: usize = 16;
/// The most that a port asks its device for. They pin 32 MiB.
pub(super) const MOST: u32 = 1024;
/// A link alone has so many: as many as its peer has sends under way at a time. Each further link adds fewer, because few
/// peers send as much at one time.
const FIRST: usize = 32;
const FURTHER: usize = 8;
/// Marks the request of a receive.
const RECEIVE: u64 = 1 << 63;

/// How many receives so many links need.
pub(super) fn needed(links: usize) -> usize {
    FIRST + links.saturating_sub(1) * FURTHER
}

/// See the module.
pub(super) struct Receives {
    shared: SharedReceiveQueue,
    blocks: Vec<Block>,
    /// How many the queue has room for.
    most: usize,
}

impl Receives {
    /// There are none at first, and `most` at most.
    pub(super) fn new(shared: SharedReceiveQueue, most: u32) -> Self {
        Receives { shared, blocks: Vec::new(), most: most as usize }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.blocks.len() * STEP
    }

    /// True if a further step has room.
    pub(super) fn may_grow(&self) -> bool {
        self.count() + STEP <= self.most
    }

    /// Posts a step more.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) fn add(&mut self, block: Block) -> ProviderResult<()> {
        let first = self.count();
        self.blocks.push(block);
        (first..self.count()).try_for_each(|index| self.post(index))
    }

    /// Posts the buffer of that number, in which nothing lies any more.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) fn post(&self, index: usize) -> ProviderResult<()> {
        let buffer = self.buffer(index).ok_or(Error::InvalidParameter)?;
        self.shared.receive(index as u64 | RECEIVE, &[buffer.whole()])
    }

    /// The number of the buffer to which that request belongs. `None`: the request is no receive.
    pub(super) fn index_of(request: u64) -> Option<usize> {
        (request & RECEIVE != 0).then_some((request & !RECEIVE) as usize)
    }

    /// The buffer of that number.
    pub(super) fn buffer(&self, index: usize) -> Option<Buffer> {
        Some(self.blocks.get(index / STEP)?.buffer(index % STEP))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_alone_needs_few_and_a_thousand_all() {
        assert_eq!([0, 1, 2].map(needed), [FIRST, FIRST, FIRST + FURTHER]);
        assert!(needed(12) <= 128 && needed(1000) >= MOST as usize);
    }

    #[test]
    fn a_request_of_a_send_is_no_receive() {
        assert_eq!(Receives::index_of(7), None);
        assert_eq!(Receives::index_of(7 | RECEIVE), Some(7));
    }
}
