//! Working off what was posted on a queue pair: one thread at a time, and nobody waits for it.
//!
//! Who finds another at it leaves a note, and that one looks once more. Who posts only begins requests
//! ([`Pair::pump`]); completions and messages are the business of who asks a completion queue
//! ([`Pair::run`]). Who ends a queue pair ([`Pair::end`]) takes back what the peer can reach and has the rest
//! stop: what is outstanding is told of by who asks next.

use super::channel::Channel;
use super::layout::{self, ACKNOWLEDGEMENTS, MESSAGES};
use super::pair::{Pair, CONNECTED, ENDED};
use crate::provider::interface::Error;
use std::sync::atomic::{fence, Ordering};

/// Largest message in bytes: at least three fit into a ring.
pub(super) const MAX_MESSAGE: u32 = 64 << 10;
/// How long (ns) who ends a queue pair waits for writes of the peer's that are under way: a piece is copied
/// in much less.
const MOMENT: u64 = 4_000_000;

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
    /// No message is taken any more.
    pub(super) is_deaf: bool,
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

    /// Takes turns until nobody has left a note meanwhile; whether somebody had.
    fn take_turns(&self, turn: impl Fn(&mut Engine)) -> bool {
        let mut came = false;
        while self.enter() {
            // SAFETY: it is our turn.
            turn(unsafe { &mut *self.engine.get() });
            if !self.leave() {
                break;
            }
            came = true;
        }
        came
    }

    /// The channel, as long as requests may begin.
    #[inline]
    pub(super) fn running(&self) -> Option<&Channel> {
        let is_running = self.phase() == CONNECTED && !self.ending.load(Ordering::SeqCst);
        self.channel.get().filter(|_| is_running)
    }

    /// Begins requests.
    pub(super) fn pump(&self) {
        let came = self.take_turns(|engine| {
            if let Some(channel) = self.running() {
                self.issue(engine, channel);
            }
            self.heed_end();
        });
        if came {
            // It may have been somebody who looked before going to sleep.
            self.kick_awaited();
        }
    }

    /// Takes messages, begins requests, and tells of those that are over.
    pub(super) fn run(&self) {
        self.take_turns(|engine| self.work(engine));
    }

    fn work(&self, engine: &mut Engine) {
        if let Some(channel) = self.running() {
            self.take_messages(engine, channel);
        }
        // What was found there may have ended it: the peer then relies on it that nothing begins (M2).
        if let Some(channel) = self.running() {
            self.issue(engine, channel);
        }
        if let Some(channel) = self.running() {
            self.complete(engine, channel);
            if channel.is_over() {
                self.stop(layout::ENDED);
            }
        }
        // The peer may be known to have taken more by now than when there was no room: nobody looks for that again.
        if engine.issued < self.requests.outstanding().end {
            if let Some(channel) = self.running() {
                self.issue(engine, channel);
            }
        }
        self.heed_end();
        if self.phase() == ENDED {
            self.settle(engine);
        }
    }

    fn heed_end(&self) {
        if self.ending.load(Ordering::SeqCst) {
            self.stop(layout::ENDED);
        }
    }

    /// Ends the queue pair: every request, and what the peer can reach (M2). What the peer sent before
    /// still arrives where a buffer is posted. Takes no lock, and waits for a moment at most.
    pub(super) fn end(&self) {
        if self.is_inherited() {
            return;
        }
        self.ending.store(true, Ordering::SeqCst);
        // Against who is opening a window, and then looks whether it ends.
        fence(Ordering::SeqCst);
        if !self.close_windows(MOMENT) {
            self.seen.stuck.store(true, Ordering::SeqCst);
        }
        self.pump();
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

    /// The queue pair has ended; `code` is what the peer is told. In our turn. To be settled by who asks for
    /// completions.
    pub(super) fn stop(&self, code: u32) {
        if self.phase.swap(ENDED, Ordering::SeqCst) == ENDED {
            return;
        }
        if let Some(channel) = self.channel.get() {
            channel.own().sleeping.0.ended.store(code, Ordering::SeqCst);
            // A peer that has not seen this counts on the buffers that are posted: after the fence in
            // there its messages are seen.
            channel.wake(MESSAGES | ACKNOWLEDGEMENTS);
        }
        self.seen.stuck.store(!self.close_windows(0), Ordering::SeqCst);
        self.kick_awaited();
    }

    /// Tells of everything that is left after the end, and of what was posted since.
    fn settle(&self, engine: &mut Engine) {
        if let Some(channel) = self.channel.get() {
            if !engine.is_deaf {
                self.take_messages(engine, channel);
                engine.is_deaf = true;
            }
            self.complete(engine, channel);
        }
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
        self.seen.stuck.store(!self.close_windows(0), Ordering::SeqCst);
        self.seen.settled.store(true, Ordering::Relaxed);
    }
}
