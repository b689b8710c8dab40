//! Unit and property tests of select counters.

use super::{Called, SelectCounter};
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// A18: whoever is told to make the kernel call may die first.
#[test]
fn a18_a_call_that_was_never_made_is_asked_for_again() {
    let (counter, called) = (SelectCounter::raised(), Called::new());
    assert!(counter.signal_after(&called), "the waiter is to be woken");
    // Whoever was told so dies here.
    assert!(called.is_behind(&counter));
    assert!(counter.signal_after(&called), "and still is, by the next");
    called.make(&counter, || ());
    assert!(!called.is_behind(&counter) && !counter.signal_after(&called));
    let _ = counter.raise();
    // A signal during the call is not answered by it.
    called.make(&counter, || assert!(counter.signal_after(&called)));
    assert!(called.is_behind(&counter) && counter.signal_after(&called));
}

/// A18: one count, one kernel call; withdrawn or signalled counts are gone.
#[test]
fn select_counters_count() {
    let counter = SelectCounter::new();
    assert!(!counter.signal());
    let first = counter.raise();
    let second = counter.raise();
    counter.withdraw(first);
    assert!(counter.is_raised());
    assert!(counter.signal());
    assert!(!counter.signal());
    let third = counter.raise();
    counter.withdraw(second);
    assert!(counter.is_raised(), "a ticket from before the signal");
    counter.withdraw(third);
    assert!(!counter.is_raised());
    assert!(SelectCounter::raised().signal());
}

proptest! {
    /// A18: the counter lies in memory the peer can write: no value does harm.
    #[test]
    fn any_counter_value_is_harmless(
        values in prop::collection::vec(prop_oneof![
            any::<u64>(), Just(u64::MAX), Just(0), Just(u64::from(u32::MAX)), Just(1 << 32)
        ], 1..20),
    ) {
        let memory = AtomicU64::new(0);
        // SAFETY: SelectCounter is a transparent AtomicU64; both are shared references.
        let counter = unsafe { &*(&raw const memory).cast::<SelectCounter>() };
        for value in values {
            memory.store(value, Ordering::SeqCst);
            let ticket = counter.raise();
            memory.store(value, Ordering::SeqCst);
            counter.withdraw(ticket);
            memory.store(value, Ordering::SeqCst);
            prop_assert_eq!(counter.is_raised(), counter.signal());
            prop_assert!(!counter.is_raised() && !counter.signal());
        }
    }
}
