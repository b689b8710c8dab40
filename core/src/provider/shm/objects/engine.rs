//! The engine works off what was posted on a queue pair. One thread at a time has a turn, and no thread waits for a
//! turn.
//!
//! - A thread that finds another at its turn leaves a note and goes on. The other sees the note and looks once more.
//! - Posting only begins requests ([`LocalPair::pump`]).
//! - Messages and completions are taken when a client asks a completion queue for results ([`LocalPair::run`]).
//! - To end a queue pair ([`LocalPair::end`]) takes back what the peer can reach, and stops the rest. The next thread
//!   that asks a completion queue learns what was outstanding.

use super::channel::{ChannelParts, LocalChannel};
use super::layout;
use super::pair::{LocalPair, CONNECTED, ENDED, IDLE};
use super::progress::PairProgress;
use crate::provider::interface::{Error, ProviderResult};
use crate::sys::process;
use std::sync::atomic::{fence, Ordering};

/// How long (ns) a thread that ends a queue pair waits for writes of the peer's that are under way. A piece is copied
/// in much less.
const MOMENT: u64 = 4_000_000;

impl LocalPair {
    /// Gets a turn at the engine; false: another has it, and will look once more.
    fn begin_turn(&self) -> bool {
        if self.busy.swap(true, Ordering::SeqCst) {
            self.again.store(true, Ordering::SeqCst);
            // Once more: it may just have finished.
            if self.busy.swap(true, Ordering::SeqCst) {
                return false;
            }
        }
        // This turn is about to see what was noted before.
        if self.again.load(Ordering::SeqCst) {
            self.again.store(false, Ordering::SeqCst);
        }
        true
    }

    /// Ends the turn. True if a thread came meanwhile.
    fn end_turn(&self) -> bool {
        self.busy.store(false, Ordering::SeqCst);
        self.again.load(Ordering::SeqCst)
    }

    /// Takes turns until no thread has left a note meanwhile. True if one had.
    fn take_turns(&self, turn: impl Fn(&mut PairProgress)) -> bool {
        let mut came = false;
        while self.begin_turn() {
            // SAFETY: it is our turn.
            turn(unsafe { &mut *self.progress.get() });
            if !self.end_turn() {
                break;
            }
            came = true;
        }
        came
    }

    /// The channel, as long as requests may begin.
    #[inline]
    fn running(&self) -> Option<&LocalChannel> {
        let is_running = self.phase() == CONNECTED && !self.ending.load(Ordering::SeqCst);
        self.channel.get().filter(|_| is_running)
    }

    /// The connection is there.
    pub(super) fn open(&self, parts: ChannelParts) -> ProviderResult<()> {
        if self.phase() != IDLE || self.channel.set(LocalChannel::new(parts)).is_err() {
            return Err(Error::InvalidParameter);
        }
        let channel = self.channel.get().ok_or(Error::Internal)?;
        channel.introduce();
        while !self.begin_turn() {
            process::yield_now();
        }
        self.announce_all(channel);
        let connected =
            self.phase.compare_exchange(IDLE, CONNECTED, Ordering::SeqCst, Ordering::SeqCst);
        if self.end_turn() {
            self.pump();
        }
        // It was ended meanwhile.
        connected.map_err(|_| Error::Cancelled)?;
        self.queues().try_for_each(|queue| queue.watch(channel, self.key))
    }

    /// Announces the receives that were posted before there was a connection. Called in our turn.
    fn announce_all(&self, channel: &LocalChannel) {
        for number in self.receives.outstanding() {
            // SAFETY: outstanding, and it is our turn.
            let (receive, _) = unsafe { self.receives.at(number) };
            let capacity = self.memory.check(receive.into.segments()).unwrap_or(0);
            self.announce(channel, number, capacity);
        }
    }

    /// Begins requests.
    pub(super) fn pump(&self) {
        let came = self.take_turns(|progress| {
            if let Some(channel) = self.running() {
                self.issue(progress, channel);
            }
            self.heed_end();
        });
        if came {
            // A thread may have looked before it went to sleep.
            self.kick_awaited();
        }
    }

    /// Takes messages, begins requests, and tells of those that are over.
    pub(super) fn run(&self) {
        self.take_turns(|progress| self.work(progress));
    }

    fn work(&self, progress: &mut PairProgress) {
        if let Some(channel) = self.running() {
            self.take_messages(progress, channel);
        }
        // The engine may have ended the queue pair for something that it found there. The peer then relies on it that nothing begins (M2).
        if let Some(channel) = self.running() {
            self.issue(progress, channel);
        }
        if let Some(channel) = self.running() {
            self.complete(progress, channel);
            if channel.is_over() {
                self.stop(layout::ENDED);
            }
        }
        // The peer may have taken more by now than when there was no room, and no thread looks for that again.
        if progress.issued < self.requests.outstanding().end {
            if let Some(channel) = self.running() {
                self.issue(progress, channel);
            }
        }
        self.heed_end();
        if self.phase() == ENDED {
            self.settle(progress);
        }
    }

    fn heed_end(&self) {
        if self.ending.load(Ordering::SeqCst) {
            self.stop(layout::ENDED);
        }
    }

    /// Ends the queue pair: every request, and what the peer can reach (M2). Earlier messages of the peer still arrive
    /// where a buffer is posted. This takes no lock, and waits for a moment at most.
    pub(super) fn end(&self) {
        if self.is_inherited() {
            return;
        }
        self.ending.store(true, Ordering::SeqCst);
        // Ordered against a thread that opens a window, and then looks whether the queue pair ends.
        fence(Ordering::SeqCst);
        if !self.close_windows(MOMENT) {
            self.seen.stuck.store(true, Ordering::SeqCst);
        }
        self.pump();
    }

    /// Tells of everything that is left after the end, and of what was posted since.
    fn settle(&self, progress: &mut PairProgress) {
        if let Some(channel) = self.channel.get() {
            if !progress.is_deaf {
                self.take_messages(progress, channel);
                progress.is_deaf = true;
            }
            self.complete(progress, channel);
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
        progress.issued = self.requests.outstanding().start;
        self.seen.issued.store(progress.issued, Ordering::Relaxed);
        if self.shared.is_none() {
            while let Some(receive) = self.next_receive() {
                self.tell_received(&receive, Err(Error::Cancelled));
            }
        }
        self.seen.stuck.store(!self.close_windows(0), Ordering::SeqCst);
        self.seen.settled.store(true, Ordering::Relaxed);
    }
}
