//! Working off what was posted on a queue pair: one thread at a time, and nobody waits for it.
//!
//! Who finds another at it leaves a note, and that one looks once more. Who posts only begins requests
//! ([`Pair::pump`]); completions and messages are the business of who asks a completion queue
//! ([`Pair::run`]).

use super::channel::Channel;
use super::layout::{self, MESSAGES, SENDS};
use super::pair::{Pair, CONNECTED, ENDED, IDLE};
use crate::provider::interface::Error;
use crate::sys::process;
use std::sync::atomic::{fence, Ordering};

/// Largest message in bytes: at least three fit into a ring.
pub(super) const MAX_MESSAGE: u32 = 64 << 10;
/// How long, in yields, who ends a queue pair waits for its turn.
const ATTEMPTS: u32 = 100_000;

/// How far a queue pair has come. Positions count bytes, numbers messages and requests, from zero.
#[derive(Default)]
pub(super) struct Engine {
    /// Bytes put into the ring.
    pub(super) written: u64,
    /// Of them, those that the peer took.
    pub(super) acknowledged: u64,
    /// Messages put there.
    pub(super) sent: u64,
    /// Bytes taken out of the peer's ring.
    pub(super) taken: u64,
    /// Requests that were begun.
    pub(super) issued: u64,
    /// One of them failed: those after it are not begun.
    pub(super) broken: bool,
}

impl Pair {
    /// Gets a turn at the engine; false: another has it, and will look once more.
    pub(super) fn enter(&self) -> bool {
        if self.busy.swap(true, Ordering::SeqCst) {
            self.again.store(true, Ordering::SeqCst);
            // Once more: it may just have finished.
            if self.busy.swap(true, Ordering::SeqCst) {
                return false;
            }
        }
        // What was noted before, we are about to see.
        if self.again.load(Ordering::SeqCst) {
            self.again.store(false, Ordering::SeqCst);
        }
        true
    }

    /// Ends the turn; true if somebody came meanwhile.
    pub(super) fn leave(&self) -> bool {
        self.busy.store(false, Ordering::SeqCst);
        self.again.load(Ordering::SeqCst)
    }

    /// Begins requests.
    pub(super) fn pump(&self) {
        let mut came = false;
        while self.enter() {
            // SAFETY: it is our turn.
            let engine = unsafe { &mut *self.engine.get() };
            if let Some(channel) = self.channel.get().filter(|_| self.phase() == CONNECTED) {
                self.issue(engine, channel);
            }
            if !self.leave() {
                break;
            }
            came = true;
        }
        if came {
            // It may have been somebody who looked before going to sleep.
            self.kick_awaited();
        }
    }

    /// Takes messages, begins requests, and tells of those that are over.
    pub(super) fn run(&self) {
        while self.enter() {
            // SAFETY: it is our turn.
            self.work(unsafe { &mut *self.engine.get() });
            if !self.leave() {
                break;
            }
        }
    }

    fn work(&self, engine: &mut Engine) {
        match (self.phase(), self.channel.get()) {
            (CONNECTED, Some(channel)) => {
                self.take_messages(engine, channel);
                self.issue(engine, channel);
                self.complete(engine, channel);
                if channel.is_over() || self.ending.load(Ordering::SeqCst) {
                    self.fail(engine, channel, layout::ENDED, true);
                }
            }
            (ENDED, _) => self.cancel_all(engine),
            _ => {}
        }
    }

    /// Ends the queue pair: every request, and what the peer can reach (M2). What the peer sent before
    /// still arrives where a buffer is posted.
    pub(super) fn end(&self) {
        if self.is_inherited() {
            return;
        }
        for _ in 0..ATTEMPTS {
            if !self.enter() {
                process::yield_now();
                continue;
            }
            // SAFETY: it is our turn.
            let engine = unsafe { &mut *self.engine.get() };
            match (self.phase(), self.channel.get()) {
                (CONNECTED, Some(channel)) => self.fail(engine, channel, layout::ENDED, true),
                _ => {
                    self.phase.store(ENDED, Ordering::SeqCst);
                    self.cancel_all(engine);
                }
            }
            if self.leave() {
                self.run();
            }
            return;
        }
        // Interrupted, and we are the signal handler.
        self.ending.store(true, Ordering::SeqCst);
        self.kick_awaited();
    }

    /// The peer did what it must not.
    #[cold]
    pub(super) fn reject_peer(&self, channel: &Channel, what: &str) {
        if !self.ending.swap(true, Ordering::SeqCst) {
            log::warn!("shm: a connection is ended: {what}");
            channel.hang_up();
            self.kick_awaited();
        }
    }

    /// Ends the queue pair; `code` is what the peer is told. `takes`: what it sent before still arrives.
    pub(super) fn fail(&self, engine: &mut Engine, channel: &Channel, code: u32, takes: bool) {
        if self.phase.swap(ENDED, Ordering::SeqCst) == ENDED {
            return;
        }
        channel.own().sleeping.0.ended.store(code, Ordering::SeqCst);
        // A peer that has not seen this counts on the buffers that are posted: its messages are seen below.
        fence(Ordering::SeqCst);
        self.close_windows();
        if takes {
            self.take_messages(engine, channel);
        }
        while let Some(first) = self.first(engine) {
            let Some(Ok(())) = self.outcome(engine, channel, &first) else { break };
            self.requests.end_first();
            self.tell(&first, Ok(()));
        }
        self.cancel_all(engine);
        channel.wake(MESSAGES | SENDS);
    }

    /// Cancels what is left, and what was posted since.
    fn cancel_all(&self, engine: &mut Engine) {
        debug_assert_ne!(self.phase(), IDLE);
        loop {
            let outstanding = self.requests.outstanding();
            if outstanding.is_empty() {
                break;
            }
            // SAFETY: outstanding; it is our turn, and the copy outlives the reference.
            let request = *unsafe { self.requests.at(outstanding.start) }.0;
            self.requests.end_first();
            self.tell(&request, Err(Error::Cancelled));
        }
        engine.issued = self.requests.outstanding().start;
        self.seen.issued.store(engine.issued, Ordering::Relaxed);
        if self.shared.is_none() {
            while let Some(receive) = self.next_receive() {
                self.tell_received(&receive, Err(Error::Cancelled));
            }
        }
        self.close_windows();
    }
}
