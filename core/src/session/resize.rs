//! The size of message buffers (A9): when the sender asks for larger ones, and who gives way when
//! both ask at once. Must not touch a buffer: the provider's caller makes the change.

use super::sync::{AtomicU32, Ordering};

/// Sends that did not fit into a message before larger messages are asked for.
const FRAGMENTATIONS: u32 = 64;
/// What both halves of one side know about resizing. Zeroed memory is a valid start.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Resize {
    /// Sends larger than a message since the last request; send lock.
    fragmented: AtomicU32,
    /// The largest of them in bytes; send lock.
    largest: AtomicU32,
    /// 1: our request is not answered yet. Set under the send lock, cleared under the receive lock.
    asked: AtomicU32,
    /// The answer to our request, not obeyed yet; 0: none. Receive lock.
    answer: AtomicU32,
    /// The size the peer asked for, not answered yet; 0: none. Receive lock.
    wanted: AtomicU32,
    /// Number of the message that asked. Receive lock.
    wanted_at: AtomicU32,
    /// How often the buffers we send into grew; send lock.
    grown: AtomicU32,
}

impl Resize {
    /// A send of `length` bytes did not fit into a message of `payload` bytes. `Some`: ask for
    /// messages with this much payload. `most`: the provider's largest. Send lock.
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
        // Who owes an answer does not ask: so both asked at once exactly if both see it so.
        let owes = self.wanted.load(Ordering::Relaxed) != 0;
        if count < FRAGMENTATIONS || owes || self.is_asking() {
            return None;
        }
        self.fragmented.store(0, Ordering::Relaxed);
        Some(largest)
    }

    /// Our request is about to go out: before that, since the answer may come at once. Send lock.
    pub fn asked(&self) {
        self.asked.store(1, Ordering::SeqCst);
    }

    /// It did not go out after all. Send lock.
    pub fn not_asked(&self) {
        self.asked.store(0, Ordering::SeqCst);
    }

    /// Our request is out: no data goes in messages until it is answered. Send lock.
    #[inline]
    pub fn is_asking(&self) -> bool {
        self.asked.load(Ordering::Acquire) != 0
    }

    /// The peer asks for `payload` bytes in message `sequence`. `connector`: we called connect.
    /// Where both asked at once, the acceptor disregards the connector's request and the connector
    /// forgets its own. Receive lock.
    pub fn requested(&self, payload: u32, sequence: u32, connector: bool) {
        // One that was answered is not out any more.
        if self.is_asking() && !self.has_answer() {
            if !connector {
                return;
            }
            self.asked.store(0, Ordering::Release);
        }
        self.wanted.store(payload, Ordering::Relaxed);
        self.wanted_at.store(sequence, Ordering::Relaxed);
    }

    /// True if the request is to be answered now: every message up to it was consumed. `next`: the
    /// number of the message to consume next. Receive lock.
    #[inline]
    pub fn is_due(&self, next: u32) -> bool {
        let wanted = self.wanted.load(Ordering::Relaxed);
        wanted != 0 && next.wrapping_sub(self.wanted_at.load(Ordering::Relaxed)) as i32 > 0
    }

    /// The answer went out. Both locks.
    pub fn answered(&self) {
        self.wanted.store(0, Ordering::Relaxed);
    }

    /// The peer answered with `payload` bytes. An answer that nobody waits for is to a request that
    /// was given up because both asked at once. Receive lock.
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
        self.answer.store(0, Ordering::Relaxed);
        self.asked.store(0, Ordering::Release);
        Some(answer)
    }

    /// True if an answer came and was not obeyed yet.
    #[inline]
    pub fn has_answer(&self) -> bool {
        self.answer.load(Ordering::Relaxed) != 0
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
        side.asked();
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
        connector.asked();
        acceptor.asked();
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
    fn a9_a_request_after_our_answer_came_does_not_cross_ours() {
        let acceptor = Resize::default();
        acceptor.asked();
        acceptor.answer(5000);
        acceptor.requested(4000, 9, false);
        assert!(acceptor.is_due(10));
    }

    #[test]
    fn an_answer_to_a_request_that_was_given_up_is_ignored() {
        let side = Resize::default();
        side.answer(4000);
        assert_eq!(side.take_answer(), None);
    }
}
