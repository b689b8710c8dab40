//! Several processes may share a socket. This part of a slot tells which of them controls it.

use std::sync::atomic::{AtomicU64, Ordering};

/// One direction, as this process sees it.
#[derive(Debug, Default)]
#[repr(C)]
pub struct DirectionControl {
    /// The number of the swap by which this process last took control from another; 0 if it never did. Swaps are
    /// numbered across all processes that share the socket, so the one with the highest number is in control.
    taken: AtomicU64,
    /// Threads of this process that wait for control.
    waiting: AtomicU64,
}

/// What a reader sees of [`DirectionControl`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlStatus {
    /// The number of the swap by which this process last took control; 0 if it never had to.
    pub taken: u64,
    /// Threads of this process that wait for control.
    pub waiting: u64,
}

impl DirectionControl {
    pub(super) const fn new() -> DirectionControl {
        DirectionControl { taken: AtomicU64::new(0), waiting: AtomicU64::new(0) }
    }

    /// This process took control by the swap of this number.
    pub fn taken(&self, swap: u32) {
        self.taken.store(u64::from(swap), Ordering::Relaxed);
    }

    /// Counts the calling thread as waiting.
    pub(crate) fn while_waiting<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let result = wait();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        result
    }

    pub(super) fn counts(&self) -> [&AtomicU64; 2] {
        [&self.taken, &self.waiting]
    }

    pub(super) fn read(&self) -> ControlStatus {
        ControlStatus {
            taken: self.taken.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed),
        }
    }
}
