//! What a socket knows of the first segments of its connection. [`first_segment`](crate::switch::setup::first_segment)
//! finds it out.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicU8, Ordering::Relaxed};

/// Above all numbers: one is known.
const IS_KNOWN: u64 = 1 << 32;

/// See the module.
pub(in crate::switch) struct KnownSegment {
    /// So many sends are to be tried to learn the numbers.
    tries: AtomicU8,
    /// A segment was shown, and the kernel may show it again.
    is_shown: AtomicBool,
    /// The time stamp (ms); zero: not known.
    stamp: AtomicU32,
    connectors: AtomicU64,
    acceptors: AtomicU64,
    shown_until: AtomicU64,
}

impl KnownSegment {
    /// Nothing is known.
    pub(in crate::switch) const fn none() -> Self {
        KnownSegment {
            tries: AtomicU8::new(0),
            is_shown: AtomicBool::new(false),
            stamp: AtomicU32::new(0),
            connectors: AtomicU64::new(0),
            acceptors: AtomicU64::new(0),
            shown_until: AtomicU64::new(0),
        }
    }

    /// Begins with a new connection.
    pub(in crate::switch) fn begin_anew(&self) {
        self.tries.store(0, Relaxed);
        self.is_shown.store(false, Relaxed);
        self.stamp.store(0, Relaxed);
        self.connectors.store(0, Relaxed);
        self.acceptors.store(0, Relaxed);
    }

    /// The time stamp (ms) of the connector's.
    pub(in crate::switch) fn stamp(&self) -> Option<u32> {
        Some(self.stamp.load(Relaxed)).filter(|stamp| *stamp != 0)
    }

    /// Notes it.
    pub(in crate::switch) fn note_stamp(&self, stamp: Option<u32>) {
        self.stamp.store(stamp.unwrap_or(0), Relaxed);
    }

    /// The number of the first byte that the connector sends.
    pub(in crate::switch) fn connectors(&self) -> Option<u32> {
        known(&self.connectors)
    }

    /// The number of the first byte that the acceptor sends.
    pub(in crate::switch) fn acceptors(&self) -> Option<u32> {
        known(&self.acceptors)
    }

    /// Notes those that are there and were not known. Once both are known no send is tried any more.
    pub(in crate::switch) fn note_numbers(&self, connectors: Option<u32>, acceptors: Option<u32>) {
        for (place, number) in [(&self.connectors, connectors), (&self.acceptors, acceptors)] {
            if let Some(number) = number.filter(|_| known(place).is_none()) {
                place.store(IS_KNOWN | u64::from(number), Relaxed);
            }
        }
        if self.connectors().is_some() && self.acceptors().is_some() {
            self.tries.store(0, Relaxed);
        }
    }

    /// So many sends are to be tried to learn the numbers.
    pub(in crate::switch) fn want_numbers(&self, tries: u8) {
        self.tries.store(tries, Relaxed);
    }

    /// True if the next send is to be tried.
    #[inline]
    pub(in crate::switch) fn wants_numbers(&self) -> bool {
        self.tries.load(Relaxed) != 0
    }

    /// How many are still to be tried.
    pub(in crate::switch) fn tries(&self) -> u8 {
        self.tries.load(Relaxed)
    }

    /// One was tried.
    pub(in crate::switch) fn note_try(&self) {
        self.tries.store(self.tries.load(Relaxed).saturating_sub(1), Relaxed);
    }

    /// A segment was shown, and may be shown again until so many bytes are acknowledged.
    pub(in crate::switch) fn note_shown(&self, until: u64) {
        self.shown_until.store(until, Relaxed);
        self.is_shown.store(true, Relaxed);
    }

    /// True if the kernel may show a segment again.
    #[inline]
    pub(in crate::switch) fn is_shown(&self) -> bool {
        self.is_shown.load(Relaxed)
    }

    /// Until how many bytes are acknowledged.
    pub(in crate::switch) fn shown_until(&self) -> u64 {
        self.shown_until.load(Relaxed)
    }

    /// It shows nothing more.
    pub(in crate::switch) fn end_showing(&self) {
        self.is_shown.store(false, Relaxed);
    }
}

fn known(number: &AtomicU64) -> Option<u32> {
    let number = number.load(Relaxed);
    (number & IS_KNOWN != 0).then_some(number as u32)
}
