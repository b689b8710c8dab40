//! Model check of the word that says which way a direction goes.

use super::direction::Direction;
use super::sync::{AtomicU32, Ordering};
use super::{bounded, Reached};
use loom::sync::Arc;
use loom::thread;

/// The word, and what the kernel has of the sender's socket.
fn turned() -> (Arc<Direction>, Arc<AtomicU32>) {
    let word = Arc::new(Direction::new());
    word.begin_turned();
    let sent = Arc::new(AtomicU32::new(0));
    sent.load(Ordering::Relaxed);
    (word, sent)
}

/// By a receiver that looks again where the sender rang since its last look.
fn recall(word: &Direction) -> bool {
    (0..3).any(|_| word.recall(word.state()))
}

/// However leaving, ringing and recalling meet, both ends agree who sends what is unread, and a ring that was granted comes
/// before the recall.
#[test]
fn one_end_decides_who_sends_again() {
    let reached = std::sync::Arc::new(Reached::default());
    let seen = reached.clone();
    bounded(3, move || {
        let (word, _) = turned();
        let ringer = thread::spawn({
            let word = word.clone();
            move || word.ring()
        });
        let leaver = thread::spawn({
            let word = word.clone();
            move || word.leave().recalled
        });
        let recalled = recall(&word);
        let counted = word.state().rings;
        let rang = ringer.join().unwrap();
        let sends_again = leaver.join().unwrap();
        assert_eq!(sends_again, recalled);
        assert!(!recalled || counted == u64::from(rang), "a ring after the recall");
        seen.note((u32::from(rang), u32::from(sends_again)));
    });
    assert_eq!(reached.states(), [(0, 0), (0, 1), (1, 0), (1, 1)]);
}

/// However pulling and recalling meet, one end alone says from where on the bytes come again.
#[test]
fn what_is_pulled_is_not_recalled() {
    let reached = std::sync::Arc::new(Reached::default());
    let seen = reached.clone();
    bounded(3, move || {
        let (word, _) = turned();
        let sender = thread::spawn({
            let word = word.clone();
            move || {
                let pulled = word.pull();
                word.leave();
                pulled
            }
        });
        let recalled = recall(&word);
        let pulled = sender.join().unwrap();
        assert_eq!(word.state().pulled, pulled);
        assert_eq!(word.state().recalled, recalled);
        assert!(!(pulled && recalled));
        seen.note((u32::from(pulled), u32::from(recalled)));
    });
    assert_eq!(reached.states(), [(0, 1), (1, 0)]);
}

/// A receiver that sends again in the sender's stead never sends beside the sender: that one, if it comes to it meanwhile,
/// waits until what the receiver sent is all there.
#[test]
fn who_stands_in_never_sends_beside_the_sender() {
    let reached = std::sync::Arc::new(Reached::default());
    let seen = reached.clone();
    bounded(3, move || {
        // One piece of the stream is sent again.
        let (word, sent) = turned();
        let sender = thread::spawn({
            let (word, sent) = (word.clone(), sent.clone());
            move || {
                let before = word.leave();
                let is_awaited = before.claimed && word.state().claimed;
                if !is_awaited {
                    let there = sent.load(Ordering::SeqCst);
                    assert!(before.replayed || there == 0);
                }
                before.replayed
            }
        });
        recall(&word);
        let claimed = word.claim();
        if claimed {
            assert_eq!(sent.fetch_add(1, Ordering::SeqCst), 0);
            word.release();
        }
        let was_replayed = sender.join().unwrap();
        seen.note((u32::from(was_replayed), u32::from(claimed)));
    });
    assert_eq!(reached.states(), [(0, 0), (1, 1)]);
}

/// However the turn and a look for bytes meet, what the receiver takes without knowing how many there are was sent before the
/// turn.
#[test]
fn what_is_taken_without_a_position_was_sent_before_the_turn() {
    let reached = std::sync::Arc::new(Reached::default());
    let seen = reached.clone();
    bounded(3, move || {
        let word = Arc::new(Direction::new());
        word.enter();
        // What the kernel has: bytes from before the turn in the upper half, from after the way back in the lower.
        let kernel = Arc::new(AtomicU32::new(1 << 16));
        kernel.load(Ordering::Relaxed);
        let sender = thread::spawn({
            let (word, kernel) = (word.clone(), kernel.clone());
            move || {
                let turned = word.turn();
                if turned {
                    word.leave();
                }
                kernel.fetch_add(if turned { 1 } else { 1 << 16 }, Ordering::SeqCst);
                turned
            }
        });
        let mut taken = 0;
        for _ in 0..2 {
            if word.take() {
                let there = kernel.load(Ordering::SeqCst);
                assert_eq!(there & 0xffff, 0, "one from after the way back is among them");
                taken = there >> 16;
                word.took();
            }
        }
        let turned = sender.join().unwrap();
        assert_eq!(word.state().left, turned);
        seen.note((taken, u32::from(turned)));
    });
    assert_eq!(reached.states(), [(0, 1), (1, 0), (1, 1), (2, 0)]);
}
