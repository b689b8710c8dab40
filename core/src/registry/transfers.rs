//! The part of a slot that tells of RDMA and of buffer sizes.

use std::sync::atomic::AtomicU64;

use super::counter::{Counter, Gauge, SharedCounter};
use crate::session::Mode;

/// What `sanctl` shows of RDMA and of buffer sizes. It is about what this end sends, unless a field says otherwise.
///
/// The counters are those of this process. The gauges are those of the connection, as this process last saw it.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Transfers {
    /// Bytes sent by RDMA. The rest of what was sent went in messages.
    pub sent: SharedCounter,
    /// Bytes received by RDMA.
    pub received: SharedCounter,
    /// The number of the [`Mode`] (A7).
    pub mode: Gauge,
    /// How many receives were large, small and then large, or small (A7).
    pub behaviours: [Gauge; 3],
    /// Smallest RDMA transfer in bytes; 0 if there is no RDMA (A2).
    pub threshold: Gauge,
    /// Bytes of a message buffer (A9).
    pub message_size: Gauge,
    /// Bytes of the send buffer.
    pub send_buffer: Gauge,
    /// How often a send did not fit into one message. The rest of a send after a wait for room counts as a send.
    pub fragmented: Counter,
    /// Times the message buffers or the send buffer grew (A9).
    pub resizes: Gauge,
    /// Scans while a transfer waited (A4).
    pub scans: Gauge,
    /// Advertisements that were used (A14).
    pub advertisements_used: Gauge,
    /// Advertisements that were dropped as out of date (A14).
    pub advertisements_dropped: Gauge,
    _reserved: [AtomicU64; 2],
}

/// What a reader sees of [`Transfers`]. All zero where there never was a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferStatus {
    /// Bytes sent by RDMA. The rest of what was sent went in messages.
    pub sent: u64,
    /// Bytes received by RDMA.
    pub received: u64,
    /// In which way large data is sent (A7).
    pub mode: Mode,
    /// How many receives were large, small and then large, or small. The mode was learnt from them (A7).
    pub behaviours: [u64; 3],
    /// Smallest RDMA transfer in bytes; `None` if there is no RDMA (A2).
    pub threshold: Option<u64>,
    /// Bytes of a message buffer, header included (A9).
    pub message_size: u64,
    /// Bytes of the send buffer.
    pub send_buffer: u64,
    /// See [`Transfers::fragmented`].
    pub fragmented: u64,
    /// Times the message buffers or the send buffer grew (A9).
    pub resizes: u64,
    /// Scans while a transfer waited (A4).
    pub scans: u64,
    /// Advertisements used.
    pub advertisements_used: u64,
    /// Advertisements that were dropped, as out of date (A14) or because they were taken back before the write.
    pub advertisements_dropped: u64,
}

impl Transfers {
    /// What another process published.
    ///
    /// # Errors
    /// The name of a field with no valid value.
    pub(super) fn read(&self) -> Result<TransferStatus, &'static str> {
        let mode = u32::try_from(self.mode.get()).ok().and_then(Mode::from_u32).ok_or("mode")?;
        let threshold = self.threshold.get();
        Ok(TransferStatus {
            sent: self.sent.get(),
            received: self.received.get(),
            mode,
            behaviours: self.behaviours.each_ref().map(Gauge::get),
            threshold: (threshold != 0).then_some(threshold),
            message_size: self.message_size.get(),
            send_buffer: self.send_buffer.get(),
            fragmented: self.fragmented.get(),
            resizes: self.resizes.get(),
            scans: self.scans.get(),
            advertisements_used: self.advertisements_used.get(),
            advertisements_dropped: self.advertisements_dropped.get(),
        })
    }

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
            fragmented: Counter(AtomicU64::new(0)),
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
