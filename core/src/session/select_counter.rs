//! Select counters (A18): how many waiters want a wake-up for one event of one socket, so that an event makes a kernel
//! call only if somebody sleeps. A counter does not know what an event or a wake-up is.

use super::sync::{fence, AtomicU64, Ordering};

/// Attempts before a compare-and-swap loop gives up on the safe side. Honest contenders need a
/// few; only a peer that writes the counter without pause can use them up.
const ATTEMPTS: u32 = 256;

/// Counts the waiters for one event. High half: how often they were signalled; low half: how many
/// raised it since.
///
/// The waiter raises, looks for the event, sleeps if there is none. The other side publishes
/// the event with a SeqCst operation, then signals, and makes the kernel call that wakes every
/// sleeper if told so. Whatever the order, the waiter finds the event or the signaller finds the
/// count: no wake-up is lost.
///
/// May lie in memory the peer can write: any value is harmless (too many or too few wake-ups of
/// that peer's own connection).
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct SelectCounter(AtomicU64);

/// Proof of one [`SelectCounter::raise`], to take it back with.
#[must_use = "a waiter that does not sleep takes its ticket back with `withdraw`"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u32);

/// How far the kernel calls were made that signals of one [`SelectCounter`] asked for. This is the other side's own
/// note, which all its processes share. A process that is told to make the call may die before it does: the next one
/// finds the counter ahead of this. The note must lie where only that side can write.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Called(AtomicU64);

impl Default for Called {
    fn default() -> Self {
        Self::new()
    }
}

impl Called {
    /// For a new counter.
    pub(crate) const fn new() -> Self {
        Called(AtomicU64::new(0))
    }

    /// True if a signal's kernel call was not made, or not noted yet.
    #[inline]
    pub(crate) fn is_behind(&self, counter: &SelectCounter) -> bool {
        epoch(counter.0.load(Ordering::SeqCst)) != epoch(self.0.load(Ordering::Relaxed))
    }

    /// Makes the kernel call and notes that every signal up to now has had it.
    pub(crate) fn make<T>(&self, counter: &SelectCounter, call: impl FnOnce() -> T) -> T {
        let signals = epoch(counter.0.load(Ordering::SeqCst));
        let made = call();
        // Release: a thread that finds it noted comes after the call.
        self.0.store(u64::from(signals) << 32, Ordering::Release);
        made
    }
}

const fn epoch(value: u64) -> u32 {
    (value >> 32) as u32
}

const fn count(value: u64) -> u32 {
    value as u32
}

impl Default for SelectCounter {
    fn default() -> Self {
        Self::new()
    }
}

impl SelectCounter {
    /// A counter that no thread raised.
    pub(crate) const fn new() -> Self {
        SelectCounter(AtomicU64::new(0))
    }

    /// A counter raised once: for an endpoint at which nobody has looked yet. Its owner may already sleep in the kernel
    /// without having passed through us.
    #[cfg(test)]
    pub(crate) const fn raised() -> Self {
        SelectCounter(AtomicU64::new(1))
    }

    /// A waiter announces itself, then looks for the event; its look may use any ordering, a full
    /// fence stands in between.
    #[inline]
    pub(crate) fn raise(&self) -> Ticket {
        let before = self.0.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Ticket(epoch(before))
    }

    /// The waiter of `ticket` does not sleep, or no longer: takes its count back, unless it was
    /// signalled since.
    pub(crate) fn withdraw(&self, ticket: Ticket) {
        let mut value = self.0.load(Ordering::Relaxed);
        for _ in 0..ATTEMPTS {
            if epoch(value) != ticket.0 || count(value) == 0 {
                return;
            }
            match self.0.compare_exchange_weak(
                value,
                value - 1,
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => value = now,
            }
        }
        // Left raised: one wake-up too many at worst.
    }

    /// Called after a SeqCst operation has published the event. True: some waiter is counted, the counter is now zero,
    /// and the caller, the only one that learns so, makes the kernel call. This costs one load when no thread waits.
    #[inline]
    pub(crate) fn signal(&self) -> bool {
        // SeqCst, a plain load on x86: it must not move before the publication of the event.
        let value = self.0.load(Ordering::SeqCst);
        count(value) != 0 && self.lower(value)
    }

    /// As [`signal`](Self::signal), where the caller may die before it has made the call: also true if an earlier
    /// caller did. The caller makes the call through [`Called::make`]. This costs two loads when no thread waits.
    #[inline]
    pub(crate) fn signal_after(&self, called: &Called) -> bool {
        let value = self.0.load(Ordering::SeqCst);
        value != called.0.load(Ordering::Relaxed) && (self.lower(value) || called.is_behind(self))
    }

    #[cold]
    fn lower(&self, mut value: u64) -> bool {
        for _ in 0..ATTEMPTS {
            if count(value) == 0 {
                return false;
            }
            let lowered = u64::from(epoch(value).wrapping_add(1)) << 32;
            match self.0.compare_exchange_weak(value, lowered, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(now) => value = now,
            }
        }
        true
    }

    /// Whether a waiter is counted at this moment.
    #[inline]
    pub(crate) fn is_raised(&self) -> bool {
        count(self.0.load(Ordering::SeqCst)) != 0
    }
}
