//! The way back of one direction to TCP: how its receiver ends reading on the SAN, and what its sender puts on the TCP
//! connection first. Must not move bytes.

use super::doorbells::{Doorbells, Rung};

/// How often what the peer promised may change under a receiver's last look. After that it looks another time.
const MOST_LOOKS: u32 = 64;

/// A receiver is about to end reading on the SAN; true if it has, and all that was sent there is read, or comes again. `unread`
/// looks for bytes there, which keep it from ending: unless `recalls_unread` and the sender can still send them again.
/// `stops` publishes how far it read and has the sender ring for what it sends from now on. Under the receiver's lock.
pub(crate) fn end_reading<E>(
    word: &Doorbells,
    recalls_unread: bool,
    mut unread: impl FnMut() -> Result<bool, E>,
    mut stops: impl FnMut(),
) -> Result<bool, E> {
    let mut has_stopped = false;
    for _ in 0..MOST_LOOKS {
        // Before the look: what was sent before the peer left, closed, or rang is seen by it.
        let seen = word.state();
        if unread()? && (seen.left || seen.closed || !recalls_unread) {
            return Ok(false);
        }
        if seen.left {
            return Ok(true);
        }
        if !has_stopped {
            // And another look: what comes behind this one is rung for. Nobody rings in vain for what is recalled, so
            // its sender sends it again before its call returns, and need not live any longer.
            stops();
            has_stopped = true;
            continue;
        }
        if word.recall(seen) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What a sender that left still has to put on the TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Doorbells.
    pub(crate) doorbells: u64,
    /// Behind them, of what it sends again, so many bytes are out.
    pub(crate) skip: u64,
}

/// Most doorbells that can be missing there: the last, and the one that is owed at most.
const MOST_MISSING: u64 = 2;

impl Missing {
    /// After the direction's word became final, with `owed` doorbells that had no room, and one to tell that this end left if
    /// that `rings`. `written`: how many bytes the kernel counts, if it does; where nobody was here before (`resumed`) it need
    /// not. `None`: nobody knows.
    pub(crate) fn of(
        word: Rung,
        owed: u64,
        rings: bool,
        written: Option<u64>,
        resumed: bool,
    ) -> Option<Missing> {
        // The last doorbell tells that this end left, unless the peer was first.
        let is_rung = rings && word.turned && !word.recalled;
        let first = word.bells.saturating_sub(owed + u64::from(is_rung));
        let written = if resumed { written? } else { first };
        let doorbells = word.bells.saturating_sub(written);
        let skip = written.saturating_sub(word.bells);
        (doorbells <= MOST_MISSING).then_some(Missing { doorbells, skip })
    }
}
