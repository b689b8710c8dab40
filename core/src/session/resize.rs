//! The size of message buffers (A9): when the sender asks for larger ones, and which end gives way when both ask at
//! once. This module touches no buffer: the provider's caller makes the change.

use super::sync::{AtomicU32, AtomicU64, Ordering};

/// Sends that did not fit into a message before larger messages are asked for.
const FRAGMENTATIONS: u32 = 64;
/// See `requests`.
const ASKED: u64 = 1 << 32;

/// What both halves of one side know about resizing. Zeroed memory is a valid start.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Resize {
    /// Sends larger than a message since the last request; send lock.
    fragmented: AtomicU32,
    /// The largest of them in bytes; send lock.
    largest: AtomicU32,
    /// Upper half 1: our request is noted or sent, and not answered yet; lower half: the size the peer
    /// asked for, not answered yet, 0 for none. One word: both locks' holders decide by both.
    requests: AtomicU64,
    /// The answer to our request, not obeyed yet; 0: none. Receive lock.
    answer: AtomicU32,
    /// Number of the message that asked. Receive lock.
    wanted_at: AtomicU32,
    /// How often the buffers we send into grew; send lock.
    grown: AtomicU32,
}

impl Resize {
    /// A send of `length` bytes did not fit into a message of `payload` bytes. `Some`: ask for
    /// messages with this much payload; from now on [`is_asking`](Self::is_asking). `most`: the
    /// provider's largest. Send lock.
    #[inline]
    pub fn fragmented(&self, length: usize, payload: u32, most: u32) -> Option<u32> {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        if length <= payload || length > most {
            return None;
        }
        let largest = self.largest.load(Ordering::Relaxed).max(length);
        self.largest.store(largest, Ordering::Relaxed);
        let count = self.fragmented.load(Ordering::Relaxed) + 1;
        self.fragmented.store(count, Ordering::Relaxed);
        // An end that owes an answer does not ask. So either both ends see that both asked at once, or neither does.
        let free = count >= FRAGMENTATIONS
            && self
                .requests
                .compare_exchange(0, ASKED, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if !free {
            return None;
        }
        self.fragmented.store(0, Ordering::Relaxed);
        Some(largest)
    }

    /// Our request is noted or out: no data goes in messages until it is answered. A request that
    /// gave way before it went out is not sent. Send lock.
    #[inline]
    pub fn is_asking(&self) -> bool {
        self.requests.load(Ordering::Acquire) & ASKED != 0
    }

    /// The bytes of payload that our request is for.
    pub(crate) fn asked_for(&self) -> u32 {
        self.largest.load(Ordering::Relaxed)
    }

    /// The peer asks for `payload` bytes in message `sequence`. `connector`: we called connect.
    /// Where both asked at once, the acceptor disregards the connector's request and the connector
    /// forgets its own. A request that comes after the answer to ours was made after it, not at
    /// once with it. Receive lock.
    pub fn requested(&self, payload: u32, sequence: u32, connector: bool) {
        let answered = self.has_answer();
        let decide = |requests: u64| match requests & ASKED {
            0 => Some(payload.into()),
            asked if answered => Some(asked | u64::from(payload)),
            _ if connector => Some(payload.into()),
            _ => None,
        };
        let decided = self.requests.fetch_update(Ordering::AcqRel, Ordering::Acquire, decide);
        if decided.is_ok() {
            self.wanted_at.store(sequence, Ordering::Relaxed);
        }
    }

    fn wanted(&self) -> u32 {
        self.requests.load(Ordering::Relaxed) as u32
    }

    /// True if this end has to answer the request now: every message up to it was consumed. `next`: the number of the
    /// message to consume next. The caller has the receive lock.
    #[inline]
    pub fn is_due(&self, next: u32) -> bool {
        self.wanted() != 0 && next.wrapping_sub(self.wanted_at.load(Ordering::Relaxed)) as i32 > 0
    }

    /// The answer is noted, and goes before any request of ours. The caller has the receive lock.
    pub fn answered(&self) {
        self.requests.fetch_and(ASKED, Ordering::AcqRel);
    }

    /// The peer answered with `payload` bytes. An answer for which nobody waits belongs to a request that was given up
    /// because both asked at once. The caller has the receive lock.
    pub fn answer(&self, payload: u32) {
        if self.is_asking() {
            self.answer.store(payload.max(1), Ordering::Release);
        }
    }

    /// The answer that came, to be obeyed once; the buffers grow if it is more than they have. Send
    /// lock.
    #[inline]
    pub fn take_answer(&self) -> Option<u32> {
        let answer = self.answer.load(Ordering::Acquire);
        if answer == 0 {
            return None;
        }
        // In this order: a reader that finds no answer, but a request, finds one that was made after this.
        self.requests.fetch_and(!ASKED, Ordering::AcqRel);
        self.answer.store(0, Ordering::Release);
        Some(answer)
    }

    /// True if an answer came and was not obeyed yet.
    #[inline]
    pub fn has_answer(&self) -> bool {
        self.answer.load(Ordering::Acquire) != 0
    }

    /// The buffers grew. Send lock.
    pub fn grew(&self) {
        self.grown.store(self.grown.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// How often they did.
    pub fn times_grown(&self) -> u32 {
        self.grown.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragment(side: &Resize, length: usize) -> Option<u32> {
        (0..FRAGMENTATIONS).find_map(|_| side.fragmented(length, 1520, 16384))
    }

    #[test]
    fn a9_many_fragmented_sends_ask_for_the_largest() {
        let side = Resize::default();
        assert_eq!(side.fragmented(9000, 1520, 16384), None);
        assert_eq!(fragment(&side, 4000), Some(9000));
        assert_eq!(fragment(&side, 4000), None);
        side.answer(9000);
        assert_eq!(side.take_answer(), Some(9000));
        assert_eq!(side.take_answer(), None);
        assert!(!side.is_asking());
    }

    #[test]
    fn a9_sends_that_fit_or_never_can_do_not_count() {
        let side = Resize::default();
        for _ in 0..1000 {
            assert_eq!(side.fragmented(1520, 1520, 16384), None);
            assert_eq!(side.fragmented(16385, 1520, 16384), None);
        }
    }

    #[test]
    fn a9_the_answer_waits_for_the_posted_receives() {
        let side = Resize::default();
        side.requested(4000, 7, false);
        assert!(!side.is_due(7));
        assert!(side.is_due(8));
        assert_eq!(fragment(&side, 4000), None, "who owes an answer does not ask");
        side.answered();
        assert!(!side.is_due(8));
    }

    #[test]
    fn a9_both_at_once_the_connector_gives_way_and_asks_again() {
        let (connector, acceptor) = (Resize::default(), Resize::default());
        assert!(fragment(&connector, 4000).is_some() && fragment(&acceptor, 5000).is_some());
        acceptor.requested(4000, 3, false);
        connector.requested(5000, 3, true);
        assert!(!acceptor.is_due(9));
        assert!(connector.is_due(9));
        connector.answered();
        acceptor.answer(5000);
        assert!(acceptor.has_answer());
        assert!(!connector.is_asking());
        assert_eq!(fragment(&connector, 4000), Some(4000));
    }

    #[test]
    fn a9_a_request_that_did_not_go_yet_gives_way_or_wins_too() {
        let (connector, acceptor) = (Resize::default(), Resize::default());
        assert!(fragment(&connector, 4000).is_some() && fragment(&acceptor, 5000).is_some());
        connector.requested(5000, 3, true);
        assert!(!connector.is_asking(), "it is not to be sent any more");
        assert!(connector.is_due(4));
        acceptor.answer(16384);
        assert_eq!(acceptor.take_answer(), Some(16384));
    }

    #[test]
    fn a9_a_request_after_the_answer_to_ours_is_no_collision() {
        for connector in [true, false] {
            let side = Resize::default();
            assert!(fragment(&side, 4000).is_some());
            side.answer(16384);
            side.requested(5000, 4, connector);
            assert!(side.is_due(5), "it is answered");
            assert_eq!(side.take_answer(), Some(16384), "and ours is obeyed");
            assert!(!side.is_asking());
            assert!(side.is_due(5));
        }
    }

    #[test]
    fn an_answer_to_a_request_that_was_given_up_is_ignored() {
        let side = Resize::default();
        side.answer(4000);
        assert_eq!(side.take_answer(), None);
    }
}
