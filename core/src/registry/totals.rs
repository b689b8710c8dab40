//! What all connections of a process have done together, those that are closed too.

use std::sync::atomic::Ordering::Relaxed;

use super::closed::{Closed, COUNTS};
use super::reader::{Connection, DirectionTraffic};

/// Counts of a process since it began. A fork child takes over what its living connections had counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Connections that were published: those that were busy once, and listeners.
    pub opened: u64,
    /// Moves of connections to the SAN.
    pub moved: u64,
    /// What went out.
    pub sent: DirectionTraffic,
    /// What came in.
    pub received: DirectionTraffic,
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

impl Totals {
    /// The totals of the closed connections, and of the living ones so far.
    pub(super) fn of(closed: &Closed, living: &[Connection]) -> Totals {
        let mut sums = closed.counts();
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
            opened: closed.opened.load(Relaxed),
            moved: closed.moved.load(Relaxed),
            sent: DirectionTraffic { bytes: sent_bytes, messages: sent_messages },
            received: DirectionTraffic { bytes: received_bytes, messages: received_messages },
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

/// In the order of [`Closed::counts`].
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
