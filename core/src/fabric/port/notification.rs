//! Decides which thread the notification of a port's completion queue wakes.
//!
//! It wakes the helper, which wakes the threads whose events came. A thread of the program that sleeps alone waits for
//! the notification too, and wakes two thread switches sooner. While that thread does so again and again, the helper
//! leaves the queue out of its set, and checks at each tick whether that is still so. The helper sleeps without limit
//! only while it is notified.

use super::device::Device;
use crate::fabric::fork_gate::generation;
use crate::fabric::helper;
use crate::sys::handlers::Undisturbed;
use crate::sys::lock_order::{LockRank, RankedMutex};
use crate::sys::process::SignalsHeld;
use crate::sys::Fd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};

/// Part of a device.
pub(super) struct Notification {
    /// The helper does not get it. Changed with `changing` held.
    is_programs: AtomicBool,
    changing: RankedMutex<()>,
    /// Threads asleep on links of the port.
    asleep: AtomicU32,
    /// The program may sleep by other means than those: on an epoll set, or until a signal.
    elsewhere: AtomicBool,
    /// [`Device::looks`] at the helper's last tick.
    looks: AtomicU32,
}

impl Notification {
    pub(super) fn new() -> Self {
        Notification {
            is_programs: AtomicBool::new(false),
            changing: RankedMutex::new(LockRank::Notification, ()),
            asleep: AtomicU32::new(0),
            elsewhere: AtomicBool::new(false),
            looks: AtomicU32::new(0),
        }
    }

    fn is_helpers(&self) -> bool {
        !self.is_programs.load(SeqCst)
    }

    fn has_one_sleeper(&self) -> bool {
        self.asleep.load(SeqCst) == 1 && !self.elsewhere.load(SeqCst) && !helper::is_busy()
    }
}

impl Device {
    /// The helper is notified from now on.
    pub(in crate::fabric) fn notify_helper(&self) {
        if !self.notification.is_helpers() {
            self.notify(false);
        }
    }

    /// The program sleeps by other means than on links: so is the helper for good.
    pub(in crate::fabric) fn note_awaited_elsewhere(&self) {
        self.notification.elsewhere.store(true, SeqCst);
        self.notify_helper();
    }

    /// After a tick in which the helper was told nothing: if the program did not look either, the helper is notified.
    pub(in crate::fabric) fn tick(&self) {
        let looks = self.looks();
        if self.notification.looks.swap(looks, Relaxed) == looks {
            self.notify_helper();
        }
    }

    #[cold]
    fn notify(&self, program: bool) {
        let notification = &self.notification;
        // A handler that is in here interrupted no thread that is.
        let _held = SignalsHeld::new();
        let _changing = notification.changing.lock();
        if notification.is_programs.swap(program, SeqCst) != program {
            self.with_descriptor(|descriptor| helper::notify(descriptor, !program));
        }
        if program {
            // It is to look whether that stays so.
            helper::wake_if_dormant();
        }
    }

    /// True if a thread is told from now on of what completes, if anything may complete.
    pub(in crate::fabric) fn is_attended(&self) -> bool {
        self.is_armed() && (self.is_retired() || self.notification.is_helpers())
    }

    /// A thread of the program counts as asleep on a link from now on, before the queue is armed for it.
    pub(in crate::fabric) fn add_sleeper(&'static self) -> Sleeper {
        self.notification.asleep.fetch_add(1, SeqCst);
        Sleeper { device: self, generation: generation() }
    }
}

/// A thread that counts as asleep on a link.
#[derive(Clone, Copy)]
pub(crate) struct Sleeper {
    device: &'static Device,
    /// The process to which it belongs. A child that a handler forked has another number.
    generation: u32,
}

impl Sleeper {
    /// It does not any more.
    pub(crate) fn wakes(self) {
        self.device.notification.asleep.fetch_sub(1, SeqCst);
    }

    /// The calling thread, which it is, gets the queue's notification. `None`: the helper is to
    /// ([`Link::notify_helper`](crate::fabric::Link::notify_helper)).
    pub(crate) fn be_notified(self) -> Option<Notified> {
        let notification = &self.device.notification;
        if self.generation != generation() || !notification.has_one_sleeper() {
            return None;
        }
        if notification.is_helpers() {
            self.device.notify(true);
        }
        // A thread that came meanwhile relies on the helper.
        notification.has_one_sleeper().then_some(Notified(self))
    }
}

/// The calling thread gets the notification of the port's queue.
pub(crate) struct Notified(Sleeper);

impl Notified {
    /// Readable when the queue tells.
    pub(crate) fn descriptor(&self) -> Option<Fd> {
        (self.0.generation == generation()).then(|| self.0.device.descriptor()).flatten()
    }

    /// It told: takes that. To be followed by a look.
    pub(crate) fn take_notice(&self) {
        if self.0.generation != generation() {
            return;
        }
        // A handler that has the queue tell must not meet this.
        let _undisturbed = Undisturbed::begin();
        self.0.device.take_notice();
        // The helper may sleep on, having been told nothing.
        helper::wake_if_dormant();
    }
}
