//! A thread takes what has completed over a port, for all its links, and hands each completion to its link.

use super::outgoing::Tell;
use super::state::{Link, LinkPort};
use crate::fabric::port::PairEvent;
use crate::sys::{process, time};
use std::sync::atomic::Ordering::{Acquire, SeqCst};

/// How long a thread waits for another one that takes completions: so many yields, then so many naps (ns). A thread
/// that has no processor for as long was stopped.
const YIELDS: u32 = 1000;
const NAPS: u32 = 100_000;
const NAP: u64 = 100_000;
/// How often, with a pause, a fork relative looks whether the owner took what had arrived.
const CATCH_UP: u32 = 1000;

impl LinkPort {
    /// Takes what has completed, unless another thread does so (false).
    #[inline]
    pub(in crate::fabric) fn poll(&self) -> bool {
        self.take(Link::heed)
    }

    /// [`poll`](Self::poll) by a thread of the program.
    #[inline]
    pub(in crate::fabric) fn look(&self) {
        self.device.note_look();
        self.poll();
    }

    /// Takes what has completed by now. Waits for a thread that does so already.
    pub(in crate::fabric) fn catch_up(&self) {
        for attempt in 0..YIELDS + NAPS {
            if self.poll() {
                break;
            }
            match attempt < YIELDS {
                true => process::yield_now(),
                false => time::sleep(NAP),
            }
        }
    }
}

impl Link {
    /// Takes what has arrived.
    #[inline]
    pub(crate) fn poll(&self) {
        if self.is_ours() {
            self.port().look();
        }
    }

    /// Takes all that has arrived by now, also what another thread is about to take.
    pub(crate) fn catch_up(&self) {
        if self.is_ours() {
            return self.port().catch_up();
        }
        let is_over = || {
            self.is_withdrawn()
                || self.is_closed_by_peer()
                || self.look_for_failure()
                || self.has_returned()
        };
        let Some(body) = self.body.get().filter(|_| !is_over()) else { return };
        let looks = &body.segment.side(body.role.peer()).sending.0.delivered;
        let before = looks.load(Acquire);
        for _ in 0..CATCH_UP {
            // The second look began after this call.
            if looks.load(Acquire).wrapping_sub(before) >= 2 {
                break;
            }
            self.kick_owner();
            time::sleep(100_000);
        }
    }

    /// Hands the link a completion of one of its queue pairs. Called by the thread that takes the port's completions.
    #[inline]
    fn heed(&self, number: u64, event: PairEvent<'_>) {
        if self.wire().is_none_or(|wire| wire.number() != number) {
            // Another queue pair took the place of that one.
            return;
        }
        match event {
            PairEvent::Sent(request) => self.completed(request),
            PairEvent::Arrived(frame) => self.arrived(frame),
            PairEvent::Written(count) => self.peer_wrote(count),
            PairEvent::Failed(_) if self.ends_on_its_way() => {}
            PairEvent::Failed(why) => self.fail(why),
        }
    }

    /// A send, and all before it, completed.
    fn completed(&self, request: u64) {
        self.completed.fetch_max(request + 1, SeqCst);
        if self.starved.load(SeqCst) {
            self.push(Tell::Due);
        }
    }
}
