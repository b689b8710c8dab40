//! What all connections of a process have done together, those that are closed too.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::reader::{Connection, Traffic};
use super::slot::Slot;

/// How many counts of a connection are summed up.
const COUNTS: usize = 11;

/// Counts of a process since it began. A fork child takes over what its living connections had counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Connections that were published: those that were busy once, and listeners.
    pub opened: u64,
    /// Moves of connections to the SAN.
    pub moved: u64,
    /// What went out.
    pub sent: Traffic,
    /// What came in.
    pub received: Traffic,
    /// Kernel calls made to wake peers.
    pub wakeups_sent: u64,
    /// Events that needed none.
    pub wakeups_avoided: u64,
    /// Wake-ups from peers.
    pub wakeups_received: u64,
    /// Credit updates sent.
    pub credit_updates_sent: u64,
    /// Bytes of those sent that went by RDMA.
    pub rdma_sent: u64,
    /// Bytes of those received that came by RDMA.
    pub rdma_received: u64,
    /// Suspensions of sessions to take control.
    pub suspensions: u64,
}

/// The part of the header that counts for connections that are closed.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Closed {
    counts: [AtomicU64; COUNTS],
    /// See [`Totals::opened`].
    pub(super) opened: AtomicU64,
    /// See [`Totals::moved`].
    pub(super) moved: AtomicU64,
}

impl Closed {
    /// The connection of this slot is closed.
    pub(super) fn add(&self, slot: &Slot) {
        for (sum, count) in self.counts.iter().zip(of_slot(slot)) {
            sum.fetch_add(count, Relaxed);
        }
    }

    /// With what the living ones have counted so far.
    pub(super) fn with(&self, living: &[Connection]) -> Totals {
        let mut sums = self.counts.each_ref().map(|sum| sum.load(Relaxed));
        for one in living {
            for (sum, count) in sums.iter_mut().zip(of_connection(one)) {
                *sum = sum.wrapping_add(count);
            }
        }
        let [sent_bytes, sent_messages, received_bytes, received_messages, rest @ ..] = sums;
        let [wakeups_sent, wakeups_avoided, wakeups_received, credit_updates_sent, rest @ ..] =
            rest;
        let [rdma_sent, rdma_received, suspensions] = rest;
        Totals {
            opened: self.opened.load(Relaxed),
            moved: self.moved.load(Relaxed),
            sent: Traffic { bytes: sent_bytes, messages: sent_messages },
            received: Traffic { bytes: received_bytes, messages: received_messages },
            wakeups_sent,
            wakeups_avoided,
            wakeups_received,
            credit_updates_sent,
            rdma_sent,
            rdma_received,
            suspensions,
        }
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

/// In the order of [`of_slot`].
fn of_connection(one: &Connection) -> [u64; COUNTS] {
    [
        one.sent.bytes,
        one.sent.messages,
        one.received.bytes,
        one.received.messages,
        one.wakeups_sent,
        one.wakeups_avoided,
        one.wakeups_received,
        one.credit_updates_sent,
        one.transfers.sent,
        one.transfers.received,
        one.suspensions,
    ]
}
