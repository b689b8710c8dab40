//! How long an offer over a fabric waits for the acceptor (A4), in time that the acceptor had as well: where the
//! host or its processes stood still, a clock alone would say that it did not answer. Knows no socket.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// How soon (ns) a session that nobody took is looked after while somebody waits for it; doubled each
/// time.
const FIRST_NAP: u64 = 500_000;
/// So often while nobody accepted the connection,
const DOUBLINGS: u32 = 8;
/// and so often after that, so that the whole wait is many naps, in each of which the acceptor can run.
const DOUBLINGS_ACCEPTED: u32 = 5;
/// More (ns) does not count between two looks: two such naps, since a program may also look by itself, and
/// less often.
const MOST_COUNTED: u64 = 2 * (FIRST_NAP << DOUBLINGS_ACCEPTED);

/// All zero is a valid start. May lie in memory that the processes of one side share.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct OfferTimeout {
    naps: AtomicU32,
    /// Clock (ns) of the last look; zero: none yet.
    looked_at: AtomicU64,
    /// What counted (ns) until then.
    waited: AtomicU64,
}

impl OfferTimeout {
    /// How long (ns) to sleep before the next look.
    pub(crate) fn nap(&self) -> u64 {
        let accepted = self.looked_at.load(Relaxed) != 0;
        let most = if accepted { DOUBLINGS_ACCEPTED } else { DOUBLINGS };
        FIRST_NAP << self.naps.fetch_add(1, Relaxed).min(most)
    }

    /// How long (ns) was waited since the first look at the accepted connection, `now` (ns) being another.
    pub(crate) fn waited(&self, now: u64) -> u64 {
        let passed = match self.looked_at.swap(now, Relaxed) {
            0 => 0,
            last => now.saturating_sub(last).min(MOST_COUNTED),
        };
        self.waited.fetch_add(passed, Relaxed) + passed
    }

    /// Nothing was waited for yet.
    pub(crate) fn start_anew(&self) {
        self.looked_at.store(0, Relaxed);
        self.waited.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn naps_grow_and_are_shorter_once_the_connection_is_accepted() {
        let timeout = OfferTimeout::default();
        let naps: Vec<u64> = (0..12).map(|_| timeout.nap()).collect();
        assert!(naps.is_sorted());
        assert_eq!(naps[11], 128 * MS);
        assert_eq!(timeout.waited(MS), 0);
        assert_eq!(timeout.nap(), 16 * MS);
    }

    #[test]
    fn naps_count_in_full() {
        let timeout = OfferTimeout::default();
        let mut now = 1;
        assert_eq!(timeout.waited(now), 0);
        let naps: Vec<u64> = (0..40).map(|_| timeout.nap()).collect();
        for nap in &naps {
            now += nap;
            timeout.waited(now);
        }
        assert_eq!(timeout.waited(now), naps.iter().sum());
        timeout.start_anew();
        assert_eq!(timeout.waited(now + 1), 0);
    }

    /// Both ends stopped for a minute, again and again: the acceptor has not failed to answer.
    #[test]
    fn a_standstill_counts_as_one_nap() {
        let timeout = OfferTimeout::default();
        timeout.waited(MS);
        for standstills in 1..7 {
            assert_eq!(timeout.waited((1 + standstills * 60_000) * MS), standstills * MOST_COUNTED);
        }
        assert!(timeout.waited(360_002 * MS) < 250 * MS);
    }
}
