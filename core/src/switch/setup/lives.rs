//! Whether the connections of this process are short. What an end does for a long life is then left out, until one of
//! them lives. A server's connections may be short while those that it makes itself live, so each role counts for itself.

use crate::provider::shm::Role;
use crate::switch::socket::{phase, Socket};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// So many that ended in a row before they were busy tell that the next ones will be short, too.
const MANY: u32 = 8;

static MADE: Lives = Lives::new();
static ACCEPTED: Lives = Lives::new();

/// Threads count past each other, and lose one now and then.
struct Lives {
    /// So many ended in a row before they were busy.
    short: AtomicU32,
}

impl Lives {
    const fn new() -> Self {
        Lives { short: AtomicU32::new(0) }
    }

    fn of(role: Role) -> &'static Self {
        match role {
            Role::Connector => &MADE,
            Role::Acceptor => &ACCEPTED,
        }
    }

    fn note_end(&self) {
        let short = self.short.load(Relaxed);
        if short < MANY {
            self.short.store(short + 1, Relaxed);
        }
    }

    fn note_busy(&self) {
        if self.short.load(Relaxed) != 0 {
            self.short.store(0, Relaxed);
        }
    }

    fn are_short(&self) -> bool {
        self.short.load(Relaxed) >= MANY
    }
}

/// A connection has ended. One that stays on TCP does not count its transfers.
pub(in crate::switch) fn note_end(socket: &Socket) {
    let is_short = socket.phase() == phase::TCP && socket.traffic.is_short();
    if let Some(role) = socket.role().filter(|_| is_short) {
        Lives::of(role).note_end();
    }
}

/// A connection is busy.
pub(super) fn note_busy(socket: &Socket) {
    if let Some(role) = socket.role() {
        Lives::of(role).note_busy();
    }
}

/// True if a connection may become busy: it has made a good part of the transfers that this takes, or the last ones of
/// its role were not all short.
pub(super) fn may_live(socket: &Socket) -> bool {
    !socket.traffic.is_young() || !socket.role().is_some_and(|role| Lives::of(role).are_short())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_short_after_many_short_ones_until_one_is_busy() {
        let lives = Lives::new();
        for _ in 0..MANY {
            assert!(!lives.are_short());
            lives.note_end();
        }
        assert!(lives.are_short());
        lives.note_busy();
        assert!(!lives.are_short());
    }
}
