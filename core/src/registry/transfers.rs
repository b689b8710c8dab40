//! The part of a slot that tells of RDMA and of buffer sizes.

use std::sync::atomic::AtomicU64;

use super::counter::{Gauge, SharedCounter};

/// What `sanctl` shows of RDMA and of buffer sizes, for what we send unless it says otherwise.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Transfers {
    /// Bytes sent by RDMA; those in messages are the rest of what was sent.
    pub sent: SharedCounter,
    /// Bytes received by RDMA.
    pub received: SharedCounter,
    /// The mode's number (A7).
    pub mode: Gauge,
    /// Large receives, small then large ones, small ones (A7).
    pub behaviours: [Gauge; 3],
    /// Smallest RDMA transfer in bytes; 0: none (A2).
    pub threshold: Gauge,
    /// Bytes of a message buffer (A9).
    pub message_size: Gauge,
    /// Bytes of the send buffer.
    pub send_buffer: Gauge,
    /// Sends that did not fit into one message.
    pub fragmented: Gauge,
    /// Times the buffers grew (A9).
    pub resizes: Gauge,
    /// Scans while a transfer waited (A4).
    pub scans: Gauge,
    /// Advertisements used, and dropped as out of date (A14).
    pub advertisements_used: Gauge,
    /// See [`advertisements_used`](Self::advertisements_used).
    pub advertisements_dropped: Gauge,
    _reserved: [AtomicU64; 2],
}

impl Transfers {
    pub(super) const fn new() -> Transfers {
        const fn gauge() -> Gauge {
            Gauge(AtomicU64::new(0))
        }
        Transfers {
            sent: SharedCounter(AtomicU64::new(0)),
            received: SharedCounter(AtomicU64::new(0)),
            mode: gauge(),
            behaviours: [gauge(), gauge(), gauge()],
            threshold: gauge(),
            message_size: gauge(),
            send_buffer: gauge(),
            fragmented: gauge(),
            resizes: gauge(),
            scans: gauge(),
            advertisements_used: gauge(),
            advertisements_dropped: gauge(),
            _reserved: [AtomicU64::new(0), AtomicU64::new(0)],
        }
    }

    pub(super) fn counts(&self) -> [&AtomicU64; 14] {
        [
            &self.sent.0,
            &self.received.0,
            &self.mode.0,
            &self.behaviours[0].0,
            &self.behaviours[1].0,
            &self.behaviours[2].0,
            &self.threshold.0,
            &self.message_size.0,
            &self.send_buffer.0,
            &self.fragmented.0,
            &self.resizes.0,
            &self.scans.0,
            &self.advertisements_used.0,
            &self.advertisements_dropped.0,
        ]
    }
}
