//! What `sanctl` shows of RDMA, its modes and the sizes of buffers. This module only reads what others keep.

use super::Stream;
use crate::registry::{self, Event};
use std::sync::atomic::Ordering::Relaxed;

impl Stream<'_> {
    /// Publishes the mode, the sizes and what changes with them. Called when the session is set up
    /// and where one of them may have changed: after a large send, a scan, a resize either way,
    /// SO_SNDBUF.
    pub(crate) fn publish_transfers(&self) {
        let (shown, send) = (&self.statistics.transfers, &self.endpoint.send);
        let (observer, abilities) = (send.transfers.observer(), self.endpoint.abilities());
        let none = !(abilities.read || abilities.write) || send.transfers.forbidden();
        let mode = observer.mode();
        if shown.mode.replace(mode as u64) {
            registry::note(self.statistics, Event::Mode(mode));
        }
        for (gauge, seen) in shown.behaviours.iter().zip(observer.seen()) {
            gauge.set(seen.into());
        }
        shown.threshold.set(if none { 0 } else { abilities.threshold.into() });
        let resized = send.message_size.load(Relaxed);
        let first = self.segment.geometry().message_size;
        let message_size = u64::from(if resized == 0 { first } else { resized });
        if shown.message_size.replace(message_size) {
            registry::note(self.statistics, Event::MessageSize(message_size));
        }
        let send_buffer = u64::from(self.limit());
        if shown.send_buffer.replace(send_buffer) {
            registry::note(self.statistics, Event::SendBuffer(send_buffer));
        }
        shown.resizes.set(self.endpoint.resize.times_grown().into());
        shown.scans.set(send.transfers.scans().into());
        let (used, dropped) = send.transfers.advertisements();
        shown.advertisements_used.set(used.into());
        shown.advertisements_dropped.set(dropped.into());
    }
}
