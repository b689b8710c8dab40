//! Model check of the word that counts doorbells and says over which way a direction goes.

use super::doorbells::Doorbells;
use super::sync::{AtomicU32, Ordering};
use super::{bounded, Reached};
use loom::sync::Arc;
use loom::thread;

/// The word, and what the kernel has of the sender's socket.
fn doorbells() -> (Arc<Doorbells>, Arc<AtomicU32>) {
    let word = Arc::new(Doorbells::new());
    word.begin_turned();
    let sent = Arc::new(AtomicU32::new(0));
    sent.load(Ordering::Relaxed);
    (word, sent)
}

/// By a receiver that looks again where a doorbell was promised since its last look.
fn recall(word: &Doorbells) -> bool {
    (0..3).any(|_| word.recall(word.state()))
}

/// However leaving and recalling meet, a doorbell is sent exactly if it is counted, and both ends
/// agree who sends what is unread.
#[test]
fn every_doorbell_is_counted_and_one_end_decides() {
    let reached = std::sync::Arc::new(Reached::default());
    let seen = reached.clone();
    bounded(3, move || {
        let (word, sent) = doorbells();
        let ring = |word: Arc<Doorbells>, sent: Arc<AtomicU32>| {
            move || {
                if word.promise() {
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        let ringer = thread::spawn(ring(word.clone(), sent.clone()));
        let leaver = thread::spawn({
            let (word, sent) = (word.clone(), sent.clone());
            move || {
                let before = word.leave();
                if !before.is_final() {
                    sent.fetch_add(1, Ordering::Relaxed);
                }
                before.recalled
            }
        });
        let recalled = recall(&word);
        let counted = word.state().bells;
        ringer.join().unwrap();
        let sends_again = leaver.join().unwrap();
        assert_eq!(sends_again, recalled);
        let all = u64::from(sent.load(Ordering::Relaxed));
        assert!(!recalled || counted == all, "no doorbell after the last");
        assert_eq!(word.state().bells, all);
        seen.note((all as u32, u32::from(sends_again)));
    });
    assert_eq!(reached.states(), [(0, 1), (1, 0), (1, 1), (2, 0)]);
}

/// A receiver that sends again in the sender's stead finds every doorbell sent that was promised, and the sender, if it
/// comes to it meanwhile, waits until what the receiver sent is all there.
#[test]
fn who_stands_in_never_sends_beside_the_sender() {
    let reached = std::sync::Arc::new(Reached::default());
    let seen = reached.clone();
    bounded(3, move || {
        // With one piece of the stream behind the doorbells.
        let (word, sent) = doorbells();
        let sender = thread::spawn({
            let (word, sent) = (word.clone(), sent.clone());
            move || {
                if word.promise() {
                    sent.fetch_add(1, Ordering::SeqCst);
                }
                word.rung();
                let before = word.leave();
                let is_awaited = before.claimed && word.state().claimed;
                if !is_awaited {
                    let promised = word.state().bells as u32;
                    let there = sent.load(Ordering::SeqCst);
                    assert!(there == promised || there == promised + 1 || !before.recalled);
                    assert!(before.replayed || there <= promised);
                }
            }
        });
        recall(&word);
        let claimed = word.claim();
        if claimed {
            assert_eq!(word.state().bells as u32, sent.fetch_add(1, Ordering::SeqCst));
            word.release();
        }
        sender.join().unwrap();
        seen.note((word.state().bells as u32, u32::from(claimed)));
    });
    assert_eq!(reached.states(), [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]);
}

/// However the turn and a look for bytes meet, what the receiver takes without knowing how many there are is the stream's
/// alone: no doorbell has been sent by then.
#[test]
fn no_doorbell_is_taken_for_a_byte_of_the_stream() {
    let reached = std::sync::Arc::new(Reached::default());
    let seen = reached.clone();
    bounded(3, move || {
        let word = Arc::new(Doorbells::new());
        word.enter();
        // What the kernel has: bytes of the stream in the upper half, doorbells in the lower.
        let kernel = Arc::new(AtomicU32::new(1 << 16));
        kernel.load(Ordering::Relaxed);
        let sender = thread::spawn({
            let (word, kernel) = (word.clone(), kernel.clone());
            move || {
                let turned = word.turn(1);
                if turned {
                    assert!(word.promise());
                    kernel.fetch_add(1, Ordering::SeqCst);
                } else {
                    kernel.fetch_add(1 << 16, Ordering::SeqCst);
                }
                turned
            }
        });
        let mut taken = 0;
        for _ in 0..2 {
            if word.take() {
                let there = kernel.load(Ordering::SeqCst);
                assert_eq!(there & 0xffff, 0, "a doorbell is among them");
                taken = there >> 16;
                word.took();
            }
        }
        let turned = sender.join().unwrap();
        assert_eq!(word.state().bells, if turned { 2 } else { 0 });
        seen.note((taken, u32::from(turned)));
    });
    assert_eq!(reached.states(), [(0, 1), (1, 0), (1, 1), (2, 0)]);
}
