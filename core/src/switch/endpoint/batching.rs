//! When a receiver next waits a moment, so that its sender gets ahead ([`batching`](crate::switch::stream::batching)).

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Receives between two attempts: after one that worked, and most after several that did not.
const FEWEST: u32 = 16;
const MOST: u32 = 1 << 16;

/// See the module. Zeroed memory is a valid start. Receive lock.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Batching {
    /// Receives until the next attempt may be made.
    after: AtomicU32,
    /// How many that will be after an attempt that fails.
    pause: AtomicU32,
}

impl Batching {
    /// Counts a receive that would try; true if it may.
    pub(in crate::switch) fn count_down(&self) -> bool {
        let after = self.after.load(Relaxed);
        self.after.store(after.saturating_sub(1), Relaxed);
        after == 0
    }

    /// An attempt was made, and worked or not.
    pub(in crate::switch) fn note_attempt(&self, worked: bool) {
        let doubled = self.pause.load(Relaxed).saturating_mul(2);
        let pause = if worked { FEWEST } else { doubled.clamp(FEWEST, MOST) };
        self.pause.store(pause, Relaxed);
        self.after.store(pause, Relaxed);
    }

    /// It cannot work here.
    pub(in crate::switch) fn note_useless(&self) {
        self.after.store(MOST, Relaxed);
    }
}
