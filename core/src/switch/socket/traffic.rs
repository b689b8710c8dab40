//! When a connection goes to the SAN: once it has shown that it will live, by so many transfers, whatever the pauses
//! between them, or by much data. From then on its way there is paid back. This module knows no socket and no peer.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, Ordering::Relaxed};

/// Transfers between two attempts, before the pause after failures is counted.
const WINDOW: u32 = 16;
/// Bytes that count as much as all the transfers that it takes.
const MANY_BYTES: u64 = 1 << 20;

/// Windows until the next attempt after one that failed, doubled each time,
const FIRST_PAUSE: u8 = 4;
/// and how often: both ends have to try at the same time.
const MOST_DOUBLINGS: u8 = 4;
/// The same where an attempt is over at once. The attempts of the other end take some 200 transfers, and both have to
/// meet.
const MOST_SHORT_DOUBLINGS: u8 = 2;
/// The same where every connection is to go there as early as can be.
const MOST_EAGER_DOUBLINGS: u8 = 2;
/// So often a peer in another network namespace or on another host is looked for. The attempts are further and further apart, and a peer that is there and
/// busy was met long before.
const MOST_UNMET: u8 = 8;

/// Transfers before the ends look for each other; zero: every connection goes to the SAN as early as can be. Set by
/// [`initialize`]; the default is the configuration's.
static ENOUGH: AtomicU32 = AtomicU32::new(0);

/// How many transfers it takes.
pub(in crate::switch) fn initialize(transfers: u32) {
    ENOUGH.store(transfers, Relaxed);
}

pub(in crate::switch) fn is_eager() -> bool {
    ENOUGH.load(Relaxed) == 0
}

/// See the module. Threads count past each other, and lose a transfer now and then. Every transfer counts in its first words,
/// up to `bytes`.
#[repr(C)]
pub(crate) struct Traffic {
    calls: AtomicU32,
    /// At how many the next look is.
    due: AtomicU32,
    bytes: AtomicU64,
    /// Windows that pass until the next attempt.
    pause: AtomicU8,
    /// Attempts that failed.
    failures: AtomicU8,
    /// Attempts that did not find the peer in another network namespace or on another host, or that did not show which
    /// peer it is.
    unmet: AtomicU8,
    /// What stood for all that had happened on the SAN when it was last asked whether that changed; zero: it never was
    /// there.
    activity: AtomicU32,
}

/// What a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::switch) enum Look {
    /// It is not time for an attempt.
    Quiet,
    /// The ends should look for each other.
    Busy,
}

impl Traffic {
    /// Bytes of it up to the last word in which transfers count.
    #[cfg(test)]
    pub(super) const COUNTED: usize = std::mem::offset_of!(Traffic, bytes) + size_of::<u64>();

    /// The traffic of no connection yet.
    pub(in crate::switch) const fn new() -> Self {
        Traffic {
            calls: AtomicU32::new(0),
            due: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            pause: AtomicU8::new(0),
            failures: AtomicU8::new(0),
            unmet: AtomicU8::new(0),
            activity: AtomicU32::new(0),
        }
    }

    /// Begins with a new connection.
    pub(in crate::switch) fn begin(&self) {
        self.unmet.store(0, Relaxed);
        self.activity.store(0, Relaxed);
        self.begin_anew();
    }

    /// It has to show anew that it will live.
    fn begin_anew(&self) {
        for count in [&self.pause, &self.failures] {
            count.store(0, Relaxed);
        }
        self.bytes.store(0, Relaxed);
        self.calls.store(0, Relaxed);
        // `sanctl` is to see it before it is due.
        self.look_after(ENOUGH.load(Relaxed).clamp(1, WINDOW));
    }

    /// Counts a transfer of so many bytes. True if a look is due.
    #[inline]
    pub(in crate::switch) fn count(&self, bytes: usize) -> bool {
        let calls = self.calls.load(Relaxed).wrapping_add(1);
        let moved = self.bytes.load(Relaxed).saturating_add(bytes as u64);
        self.calls.store(calls, Relaxed);
        self.bytes.store(moved, Relaxed);
        // Another thread may have counted past it.
        calls.wrapping_sub(self.due.load(Relaxed)) as i32 >= 0 || moved >= MANY_BYTES
    }

    /// True until it has made a good part of the transfers after which the ends look for each other.
    pub(in crate::switch) fn is_young(&self) -> bool {
        const PARTS: u32 = 4;
        self.calls.load(Relaxed) < ENOUGH.load(Relaxed) / PARTS
    }

    /// True if it has made some of them, not all, and was never on the SAN.
    pub(in crate::switch) fn is_short(&self) -> bool {
        let calls = self.calls.load(Relaxed);
        calls > 0 && calls < ENOUGH.load(Relaxed) && self.activity.load(Relaxed) == 0
    }

    /// The next look comes after so many transfers.
    pub(in crate::switch) fn look_after(&self, calls: u32) {
        self.due.store(self.calls.load(Relaxed).wrapping_add(calls), Relaxed);
    }

    /// A look that was due.
    pub(in crate::switch) fn look(&self) -> Look {
        let missing = ENOUGH.load(Relaxed).saturating_sub(self.calls.load(Relaxed));
        if missing > 0 && self.bytes.load(Relaxed) < MANY_BYTES {
            self.look_after(missing);
            return Look::Quiet;
        }
        self.bytes.store(0, Relaxed);
        self.look_after(if is_eager() { 1 } else { WINDOW });
        match self.pause.load(Relaxed) {
            0 => Look::Busy,
            pause => {
                self.pause.store(pause - 1, Relaxed);
                Look::Quiet
            }
        }
    }

    /// An attempt failed: one that was over at once, or that took many transfers.
    pub(in crate::switch) fn failed(&self, is_short: bool) {
        let failures = self.failures.load(Relaxed);
        self.failures.store((failures + 1).min(MOST_DOUBLINGS), Relaxed);
        let pause = if is_eager() {
            1 << failures.min(MOST_EAGER_DOUBLINGS)
        } else if is_short {
            FIRST_PAUSE << failures.min(MOST_SHORT_DOUBLINGS)
        } else {
            FIRST_PAUSE << failures
        };
        self.pause.store(pause - 1, Relaxed);
    }

    /// On the SAN: notes what stands for all that happened; true if that is as it was when it was noted last.
    pub(in crate::switch) fn note_activity(&self, activity: u64) -> bool {
        let activity = (activity ^ activity >> 32) as u32;
        self.activity.swap(activity, Relaxed) == activity
    }

    /// It is on the SAN from now on.
    pub(in crate::switch) fn entered(&self) {
        // Something has happened.
        self.activity.store(u32::MAX, Relaxed);
    }

    /// True if an attempt failed since it began on TCP, or came back to it.
    pub(in crate::switch) fn has_failed(&self) -> bool {
        self.failures.load(Relaxed) != 0
    }

    /// True if more than one attempt failed.
    pub(in crate::switch) fn fails_again(&self) -> bool {
        self.failures.load(Relaxed) > 1
    }

    /// True if attempts failed again and again.
    pub(in crate::switch) fn fails_always(&self) -> bool {
        self.failures.load(Relaxed) == MOST_DOUBLINGS
    }

    /// An attempt to find its peer on another host failed; true if that is not to be tried any more.
    pub(in crate::switch) fn failed_elsewhere(&self) -> bool {
        self.unmet.fetch_add(1, Relaxed) + 1 >= MOST_UNMET
    }

    /// An attempt showed that the peer does not have this connection, or showed nothing; true if there is to be no other.
    pub(in crate::switch) fn failed_to_prove(&self) -> bool {
        const EACH: u8 = MOST_UNMET / 2;
        self.unmet.fetch_add(EACH, Relaxed) + EACH >= MOST_UNMET
    }

    /// Where a peer may be in another network namespace or on another host: whether the next attempt is to find it in the first.
    pub(in crate::switch) fn looks_near(&self) -> bool {
        self.unmet.load(Relaxed).is_multiple_of(2)
    }

    /// The connection came back to TCP, because it was idle or the peer wanted it.
    pub(in crate::switch) fn returned(&self) {
        self.begin_anew();
        // The next transfer ends what is left of the session.
        self.look_after(1);
    }
}

#[cfg(test)]
mod tests;
