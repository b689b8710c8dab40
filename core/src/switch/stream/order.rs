//! A receiver sees what a process did through the kernel before what that process sent over the SAN afterwards. So the
//! sender publishes with each send when it last did something in the kernel. The receiver asks the kernel first if it has not asked since.

use super::Stream;
use crate::provider::shm::Side;
use crate::sys::actions::{self, Times};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Raises a word of this end's to `time`. Mostly it is there already.
#[inline(always)]
fn raise(word: &AtomicU64, time: u64) {
    if word.load(Relaxed) < time {
        word.fetch_max(time, Relaxed);
    }
}

impl Stream<'_> {
    /// Publishes what this process did through the kernel, before it publishes something else.
    #[inline(always)]
    pub(crate) fn tell_actions(&self) {
        let (own, last): (&Side, Times) = (self.own(), actions::last());
        raise(&own.sending.0.acted, last.acted);
        raise(&own.sending.0.rang, last.rang);
    }

    /// What the peer did before all that this end sees of it on this connection.
    #[inline(always)]
    pub(crate) fn peers_actions(&self) -> Times {
        let sending = &self.peer().sending.0;
        Times { acted: sending.acted.load(Relaxed), rang: sending.rang.load(Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Ends;
    use super::*;
    use crate::sys::time;

    #[test]
    fn the_peer_is_told_of_the_latest_action() {
        let Ends { left, right } = Ends::new();
        actions::begin();
        let before = time::ticks();
        actions::note();
        assert!(right.peers_actions().acted < before);
        left.tell_actions();
        assert!(right.peers_actions().acted >= before);
        // A relative of the sender did something later.
        left.own().sending.0.acted.store(u64::MAX, Relaxed);
        left.tell_actions();
        assert_eq!(right.peers_actions().acted, u64::MAX);
    }
}
