//! Wakes the threads that sleep on an end of a link.

use super::body::Body;
use super::state::Link;
use crate::fabric::port::Sleeper;
use crate::sys::{file, hidden};

impl Link {
    /// True if a thread sleeps on this end.
    pub(in crate::fabric) fn has_sleeper(&self) -> bool {
        self.body.get().is_some_and(|body| {
            let counters = &body.segment.side(body.role).counters.0;
            counters.read.is_raised() || counters.write.is_raised()
        })
    }

    /// Wakes sleepers of this end.
    pub(super) fn wake(&self, body: &Body, read: bool, write: bool) {
        let counters = &body.segment.side(body.role).counters.0;
        let mut ring = read && counters.read.signal();
        ring |= write && counters.write.signal();
        if ring {
            self.port().device.wakes();
            let one = 1u64.to_ne_bytes();
            let _ = file::write(hidden::kept(self.event), one.as_ptr(), one.len());
        }
    }

    /// Wakes all threads that sleep on this end, of all processes.
    pub(in crate::fabric) fn wake_all(&self) {
        if let Some(body) = self.body.get() {
            self.wake(body, true, true);
        }
    }

    /// A thread of the program counts as asleep on it from now on, before the queue is armed for it.
    pub(crate) fn falls_asleep(&self) -> Option<Sleeper> {
        (!self.is_foreign()).then(|| self.port().device.add_sleeper())
    }

    /// The calling thread sleeps on its event, among other things. The queue is to notify the helper of what completes.
    pub(crate) fn notify_helper(&self) {
        if !self.is_foreign() {
            self.port().device.notify_helper();
        }
    }

    /// The program sleeps by other means than on the link. From now on the queue is to notify the helper.
    pub(crate) fn note_awaited_elsewhere(&self) {
        if !self.is_foreign() {
            self.port().device.note_awaited_elsewhere();
        }
    }
}
