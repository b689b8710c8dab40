//! Model check of the words of the move: the position at which a direction turns, what its receiver makes of it, and how it
//! ends reading on the way back.

use super::direction::Direction as Word;
use super::select_counter::SelectCounter;
use super::sync::{fence, AtomicU32, AtomicU64, Ordering};
use super::turn::{turn, Inbound, Outbound, OverTcp};
use super::way_back::end_reading;
use super::{bounded, Reached};
use loom::sync::Arc;
use loom::thread;

/// One direction: its words, and what its kernel and its segment have.
struct Direction {
    word: Word,
    turned_at: AtomicU64,
    over_tcp: OverTcp,
    /// Bytes of the stream that were sent over TCP, and over the SAN.
    in_kernel: AtomicU32,
    in_segment: AtomicU32,
    /// The readers that wait.
    counter: SelectCounter,
}

impl Direction {
    fn new() -> Arc<Direction> {
        let direction = Direction {
            word: Word::new(),
            turned_at: AtomicU64::new(0),
            over_tcp: OverTcp::new(),
            in_kernel: AtomicU32::new(0),
            in_segment: AtomicU32::new(0),
            counter: SelectCounter::new(),
        };
        // Makes the loom objects here, before any thread runs.
        direction.word.state();
        direction.turned_at.load(Ordering::Relaxed);
        direction.over_tcp.begin(0);
        direction.in_kernel.load(Ordering::Relaxed);
        direction.in_segment.load(Ordering::Relaxed);
        direction.counter.is_raised();
        Arc::new(direction)
    }

    /// Sends a byte the way it goes now; true if that was the SAN.
    fn send(&self) -> bool {
        let written = || Some(self.in_kernel.load(Ordering::SeqCst).into());
        let is_over_tcp =
            turn(&self.word, &self.turned_at, written, |attempts| attempts < 2) == Outbound::Tcp;
        let lane = if is_over_tcp { &self.in_kernel } else { &self.in_segment };
        lane.fetch_add(1, Ordering::SeqCst);
        !is_over_tcp
    }
}

/// However the receiver's entering, its looks, and the sender's turn meet: what the receiver takes from the kernel is all
/// that went there, before the first byte of the segment, and it never looks past the position.
#[test]
fn both_ends_turn_at_one_byte() {
    let reached = std::sync::Arc::new(Reached::default());
    let seen = reached.clone();
    bounded(2, move || {
        let direction = Direction::new();
        // From before the agreement.
        direction.in_kernel.store(1, Ordering::SeqCst);
        let sender = thread::spawn({
            let direction = direction.clone();
            move || u32::from(direction.send()) + u32::from(direction.send())
        });
        direction.word.enter();
        let mut taken = 0;
        let mut at = None;
        let mut look = || {
            let next =
                direction.over_tcp.next(&direction.word, &direction.turned_at, || Some(taken));
            let there = || u64::from(direction.in_kernel.load(Ordering::SeqCst));
            match next.expect("an honest peer") {
                Inbound::San(position) => at = Some(position),
                Inbound::Before(left) => taken += left.min(there() - taken),
                Inbound::Tcp => {
                    taken = direction.word.while_taking(there).unwrap_or(taken);
                }
            }
            direction.over_tcp.begin(taken);
        };
        look();
        look();
        let over_san = sender.join().unwrap();
        look();
        look();
        let over_tcp = u64::from(direction.in_kernel.load(Ordering::SeqCst));
        assert_eq!(taken, over_tcp, "bytes of the stream were left in the kernel");
        assert_eq!(at, (over_san > 0).then_some(over_tcp), "it turned elsewhere");
        assert_eq!(direction.in_segment.load(Ordering::SeqCst), over_san);
        seen.note((over_san, 0));
    });
    assert_eq!(reached.states(), [(0, 0), (1, 0), (2, 0)]);
}

/// A receiver that goes back has read what was sent on the SAN, or its sender learns, before its call returns, that it is to
/// send it again.
#[test]
fn what_crosses_a_recall_is_sent_again_before_the_call_returns() {
    let reached = std::sync::Arc::new(Reached::default());
    let seen = reached.clone();
    bounded(3, move || {
        let direction = Direction::new();
        direction.word.begin_turned();
        let sender = thread::spawn({
            let direction = direction.clone();
            move || {
                direction.in_segment.store(1, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                // A send that finds its receiver asleep does this.
                let rings = direction.counter.signal();
                rings && !direction.word.ring()
            }
        });
        let mut read = 0;
        let ended = end_reading(
            &direction.word,
            false,
            || {
                let there = direction.in_segment.load(Ordering::SeqCst);
                let unread = there > read;
                read = there;
                Ok::<_, ()>(unread)
            },
            || {
                let _ = direction.counter.raise();
            },
            || unreachable!(),
        );
        let sends_again = sender.join().unwrap();
        if ended == Ok(true) {
            assert_eq!(read == 0, sends_again, "lost, or doubled");
        }
        seen.note((read, u32::from(ended == Ok(true))));
    });
    assert_eq!(reached.states(), [(0, 1), (1, 0)]);
}
