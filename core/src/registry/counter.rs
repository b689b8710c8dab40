//! The numbers in a slot. All accesses are relaxed: a reader wants values, not order.

use std::sync::atomic::{AtomicU64, Ordering};

/// A monotonic count with one writer at a time: what one direction's lock guards.
///
/// [`add`](Counter::add) is a relaxed load and a relaxed store, so it costs what a plain variable
/// costs; two simultaneous writers would lose counts, nothing worse.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(pub(super) AtomicU64);

impl Counter {
    /// Adds `n`, wrapping.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// The count now.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A monotonic count with any number of writers: an atomic addition, for events that cost a system
/// call or a message anyway.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct SharedCounter(pub(super) AtomicU64);

impl SharedCounter {
    /// Adds `n`, wrapping.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The count now.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A value that goes up and down.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Gauge(pub(super) AtomicU64);

impl Gauge {
    /// Replaces the value.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// [`set`](Self::set); true if the value was another one.
    pub fn replace(&self, value: u64) -> bool {
        let is_another = self.get() != value;
        self.set(value);
        is_another
    }

    /// The value now.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What went one way.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Direction {
    /// Bytes of the program's stream.
    pub bytes: Counter,
    /// Messages of the session; for plain TCP, calls.
    pub messages: Counter,
}
