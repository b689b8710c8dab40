//! Model check of the lock-free parts: the source files themselves, with loom's atomics in place
//! of the real ones, in every interleaving and every value that the memory model allows.
//!
//! Loom takes a SeqCst store or read-modify-write for an acquire-release one and models only
//! SeqCst fences in full. So an event is published here with a fence behind it, where the real
//! caller uses one SeqCst operation; what is checked is no less than what the caller relies on.

#![allow(unreachable_pub, dead_code, clippy::duplicate_mod)]

use super::{error, header};

#[path = "doorbells.rs"]
mod doorbells;
#[path = "flow.rs"]
mod flow;
#[path = "select_counter.rs"]
mod select_counter;
#[path = "token.rs"]
mod token;

#[path = "model_token.rs"]
mod of_the_token;

/// Loom's atomics with a `const` constructor: the loom object is made at its first use.
mod sync {
    pub(super) use loom::sync::atomic::{fence, Ordering};
    use std::sync::OnceLock;

    macro_rules! atomic {
        ($name:ident, $value:ty) => {
            #[derive(Debug)]
            pub(super) struct $name($value, OnceLock<loom::sync::atomic::$name>);

            impl $name {
                pub(super) const fn new(value: $value) -> Self {
                    $name(value, OnceLock::new())
                }
                fn inner(&self) -> &loom::sync::atomic::$name {
                    self.1.get_or_init(|| loom::sync::atomic::$name::new(self.0))
                }
                pub(super) fn load(&self, order: Ordering) -> $value {
                    self.inner().load(order)
                }
                pub(super) fn store(&self, value: $value, order: Ordering) {
                    self.inner().store(value, order);
                }
                pub(super) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                    self.inner().fetch_add(value, order)
                }
                pub(super) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                    self.inner().fetch_or(value, order)
                }
                pub(super) fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                    self.inner().fetch_and(value, order)
                }
                pub(super) fn compare_exchange(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    self.inner().compare_exchange(current, new, success, failure)
                }
                pub(super) fn compare_exchange_weak(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    self.inner().compare_exchange_weak(current, new, success, failure)
                }
            }
        };
    }
    atomic!(AtomicU32, u32);
    atomic!(AtomicU64, u64);
}

use doorbells::Doorbells;
use flow::Session;
use header::{Header, Kind};
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicBool;
use loom::sync::Arc;
use loom::thread;
use select_counter::{Called, SelectCounter};
use sync::{fence, AtomicU32, Ordering};

struct Event {
    happened: AtomicBool,
    counter: SelectCounter,
}

impl Event {
    fn new(counter: SelectCounter) -> Arc<Event> {
        // Makes the loom object here, before any thread runs.
        counter.is_raised();
        Arc::new(Event { happened: AtomicBool::new(false), counter })
    }

    /// Publishes the event; true: this caller has to wake the sleepers.
    fn happen(&self) -> bool {
        self.happened.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.counter.signal()
    }

    /// True: goes to sleep, counted. False: saw the event, or gave up before it slept.
    fn wait(&self, give_up: bool) -> bool {
        let ticket = self.counter.raise();
        if give_up || self.happened.load(Ordering::Relaxed) {
            self.counter.withdraw(ticket);
            return false;
        }
        true
    }
}

/// Every schedule with up to `preemptions`: all of them take minutes and show no more.
fn bounded(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// A18: a waiter either sees the event or is woken, and the counter ends at zero.
#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let event = Event::new(SelectCounter::new());
        let waiter = thread::spawn({
            let event = event.clone();
            move || event.wait(false)
        });
        let woken = event.happen();
        let asleep = waiter.join().unwrap();
        assert!(woken || !asleep, "asleep and never woken");
        assert!(!event.counter.is_raised());
    });
}

/// A18: two events at once make at most one kernel call for one waiter, and never none.
#[test]
fn one_kernel_call_per_raise() {
    bounded(3, || {
        let event = Event::new(SelectCounter::new());
        let waiter = thread::spawn({
            let event = event.clone();
            move || event.wait(false)
        });
        let other = thread::spawn({
            let event = event.clone();
            move || event.happen()
        });
        let calls = u32::from(event.happen()) + u32::from(other.join().unwrap());
        let asleep = waiter.join().unwrap();
        assert!(calls <= 1, "two kernel calls for one waiter");
        assert!(calls == 1 || !asleep, "asleep and never woken");
        assert!(!event.counter.is_raised());
    });
}

/// A18, D9: of two that signal one dies before it makes the call. Whoever comes next makes it, and no call
/// that another makes meanwhile, for what was signalled earlier, hides that.
#[test]
fn the_call_of_one_that_died_is_made_by_the_next() {
    let reached = std::sync::Arc::new(Reached::default());
    let seen = reached.clone();
    bounded(3, move || {
        let counter = Arc::new(SelectCounter::raised());
        let called = Arc::new(Called::new());
        assert!(counter.is_raised() && !called.is_behind(&counter));
        // The waiters that were counted when a call was made, which wakes them.
        let woken = Arc::new(AtomicU32::new(0));
        woken.load(Ordering::Relaxed);
        let slept = Arc::new(AtomicU32::new(1));
        slept.load(Ordering::Relaxed);
        let waiter = thread::spawn({
            let (counter, slept) = (counter.clone(), slept.clone());
            move || {
                // From here on a call finds it awake or wakes it.
                slept.store(2, Ordering::SeqCst);
                let _sleeps = counter.raise();
            }
        });
        let dies = thread::spawn({
            let (counter, called) = (counter.clone(), called.clone());
            move || counter.signal_after(&called)
        });
        let call = || {
            fence(Ordering::SeqCst);
            woken.store(slept.load(Ordering::SeqCst), Ordering::SeqCst);
        };
        if counter.signal_after(&called) {
            called.make(&counter, call);
        }
        waiter.join().unwrap();
        let died = dies.join().unwrap();
        // A relative that comes by signals for an event of its own.
        if counter.signal_after(&called) {
            called.make(&counter, call);
        }
        assert!(!counter.is_raised() && !called.is_behind(&counter));
        assert_eq!(woken.load(Ordering::Relaxed), 2, "asleep and never woken");
        seen.note((died.into(), 0));
    });
    assert_eq!(reached.states(), [(0, 0), (1, 0)]);
}

/// A18: a waiter that gives up takes its own count back and nobody else's.
#[test]
fn a_withdrawal_never_takes_another_waiters_count() {
    bounded(3, || {
        let event = Event::new(SelectCounter::new());
        let sleeper = thread::spawn({
            let event = event.clone();
            move || event.wait(false)
        });
        let other = thread::spawn({
            let event = event.clone();
            move || event.wait(true)
        });
        let woken = event.happen();
        let asleep = sleeper.join().unwrap();
        other.join().unwrap();
        assert!(woken || !asleep, "asleep and never woken");
        assert!(!event.counter.is_raised());
    });
}

/// A18: a ticket from before a signal is worth nothing after it, even if others raised again.
#[test]
fn a_late_withdrawal_leaves_a_new_waiter_counted() {
    loom::model(|| {
        let counter = Arc::new(SelectCounter::new());
        let old = counter.raise();
        let signaller = thread::spawn({
            let counter = counter.clone();
            move || {
                let woken = counter.signal();
                let _new = counter.raise();
                woken
            }
        });
        counter.withdraw(old);
        signaller.join().unwrap();
        assert!(counter.is_raised(), "the new waiter's count was taken");
    });
}

/// A18: an endpoint nobody looked at yet is woken by exactly one of its first events.
#[test]
fn the_first_event_of_a_new_endpoint_wakes_once() {
    loom::model(|| {
        let event = Event::new(SelectCounter::raised());
        let other = thread::spawn({
            let event = event.clone();
            move || event.happen()
        });
        let calls = u32::from(event.happen()) + u32::from(other.join().unwrap());
        assert_eq!(calls, 1);
    });
}

/// A message as it lies in shared memory: the sequence number is published last.
struct Mailbox {
    words: [AtomicU32; 4],
}

impl Mailbox {
    fn new() -> Mailbox {
        let mailbox = Mailbox { words: [const { AtomicU32::new(0) }; 4] };
        mailbox.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        mailbox
    }

    fn publish(&self, header: &Header) {
        let words = header.encode();
        for (word, value) in self.words.iter().zip(words).skip(1) {
            word.store(value, Ordering::Relaxed);
        }
        self.words[0].store(words[0], Ordering::Release);
    }

    fn look(&self, sequence: u32) -> Option<Header> {
        (self.words[0].load(Ordering::Acquire) == sequence).then(|| {
            let words = [0, 1, 2, 3].map(|i| self.words[i].load(Ordering::Relaxed));
            Header::decode(words, 1).unwrap()
        })
    }
}

/// Two sessions of 4 buffers after session request and accept, the request not yet consumed.
fn opened() -> (Session, Session) {
    let (a, b) = (Session::new(4), Session::new(4));
    let request = b.next_message(Kind::SessionRequest, 0).unwrap();
    b.sent(&request);
    a.received(&request).unwrap();
    let accept = a.next_message(Kind::SessionAccept, 0).unwrap();
    a.sent(&accept);
    b.received(&accept).unwrap();
    (a, b)
}

/// Loom's search goes on from a first run in the order of the thread numbers, and not every
/// path is found from every start: each model below proves that it reached what it is about.
#[derive(Default)]
struct Reached(std::sync::Mutex<std::collections::BTreeSet<(u32, u32)>>);

impl Reached {
    fn note(&self, state: (u32, u32)) {
        self.0.lock().unwrap().insert(state);
    }

    fn states(&self) -> Vec<(u32, u32)> {
        self.0.lock().unwrap().iter().copied().collect()
    }
}

/// A15: a header never carries a PR and an LRSQ of different moments.
#[test]
fn a_header_never_grants_more_than_is_posted() {
    let reached = std::sync::Arc::new(Reached::default());
    let seen = reached.clone();
    loom::model(move || {
        let (a, b) = opened();
        b.reposted(1);
        let first = b.next_message(Kind::Data, 1).unwrap();
        b.sent(&first);
        a.received(&first).unwrap();
        let second = b.next_message(Kind::Data, 1).unwrap();
        let a = Arc::new(a);
        let sender = thread::spawn({
            let a = a.clone();
            move || a.next_message(Kind::Data, 1).unwrap()
        });
        a.reposted(2);
        a.received(&second).unwrap();
        a.reposted(1);
        let header = sender.join().unwrap();
        seen.note((u32::from(header.posted), header.last_received));
    });
    assert_eq!(reached.states(), [(2, 2), (3, 3), (4, 2), (4, 3)]);
}

/// S1, A15: who fills a buffer that was posted again comes after its last reader, although four
/// threads hand the credit on and no lock joins them.
#[test]
fn a_buffer_is_free_before_its_credit_arrives() {
    let reached = std::sync::Arc::new(Reached::default());
    let seen = reached.clone();
    bounded(2, move || {
        let (a, b) = opened();
        let (a, b) = (Arc::new(a), Arc::new(b));
        b.reposted(1);
        let first = b.next_message(Kind::Data, 1).unwrap();
        b.sent(&first);
        a.received(&first).unwrap();
        let second = b.next_message(Kind::Data, 1).unwrap();
        let mailbox = Arc::new(Mailbox::new());
        // Buffer of messages 1 and 5; 1 is received and still being read.
        let buffer = Arc::new(UnsafeCell::new(0_u8));
        let granted = b.credit();

        let replier = thread::spawn({
            let (a, mailbox) = (a.clone(), mailbox.clone());
            move || mailbox.publish(&a.next_message(Kind::Data, 1).unwrap())
        });
        let receiver = thread::spawn({
            let b = b.clone();
            move || {
                if let Some(header) = mailbox.look(b.expected()) {
                    b.received(&header).unwrap();
                }
            }
        });
        let writer = thread::spawn({
            let buffer = buffer.clone();
            let seen = seen.clone();
            move || {
                let credit = b.credit();
                seen.note((credit, granted));
                if credit > granted {
                    // SAFETY: loom fails the model if a read or write is concurrent.
                    buffer.with_mut(|byte| unsafe { *byte = 1 });
                }
            }
        });
        // SAFETY: loom fails the model if a write is concurrent.
        buffer.with(|byte| unsafe { *byte });
        a.reposted(1);
        a.received(&second).unwrap();
        for thread in [replier, receiver, writer] {
            thread.join().unwrap();
        }
    });
    assert_eq!(reached.states(), [(2, 2), (3, 2)]);
}

/// The word, and what the kernel has of the sender's socket.
fn doorbells() -> (Arc<Doorbells>, Arc<AtomicU32>) {
    let word = Arc::new(Doorbells::new());
    word.begin_turned();
    let sent = Arc::new(AtomicU32::new(0));
    sent.load(Ordering::Relaxed);
    (word, sent)
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
        let before = word.recall(false);
        let counted = word.state().bells;
        ringer.join().unwrap();
        let sends_again = leaver.join().unwrap();
        assert_eq!(sends_again, !before.left);
        assert_eq!(counted, u64::from(sent.load(Ordering::Relaxed)), "no doorbell after the last");
        assert_eq!(word.state().bells, counted);
        seen.note((counted as u32, u32::from(sends_again)));
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
        word.recall(false);
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
