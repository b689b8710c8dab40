//! What a socket knows of its connection's first segment. [`first_segment`](crate::switch::setup::first_segment) finds it
//! out.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicU8, Ordering::Relaxed};

/// Above all numbers: one is known.
const IS_KNOWN: u64 = 1 << 32;

/// See the module.
pub(in crate::switch) struct KnownSegment {
    /// So many sends are to be tried to learn the number.
    tries: AtomicU8,
    /// A segment was shown, and the kernel may show it again.
    is_shown: AtomicBool,
    /// The time stamp (ms); zero: not known.
    stamp: AtomicU32,
    number: AtomicU64,
    shown_until: AtomicU64,
}

impl KnownSegment {
    /// Nothing is known.
    pub(in crate::switch) const fn none() -> Self {
        KnownSegment {
            tries: AtomicU8::new(0),
            is_shown: AtomicBool::new(false),
            stamp: AtomicU32::new(0),
            number: AtomicU64::new(0),
            shown_until: AtomicU64::new(0),
        }
    }

    /// Begins with a new connection.
    pub(in crate::switch) fn begin_anew(&self) {
        self.tries.store(0, Relaxed);
        self.is_shown.store(false, Relaxed);
        self.stamp.store(0, Relaxed);
        self.number.store(0, Relaxed);
    }

    /// The time stamp (ms).
    pub(in crate::switch) fn stamp(&self) -> Option<u32> {
        Some(self.stamp.load(Relaxed)).filter(|stamp| *stamp != 0)
    }

    /// Notes it.
    pub(in crate::switch) fn note_stamp(&self, stamp: Option<u32>) {
        self.stamp.store(stamp.unwrap_or(0), Relaxed);
    }

    /// The number of the first byte that the connector sends.
    pub(in crate::switch) fn number(&self) -> Option<u32> {
        let number = self.number.load(Relaxed);
        (number & IS_KNOWN != 0).then_some(number as u32)
    }

    /// Notes it.
    pub(in crate::switch) fn note_number(&self, number: u32) {
        self.number.store(IS_KNOWN | u64::from(number), Relaxed);
        self.tries.store(0, Relaxed);
    }

    /// So many sends are to be tried to learn the number.
    pub(in crate::switch) fn want_number(&self, tries: u8) {
        self.tries.store(tries, Relaxed);
    }

    /// True if the next send is to be tried.
    #[inline]
    pub(in crate::switch) fn wants_number(&self) -> bool {
        self.tries.load(Relaxed) != 0
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
