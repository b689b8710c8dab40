//! What the closed connections of a process have done together, as the process's file has it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::slot::Slot;

/// How many counts of a connection are summed up.
pub(super) const COUNTS: usize = 11;

/// The part of the header that counts for connections that are closed.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Closed {
    counts: [AtomicU64; COUNTS],
    /// See [`Totals::opened`](super::Totals::opened).
    pub(super) opened: AtomicU64,
    /// See [`Totals::moved`](super::Totals::moved).
    pub(super) moved: AtomicU64,
}

impl Closed {
    /// The connection of this slot is closed.
    pub(super) fn add(&self, slot: &Slot) {
        for (sum, count) in self.counts.iter().zip(of_slot(slot)) {
            sum.fetch_add(count, Relaxed);
        }
    }

    /// The counts so far, in the order of [`of_slot`].
    pub(super) fn counts(&self) -> [u64; COUNTS] {
        self.counts.each_ref().map(|sum| sum.load(Relaxed))
    }
}

fn of_slot(slot: &Slot) -> [u64; COUNTS] {
    [
        slot.sent.bytes.get(),
        slot.sent.messages.get(),
        slot.received.bytes.get(),
        slot.received.messages.get(),
        slot.wakeups_sent.get(),
        slot.wakeups_avoided.get(),
        slot.wakeups_received.get(),
        slot.credit_updates_sent.get(),
        slot.transfers.sent.get(),
        slot.transfers.received.get(),
        slot.suspensions.get(),
    ]
}
