//! The way back of one direction to TCP: how its receiver ends reading on the SAN, and what its sender puts on the TCP
//! connection first. Must not move bytes.

use super::direction::Direction;

/// How often what the peer promised may change under a receiver's last look. After that it looks another time.
const MOST_LOOKS: u32 = 64;

/// A receiver is about to end reading on the SAN; true if it has, and all that was sent there is read, or comes again. `unread`
/// looks for bytes there, which keep it from ending: unless `recalls_unread` and the sender can still send them again.
/// `stops` publishes how far it read and has the sender ring for what it sends from now on. Under the receiver's lock.
pub(crate) fn end_reading<E>(
    word: &Direction,
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

/// How many of the bytes that a sender which left sends again over TCP are out already. `written`: the bytes that the kernel
/// counts on the connection, if it does; `turned_at`: those from before the turn. `resumed`: somebody was here before. `None`:
/// nobody knows.
pub(crate) fn resent(written: Option<u64>, turned_at: u64, resumed: bool) -> Option<u64> {
    if resumed {
        written.map(|written| written.saturating_sub(turned_at))
    } else {
        Some(0)
    }
}
