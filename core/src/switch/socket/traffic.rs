//! Whether the SAN pays for a connection. It does where the receiver of a message is awake, or looks for it before it
//! sleeps. So a connection goes there when both ends send without pausing before, and comes back when most of its
//! messages had to wake somebody. Knows no socket and no peer.

use crate::switch::spin::contention;
use crate::sys::time;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicU8, Ordering::Relaxed};

/// Transfers between two looks at the clock.
const WINDOW: u32 = 16;
/// Bytes after which the clock is looked at all the same.
const MANY_BYTES: u64 = 1 << 20;
/// A window is busy if it takes no longer (ns) than this,
const LONGEST_WINDOW: u64 = 50_000_000;
/// and the process did something else for no longer (ticks; some 30 µs) before each send on the average,
const LONGEST_PAUSE: u64 = 90_000;
/// or waited before each receive;
const LONGEST_WAIT: u64 = 3 * LONGEST_PAUSE;
/// or if a byte takes no longer than this (ns).
const NS_FOR_A_BYTE: u64 = 10;
/// Doorbells of which most must have brought more than one message, or much of the stream each.
const DOORBELLS_TO_JUDGE: u32 = 32;
const BYTES_FOR_A_DOORBELL: u64 = 64 << 10;

/// Windows until the next attempt after one that failed, doubled each time,
const FIRST_PAUSE: u8 = 4;
/// and how often: both ends have to try at the same time.
const MOST_DOUBLINGS: u8 = 4;
/// The same where an attempt is over at once. Those of the other end take some 200 transfers, and both have to meet.
const MOST_SHORT_DOUBLINGS: u8 = 2;
/// The same where every connection is to go there as early as can be.
const MOST_EAGER_DOUBLINGS: u8 = 2;
/// So often a peer on another host is looked for. The attempts are further and further apart, and who is there and busy
/// was met long before.
const MOST_UNMET: u8 = 8;
/// How long (ns) a connection that came back to TCP stays there at least; doubled as well,
const LEAST_STAY: u64 = 5_000_000;
const MOST_STAY_DOUBLINGS: u8 = 9;
/// and must be busy for twice as many windows then, so often;
const MOST_WINDOW_DOUBLINGS: u8 = 6;
/// unless it had been on the SAN for so long (ns).
const PAID_FOR: u64 = 1_000_000_000;

/// Busy windows before the ends look for each other; zero: every connection goes to the SAN as early as can
/// be. Set by [`initialize`]; the default is the configuration's.
static BUSY_WINDOWS: AtomicU32 = AtomicU32::new(0);

/// How many transfers in quick succession it takes, rounded up to whole windows.
pub(in crate::switch) fn initialize(transfers: u32) {
    BUSY_WINDOWS.store(transfers.div_ceil(WINDOW), Relaxed);
}

pub(in crate::switch) fn is_eager() -> bool {
    BUSY_WINDOWS.load(Relaxed) == 0
}

/// When (ticks) this process last made a transfer. In a cache line of its own, for every thread's transfers write it.
#[link_section = "sanshim_words"]
static LAST_TRANSFER: OwnLine = OwnLine(AtomicU64::new(0));

#[repr(align(64))]
struct OwnLine(AtomicU64);

/// What is made so soon (ticks) after another is not noted: the word is every thread's.
const AT_ONCE: u64 = LONGEST_PAUSE / 8;

/// A transfer over the SAN, which the pause before the next one on TCP begins with.
#[inline]
pub(in crate::switch) fn note_transfer(now: u64) {
    contention::count_transfer();
    if now.saturating_sub(LAST_TRANSFER.0.load(Relaxed)) > AT_ONCE {
        LAST_TRANSFER.0.store(now, Relaxed);
    }
}

/// See the module. Threads count past each other, and lose a transfer now and then. Every transfer counts in its first
/// words, up to `waits`.
#[repr(C)]
pub(crate) struct Traffic {
    calls: AtomicU32,
    /// At how many the next look is.
    due: AtomicU32,
    bytes: AtomicU64,
    /// Sends since the last look, and the pauses (ticks) before them and before receives in all.
    sends: AtomicU32,
    pauses: AtomicU32,
    waits: AtomicU32,
    /// Busy windows; each other one halves them.
    busy: AtomicU16,
    /// Windows that pass until the next attempt.
    pause: AtomicU8,
    /// Attempts that failed.
    failures: AtomicU8,
    /// Clock (ns) of the last look; on the SAN when it went there.
    looked_at: AtomicU64,
    /// On the SAN: doorbells that were heard, and how many messages and bytes had come before the first.
    doorbells: AtomicU32,
    messages_before: AtomicU32,
    bytes_before: AtomicU64,
    /// On the SAN: what stood for all that had happened when it was last asked whether that changed.
    activity: AtomicU32,
    /// Attempts that did not find the peer on another host.
    unmet: AtomicU8,
    /// Times it came back before that paid, and until when (clock, ns) it stays.
    returns: AtomicU8,
    stays_until: AtomicU64,
}

/// The way a transfer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the peer.
    Receive,
    /// To it.
    Send,
}

/// What a look at the clock found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::switch) enum Look {
    /// TCP is right for it.
    Quiet,
    /// The ends should look for each other.
    Busy,
}

impl Traffic {
    /// Bytes of it up to the last word in which transfers count.
    #[cfg(test)]
    pub(super) const COUNTED: usize = std::mem::offset_of!(Traffic, waits) + size_of::<u32>();

    /// Of no connection yet.
    pub(in crate::switch) const fn new() -> Self {
        Traffic {
            calls: AtomicU32::new(0),
            due: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            sends: AtomicU32::new(0),
            pauses: AtomicU32::new(0),
            waits: AtomicU32::new(0),
            looked_at: AtomicU64::new(0),
            busy: AtomicU16::new(0),
            pause: AtomicU8::new(0),
            failures: AtomicU8::new(0),
            unmet: AtomicU8::new(0),
            doorbells: AtomicU32::new(0),
            messages_before: AtomicU32::new(0),
            bytes_before: AtomicU64::new(0),
            activity: AtomicU32::new(0),
            returns: AtomicU8::new(0),
            stays_until: AtomicU64::new(0),
        }
    }

    /// Of a new connection.
    pub(in crate::switch) fn begin(&self) {
        for word in [&self.calls, &self.sends, &self.pauses, &self.waits] {
            word.store(0, Relaxed);
        }
        for count in [&self.pause, &self.failures, &self.unmet, &self.returns] {
            count.store(0, Relaxed);
        }
        self.busy.store(0, Relaxed);
        self.due.store(if is_eager() { 1 } else { 4 }, Relaxed);
        self.bytes.store(0, Relaxed);
        self.looked_at.store(0, Relaxed);
        self.stays_until.store(0, Relaxed);
    }

    /// Counts a transfer; true if a look is due.
    #[inline]
    pub(in crate::switch) fn count(&self, way: Way, bytes: usize) -> bool {
        self.count_at(time::ticks(), way, bytes)
    }

    #[inline]
    fn count_at(&self, now: u64, way: Way, bytes: usize) -> bool {
        let pause = now.saturating_sub(LAST_TRANSFER.0.load(Relaxed));
        LAST_TRANSFER.0.store(now, Relaxed);
        contention::count_transfer();
        let before = match way {
            Way::Send => {
                self.sends.store(self.sends.load(Relaxed) + 1, Relaxed);
                &self.pauses
            }
            Way::Receive => &self.waits,
        };
        let pause = u32::try_from(pause).unwrap_or(u32::MAX);
        before.store(before.load(Relaxed).saturating_add(pause), Relaxed);
        let calls = self.calls.load(Relaxed).wrapping_add(1);
        let moved = self.bytes.load(Relaxed).saturating_add(bytes as u64);
        self.calls.store(calls, Relaxed);
        self.bytes.store(moved, Relaxed);
        // Another thread may have counted past it.
        calls.wrapping_sub(self.due.load(Relaxed)) as i32 >= 0 || moved >= MANY_BYTES
    }

    /// The next look comes after so many transfers.
    pub(in crate::switch) fn look_after(&self, calls: u32) {
        self.due.store(self.calls.load(Relaxed).wrapping_add(calls), Relaxed);
    }

    /// Makes the look that is due if it is the first, after which nobody has to do anything: the connection may be over
    /// before the next.
    pub(in crate::switch) fn begins_quietly(&self) -> bool {
        let begins = self.looked_at.load(Relaxed) == 0 && !is_eager();
        begins && self.look() == Look::Quiet
    }

    /// A look that was due.
    pub(in crate::switch) fn look(&self) -> Look {
        self.look_at(time::now())
    }

    fn look_at(&self, now: u64) -> Look {
        let before = self.looked_at.load(Relaxed);
        let calls = if is_eager() { 1 } else { WINDOW };
        self.looked_at.store(now, Relaxed);
        let bytes = self.bytes.swap(0, Relaxed);
        let (sends, pauses) = (self.sends.swap(0, Relaxed), self.pauses.swap(0, Relaxed));
        let waits = self.waits.swap(0, Relaxed);
        self.look_after(calls);
        if before == 0 && !is_eager() {
            return Look::Quiet;
        }
        let took = now.saturating_sub(before);
        let receives = calls.saturating_sub(sends);
        let is_quick = u64::from(pauses) <= u64::from(sends) * LONGEST_PAUSE
            && u64::from(waits) <= u64::from(receives) * LONGEST_WAIT
            && took <= LONGEST_WINDOW;
        let is_busy = is_quick || took <= bytes * NS_FOR_A_BYTE;
        if is_eager() {
            return self.look_after_pause();
        }
        if !is_busy || contention::prefers_sleep() {
            // A pause now and then does not keep one from the SAN that has to be busy for long.
            self.busy.store(self.busy.load(Relaxed) / 2, Relaxed);
            return Look::Quiet;
        }
        let busy = self.busy.load(Relaxed).saturating_add(1);
        self.busy.store(busy, Relaxed);
        let doublings = self.returns.load(Relaxed).min(MOST_WINDOW_DOUBLINGS);
        let enough = (BUSY_WINDOWS.load(Relaxed) << doublings).min(u32::from(u16::MAX));
        if u32::from(busy) < enough || now < self.stays_until.load(Relaxed) {
            return Look::Quiet;
        }
        self.look_after_pause()
    }

    fn look_after_pause(&self) -> Look {
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

    /// On the SAN, so many doorbells more were heard, of a connection to which so many messages and bytes came in all.
    /// True: TCP serves it better.
    pub(in crate::switch) fn count_doorbells(
        &self,
        doorbells: u32,
        messages: u32,
        bytes: u64,
    ) -> bool {
        let heard = self.doorbells.load(Relaxed) + doorbells;
        self.doorbells.store(heard, Relaxed);
        if heard < DOORBELLS_TO_JUDGE {
            return false;
        }
        self.doorbells.store(0, Relaxed);
        let messages = messages.wrapping_sub(self.messages_before.swap(messages, Relaxed));
        let bytes = bytes.wrapping_sub(self.bytes_before.swap(bytes, Relaxed));
        let is_worth_it = messages >= 2 * heard || bytes >= u64::from(heard) * BYTES_FOR_A_DOORBELL;
        !is_worth_it && !is_eager() && !contention::is_trying()
    }

    /// On the SAN: true if what stands for all that happened is as it was when this was asked last.
    pub(in crate::switch) fn is_as_before(&self, activity: u64) -> bool {
        let activity = (activity ^ activity >> 32) as u32;
        self.activity.swap(activity, Relaxed) == activity
    }

    /// It is on the SAN from now on.
    pub(in crate::switch) fn entered(&self) {
        self.looked_at.store(time::now(), Relaxed);
        // Something has happened.
        self.activity.store(u32::MAX, Relaxed);
        self.doorbells.store(0, Relaxed);
        self.messages_before.store(0, Relaxed);
        self.bytes_before.store(0, Relaxed);
    }

    /// True if an attempt failed since it began on TCP, or came back to it.
    pub(in crate::switch) fn has_failed(&self) -> bool {
        self.failures.load(Relaxed) != 0
    }

    /// True if attempts failed again and again.
    pub(in crate::switch) fn fails_always(&self) -> bool {
        self.failures.load(Relaxed) == MOST_DOUBLINGS
    }

    /// An attempt to find its peer on another host failed; true if that is not to be tried any more.
    pub(in crate::switch) fn failed_elsewhere(&self) -> bool {
        self.unmet.fetch_add(1, Relaxed) + 1 >= MOST_UNMET
    }

    /// The connection came back to TCP, because the SAN did not pay or the peer wanted it.
    pub(in crate::switch) fn returned(&self) {
        self.returned_at(time::now());
    }

    fn returned_at(&self, now: u64) {
        let has_paid = now.saturating_sub(self.looked_at.load(Relaxed)) >= PAID_FOR;
        let returns = if has_paid { 0 } else { self.returns.load(Relaxed) };
        let unpaid = if has_paid { 0 } else { (returns + 1).min(MOST_STAY_DOUBLINGS) };
        self.returns.store(unpaid, Relaxed);
        self.stays_until.store(now + (LEAST_STAY << returns), Relaxed);
        self.busy.store(0, Relaxed);
        self.pause.store(0, Relaxed);
        self.failures.store(0, Relaxed);
        self.bytes.store(0, Relaxed);
        // The next transfer ends what is left of the session.
        self.look_after(1);
    }
}

#[cfg(test)]
mod tests;
