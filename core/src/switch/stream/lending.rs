//! Memory of the program that a stream lends to its peer for one transfer: lent in the segment, and between hosts over the
//! link as well.
//!
//! Once it is taken back the peer neither reads nor writes it, on whichever host the peer is.

use super::Stream;
use crate::provider::shm::{MemoryRegistration, Right};
use crate::session::transfer::Abilities;
use crate::session::LARGEST_TRANSFER;
use crate::sys::{process, time};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

impl Stream<'_> {
    /// What RDMA can do on this connection at this moment (A2).
    pub(crate) fn abilities(&self) -> Abilities {
        self.rdma().abilities(self)
    }

    /// Most bytes that one transfer moves.
    pub(crate) fn largest_transfer(&self) -> usize {
        self.rdma().largest_transfer().min(LARGEST_TRANSFER) as usize
    }

    fn lent(&self, right: Right) -> &MemoryRegistration {
        match right {
            Right::Read => &self.own().readable.0,
            Right::Write => &self.own().writable.0,
        }
    }

    /// Lends `length` bytes at `at` to the peer as number `key`. False: they cannot be lent, and are not.
    pub(crate) fn lend(&self, right: Right, key: u32, at: u64, length: u32) -> bool {
        let lent = self.lent(right);
        lent.register(key, at, length, right);
        let is_lent = self.rdma().lend(right, key, at, length);
        if !is_lent {
            let _ = lent.deregister(0);
        }
        is_lent
    }

    /// Ends RDMA read of what this end lent: how many of the `length` bytes the peer read.
    pub(crate) fn take_back_readable(&self, length: u32) -> u32 {
        self.rdma().take_back(Right::Read, false);
        // The peer only reads this memory, and a reader never keeps it busy.
        self.lent(Right::Read).deregister(length).unwrap_or(0)
    }

    /// Ends RDMA write into what this end lent: how many of the `length` bytes the peer wrote.
    pub(crate) fn take_back_writable(&self, length: u32) -> u32 {
        let lent = self.lent(Right::Write);
        self.rdma().take_back(Right::Write, self.is_advertisement_over());
        loop {
            match lent.deregister(length) {
                Ok(bytes) => return bytes,
                Err(_) => {
                    // A copy that is under way ends by itself, unless its thread died in it.
                    process::yield_now();
                    time::sleep(10_000);
                    lent.end_write_of_the_dead();
                }
            }
        }
    }

    /// True if the peer sent data otherwise since this end advertised a buffer: the peer uses no advertisement from
    /// before that data (A14). A message without data is no sign of that (A12). Another thread may be taking in such a
    /// message at this moment.
    pub(super) fn is_advertisement_over(&self) -> bool {
        let receive = &self.endpoint.receive;
        self.next_with_data(receive.next_read()) != self.endpoint.session.expected()
            || self.peer().sending.0.tail.load(Acquire) != receive.head.load(Relaxed)
    }
}
