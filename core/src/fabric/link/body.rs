//! The end's segment, which is only known once a link is in use, and what both ends publish there.

use super::controller::Controller;
use crate::fabric::frame::FrameState;
use crate::provider::shm::{Asked, Role, Segment, SendingSide};
use crate::session::DirectionState;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// See the module.
pub(super) struct Body {
    pub(super) segment: Segment,
    pub(super) role: Role,
    /// Null once the end's memory is gone.
    pub(super) controller: AtomicPtr<Controller>,
}

impl Body {
    /// True if the peer is to learn that this end has read up to `head`, of which it knows all but `untold` bytes: a
    /// quarter of the send buffer, or what a sender without space waits for.
    pub(super) fn is_read_due(&self, head: u64, untold: u64) -> bool {
        let sending = &self.segment.side(self.role.peer()).sending.0;
        let awaited = u64::from(sending.stalled.load(Relaxed));
        let unread = sending.tail.load(Relaxed).wrapping_sub(head);
        untold > 0
            && match awaited {
                0 => untold >= u64::from(self.segment.geometry().send_buffer / 4),
                _ => unread <= awaited,
            }
    }

    /// A stamp of what the peer is to get, if it gets all up to there: see [`SendingSide::stamp`]. It leaves out what
    /// is recalled. It includes that this end read `total` bytes, and how this end ends, unless TCP tells that.
    pub(super) fn stamp(&self, tail: u64, next: u32, total: u64) -> u64 {
        let [own, peer] = self.words();
        if own.recalled {
            return u64::MAX;
        }
        let finished = self.segment.side(self.role).sending.0.finished.load(Acquire);
        let is_tcps = own.left && peer.is_final();
        let ends = if is_tcps { 0 } else { u64::from(finished & FrameState::FINISHED_BITS) << 58 };
        let read = if peer.is_final() { 0 } else { total };
        SendingSide::stamp(tail, next, read) ^ u64::from(own.left) << 62 ^ ends
    }

    /// How this end and the peer send, over the link or over TCP: see [`Direction`](crate::session::Direction).
    pub(super) fn words(&self) -> [DirectionState; 2] {
        [self.role, self.role.peer()]
            .map(|role| self.segment.side(role).sending.0.direction.state())
    }

    /// True if the peer is to send again over TCP what this end publishes, or did.
    pub(super) fn is_recalled(&self) -> bool {
        self.words()[0].recalled
    }

    pub(super) fn asked(&self) -> Asked {
        self.segment.side(self.role).receiving.0.asked()
    }

    /// All that this end publishes from now on concerns its peer: the link, which is always asleep.
    pub(super) fn have_link_rung(&self) {
        let counters = &self.segment.side(self.role.peer()).counters.0;
        let _ = counters.read.raise();
        let _ = counters.write.raise();
    }

    /// The same after a ring.
    pub(super) fn have_link_rung_again(&self) {
        let counters = &self.segment.side(self.role.peer()).counters.0;
        for counter in [&counters.read, &counters.write] {
            if !counter.is_raised() {
                let _ = counter.raise();
            }
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        // SAFETY: a thread that used the segment held the link, whose last field this is.
        unsafe { self.segment.unmap() };
    }
}
