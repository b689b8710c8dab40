//! The way back of one direction to TCP: how its receiver ends reading on the SAN, and what its sender puts on the TCP
//! connection first. This module moves no bytes.

use super::direction::Direction;

/// How often what the peer promised may change under a receiver's last look. After that it looks another time.
const MOST_LOOKS: u32 = 64;

/// A receiver is about to end reading on the SAN; true if it has, and all that was sent there is read, or comes again. `unread`
/// looks for bytes there, which keep it from ending: unless `recalls_unread` and the sender can still send them again.
/// `stops` publishes how far it read and has the sender ring for what it sends from now on. `passes`: where the sender sent
/// again by itself, takes off what this end has read of that; true once that is gone. Under the receiver's lock.
pub(crate) fn end_reading<E>(
    word: &Direction,
    recalls_unread: bool,
    mut unread: impl FnMut() -> Result<bool, E>,
    mut stops: impl FnMut(),
    passes: impl FnOnce() -> Result<bool, E>,
) -> Result<bool, E> {
    let mut has_stopped = false;
    for _ in 0..MOST_LOOKS {
        // Before the look: what was sent before the peer left, closed, or rang is seen by it.
        let seen = word.state();
        if seen.left && seen.pulled {
            return passes();
        }
        if (unread()? && (seen.left || seen.closed || !recalls_unread)) || seen.pulled {
            return Ok(false);
        }
        if seen.left {
            return Ok(true);
        }
        if !has_stopped {
            // Look again: data published after this look rings. A sender that finds itself recalled sends again before
            // its call returns, so it may die afterwards.
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

/// How many of the bytes that a sender which left sends again over TCP are out already. `written`: the bytes that the
/// kernel counts on the connection, if it does. `turned_at`: those from before the turn. `resumed`: another process was
/// here before. `None`: nobody knows.
pub(crate) fn resent(written: Option<u64>, turned_at: u64, resumed: bool) -> Option<u64> {
    if resumed {
        written.map(|written| written.saturating_sub(turned_at))
    } else {
        Some(0)
    }
}

/// How many of the bytes that a sender sends again by itself, from position `from` of the stream on, its receiver has read
/// before, and not taken off the TCP connection yet. `read`: what it ever read on the SAN; `passed`: what it took off. `None`:
/// the position makes no sense.
pub(crate) fn read_twice(read: u64, from: u64, passed: u64) -> Option<u64> {
    read.checked_sub(from)?.checked_sub(passed)
}
