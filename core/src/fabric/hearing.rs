//! Who hears the completion queue of a port tell.
//!
//! The helper does, and wakes those whose events came. A thread of the program that sleeps alone hears it too, two thread
//! switches sooner; while it does so again and again the helper is deaf, and only looks after every tick whether it still does.
//! Without limit the helper sleeps only while it hears.

use super::generation;
use super::helper;
use super::link::Link;
use super::port::Port;
use crate::sys::process::SignalsHeld;
use crate::sys::Fd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Mutex, PoisonError};

/// Part of a port.
#[derive(Default)]
pub(super) struct Hearing {
    /// The helper does not hear it. Changed with `changing` held.
    is_programs: AtomicBool,
    changing: Mutex<()>,
    /// Threads asleep on links of the port.
    asleep: AtomicU32,
    /// The program may sleep by other means than those: on an epoll set, or until a signal.
    elsewhere: AtomicBool,
    /// [`Port::looks`] at the helper's last tick.
    looks: AtomicU32,
}

impl Hearing {
    /// True if the helper hears it.
    pub(super) fn is_helpers(&self) -> bool {
        !self.is_programs.load(SeqCst)
    }

    fn is_alone(&self) -> bool {
        self.asleep.load(SeqCst) == 1 && !self.elsewhere.load(SeqCst) && !helper::is_busy()
    }

    /// The helper hears it.
    pub(super) fn give_to_helper(&self, port: &Port) {
        if !self.is_helpers() {
            self.give(port, false);
        }
    }

    /// After a tick in which nothing was heard: if the program did not look either, the helper hears it.
    pub(super) fn tick(&self, port: &Port) {
        let looks = port.looks();
        if self.looks.swap(looks, Relaxed) == looks {
            self.give_to_helper(port);
        }
    }

    #[cold]
    fn give(&self, port: &Port, to_program: bool) {
        // Who is in here in a handler interrupted nobody who is.
        let _held = SignalsHeld::new();
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_programs.swap(to_program, SeqCst) != to_program {
            port.with_descriptor(|descriptor| helper::hear(descriptor, !to_program));
        }
        if to_program {
            // It is to look whether that stays so.
            helper::wake_if_dormant();
        }
    }
}

/// A thread that counts as asleep on a link.
#[derive(Clone, Copy)]
pub struct Sleeper {
    port: &'static Port,
    /// The process that it is of: in a child that a handler forked it is nobody.
    generation: u32,
}

impl Sleeper {
    /// It does not any more.
    pub fn wakes(self) {
        self.port.hearing.asleep.fetch_sub(1, SeqCst);
    }

    /// The calling thread, which it is, hears the queue itself. `None`: the helper is to ([`Link::let_helper_hear`]).
    pub fn hear(self) -> Option<Ear> {
        let hearing = &self.port.hearing;
        if self.generation != generation() || !hearing.is_alone() {
            return None;
        }
        if hearing.is_helpers() {
            hearing.give(self.port, true);
        }
        // Who came meanwhile relies on the helper.
        hearing.is_alone().then_some(Ear(self))
    }
}

/// The calling thread hears the port's queue.
pub struct Ear(Sleeper);

impl Ear {
    /// Readable when the queue tells.
    pub fn descriptor(&self) -> Option<Fd> {
        (self.0.generation == generation()).then(|| self.0.port.descriptor()).flatten()
    }

    /// It told: takes that. To be followed by a look.
    pub fn heard(&self) {
        if self.0.generation != generation() {
            return;
        }
        // A handler that has the queue tell must not meet this.
        let _held = SignalsHeld::new();
        self.0.port.take_notice();
        // It may sleep on, having heard nothing.
        helper::wake_if_dormant();
    }
}

impl Link {
    /// A thread of the program counts as asleep on it from now on, before the queue is armed for it.
    pub fn falls_asleep(&self) -> Option<Sleeper> {
        if self.is_foreign() {
            return None;
        }
        let port = self.port();
        port.hearing.asleep.fetch_add(1, SeqCst);
        Some(Sleeper { port, generation: generation() })
    }

    /// The calling thread sleeps on its event, among other things: the helper is to hear the queue.
    pub fn let_helper_hear(&self) {
        if !self.is_foreign() {
            self.port().hearing.give_to_helper(self.port());
        }
    }

    /// The program sleeps by other means than on the link: the helper is to hear the queue from now on.
    pub fn is_awaited_elsewhere(&self) {
        if !self.is_foreign() {
            self.port().hearing.elsewhere.store(true, SeqCst);
            self.let_helper_hear();
        }
    }
}
