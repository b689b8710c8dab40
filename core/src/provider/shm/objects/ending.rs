//! How a queue pair ends. Its peer is told, and reaches nothing of it any more. The [`engine`](super::engine) then
//! reports the requests that are outstanding.

use super::channel::LocalChannel;
use super::layout::{ACKNOWLEDGEMENTS, MESSAGES};
use super::pair::{LocalPair, ENDED};
use std::sync::atomic::Ordering;

impl LocalPair {
    /// The peer did what it must not.
    #[cold]
    pub(super) fn reject_peer(&self, channel: &LocalChannel, what: &str) {
        if !self.ending.swap(true, Ordering::SeqCst) {
            log::warn!("shm: a connection is ended: {what}");
            channel.hang_up();
            self.kick_awaited();
        }
    }

    /// The queue pair has ended. The peer is told `code`. Called in our turn. The thread that asks for completions
    /// settles the rest.
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
}
