//! Model check of the select counters: whoever sleeps is woken, by one call.

use super::select_counter::{Called, SelectCounter};
use super::sync::{fence, AtomicU32, Ordering};
use super::{bounded, Reached};
use loom::sync::atomic::AtomicBool;
use loom::sync::Arc;
use loom::thread;

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

/// A18, D9: of two that signal one dies before it makes the call. The next signaller makes it. Another signaller may
/// make a call meanwhile for an earlier signal, and that hides nothing.
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
