//! The threads that sleep in the kernel on an anchor, of all processes that share it. They tell a thread that takes the
//! ring off when all have heard it. The list lies in memory that the processes of one side share. Threads that were
//! killed in their sleep are found by their ids. This module sleeps on nothing itself.

use crate::sys::process;
use crate::sys::thread::own_tid;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// So many can be found dead; more are counted only.
const NAMED: usize = 8;

/// All zero: no thread sleeps.
#[derive(Debug, Default)]
#[repr(C)]
pub(in crate::switch) struct Sleepers {
    /// How many found no free place.
    nameless: AtomicU32,
    /// Thread ids, zero where free. A jump out of a signal handler may end a thread's call at any instruction. So one
    /// store enters a sleeper, and one takes it out.
    names: [AtomicU32; NAMED],
}

/// Where a sleeper is entered.
#[derive(Clone, Copy, Debug)]
pub(in crate::switch) struct Place(Option<u8>);

impl Sleepers {
    fn count(&self) -> u32 {
        let named = self.names.iter().filter(|name| name.load(SeqCst) != 0).count();
        self.nameless.load(SeqCst).saturating_add(named as u32)
    }

    /// True if a thread sleeps, or died asleep.
    pub(in crate::switch) fn any(&self) -> bool {
        self.count() != 0
    }

    /// True if one thread sleeps, or died asleep.
    pub(in crate::switch) fn are_one(&self) -> bool {
        self.count() == 1
    }

    /// The calling thread is about to sleep.
    pub(in crate::switch) fn enter(&self) -> Place {
        let tid = own_tid();
        let free = |name: &AtomicU32| name.compare_exchange(0, tid, SeqCst, SeqCst).is_ok();
        let at = self.names.iter().position(free);
        if at.is_none() {
            self.nameless.fetch_add(1, SeqCst);
        }
        Place(at.map(|at| at as u8))
    }

    /// It is awake.
    pub(in crate::switch) fn leave(&self, place: Place) {
        match place.0.and_then(|at| self.names.get(usize::from(at))) {
            Some(name) => take_out(name, own_tid()),
            // Not below zero: all may have been forgotten.
            None => {
                let _ = self.nameless.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1));
            }
        }
    }

    /// Forgets the calling thread's, which is awake: it was thrown out of a sleep.
    pub(in crate::switch) fn forget_own(&self) {
        for name in &self.names {
            take_out(name, own_tid());
        }
    }

    /// Forgets sleepers whose threads are gone.
    #[cold]
    pub(in crate::switch) fn forget_the_dead(&self) {
        for name in &self.names {
            let tid = name.load(SeqCst);
            if tid != 0 && !process::lives(tid) {
                take_out(name, tid);
            }
        }
    }

    /// Forgets all: those that are awake again one day are not counted then.
    pub(in crate::switch) fn clear(&self) {
        for name in &self.names {
            name.store(0, SeqCst);
        }
        self.nameless.store(0, SeqCst);
    }
}

/// Leaves it alone if another thread took the name out before.
fn take_out(name: &AtomicU32, tid: u32) {
    let _ = name.compare_exchange(tid, 0, SeqCst, SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_leave_as_entered() {
        let sleepers = Sleepers::default();
        let places: Vec<Place> = (0..NAMED + 2).map(|_| sleepers.enter()).collect();
        for place in places {
            assert!(sleepers.any());
            sleepers.leave(place);
        }
        assert!(!sleepers.any());
    }

    #[test]
    fn the_dead_are_forgotten_and_the_living_are_not() {
        let sleepers = Sleepers::default();
        let dead = std::thread::scope(|scope| {
            scope.spawn(|| (own_tid(), sleepers.enter())).join().expect("a tid")
        });
        let place = sleepers.enter();
        // A thread is joined before the kernel has let go of its id.
        while process::lives(dead.0) {
            std::thread::yield_now();
        }
        sleepers.forget_the_dead();
        assert!(sleepers.any());
        sleepers.leave(place);
        assert!(!sleepers.any());
    }

    #[test]
    fn who_was_thrown_out_of_its_sleep_forgets_that() {
        let sleepers = Sleepers::default();
        let _ = (sleepers.enter(), sleepers.enter());
        std::thread::scope(|scope| {
            scope.spawn(|| sleepers.forget_own());
        });
        assert!(sleepers.any());
        sleepers.forget_own();
        assert!(!sleepers.any());
    }

    #[test]
    fn who_was_forgotten_leaves_unnoticed() {
        let sleepers = Sleepers::default();
        let forgotten = sleepers.enter();
        sleepers.clear();
        let place = sleepers.enter();
        sleepers.leave(place);
        sleepers.leave(forgotten);
        assert!(!sleepers.any());
    }
}
