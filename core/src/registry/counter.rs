//! The numbers in a slot. All accesses are relaxed: a reader wants values, not order.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that only goes up, with one writer at a time: the holder of one direction's lock.
///
/// [`add`](Counter::add) is a relaxed load and a relaxed store, so it costs what a plain variable
/// costs. Two writers at the same time would lose counts; nothing worse would happen.
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

/// A count that only goes up, with any number of writers. Its atomic addition is for events that cost a system call or
/// a message anyway.
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

/// What went in one direction.
#[derive(Debug, Default)]
#[repr(C)]
pub struct DirectionCounts {
    /// Bytes of the program's stream.
    pub bytes: Counter,
    /// Messages of the session. On plain TCP, calls.
    pub messages: Counter,
}
