//! How much of its time a process gives to the moves of its connections. A client that opened hundreds at once makes the same
//! number of transfers on each of them. Without a pace all of them move at the same moment, and the client's requests wait
//! meanwhile. The connector sets the pace: its offer is the first step that costs much at either end.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// After a move the process waits with the next one for so many times as long as the offer and the entry took.
const REST: u64 = 15;
/// A process need not wait before it owes so much (ns): a pool of connections moves at once.
const IN_HAND: u64 = 100_000_000;

/// When the next offer may be made (ns).
static FREE_AT: AtomicU64 = AtomicU64::new(0);

/// Whether a connector may make an offer now.
pub(super) fn allows(now: u64) -> bool {
    is_free(FREE_AT.load(Relaxed), now)
}

/// Counts the work on a move, which ended `now` and took so long (ns). The caller has the structure lock.
pub(super) fn count(took: u64, now: u64) {
    FREE_AT.store(after(FREE_AT.load(Relaxed), took, now), Relaxed);
}

fn is_free(free_at: u64, now: u64) -> bool {
    free_at <= now
}

fn after(free_at: u64, took: u64, now: u64) -> u64 {
    // A thread that lost its processor meanwhile took no longer than that for the move.
    let took = took.min(IN_HAND / REST);
    free_at.max(now.saturating_sub(IN_HAND)) + took * REST
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOVE: u64 = 200_000;
    const SECOND: u64 = 1_000_000_000;

    /// How many moves begin in a second, with one wanted at each moment.
    fn moves_in(from: u64, time: u64) -> u64 {
        let (mut now, mut free_at, mut moves) = (from, 0, 0);
        while now < from + time {
            if is_free(free_at, now) {
                free_at = after(free_at, MOVE, now + MOVE);
                moves += 1;
                now += MOVE;
            } else {
                now += 10_000;
            }
        }
        moves
    }

    #[test]
    fn a_pool_moves_at_once_and_hundreds_take_a_share_of_the_time() {
        let at_once = IN_HAND / (MOVE * REST);
        assert!(moves_in(SECOND, at_once * MOVE) >= at_once, "of {at_once}");
        let in_a_second = moves_in(SECOND, SECOND);
        assert!(in_a_second * MOVE < SECOND / 10, "{in_a_second}");
        assert!(in_a_second * MOVE > SECOND / 20, "{in_a_second}");
    }

    #[test]
    fn a_move_that_was_held_up_counts_as_one() {
        assert!(after(0, 10 * SECOND, 11 * SECOND) <= 11 * SECOND);
    }
}
