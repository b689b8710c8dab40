//! The order of all locks that a thread may wait for, as one table. A thread that has one waits only for those behind
//! it, so no two threads wait for each other. Debug builds check that, and end the process at a lock out of order.
//! Other builds have nothing but the table.
//!
//! A thread may try for a lock out of order: it does not wait for that one. A program's signal handler may interrupt a
//! call that has locks, and call us again. Debug builds judge that call without those locks ([`HookCall`]), so the
//! order does not hold between the two. The table leaves out the locks of providers, which call nothing of ours under
//! them, and what a thread waits for in a loop of some instructions (`Link::pushing`, `Device::polling`).

use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, Mutex, MutexGuard, PoisonError};

macro_rules! ranks {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// The place of a kind of lock. The first is the outermost.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum LockRank {
            $($(#[$doc])* $name,)+
        }

        impl LockRank {
            const ALL: &[LockRank] = &[$(LockRank::$name),+];
        }
    };
}

ranks! {
    /// `switch/handing_on/bring_back`: all connections go to TCP.
    BringingBack,
    /// `switch/socket/structure`: sockets, registrations and listeners come and go.
    Structure,
    /// `switch/socket/set`: what an epoll set has.
    EpollSet,
    /// `switch/endpoint`: an end's send lock.
    Send,
    /// `switch/endpoint`: an end's receive lock. A sender that waits in a transfer takes it over from the dead.
    Receive,
    /// `switch/endpoint`: one thread takes rings off an end's bell.
    Anchor,
    /// `fabric/fork_gate`: no thread forks.
    ForkGate,
    /// `fabric/meeting/rounds`: connections for which the helper has to look.
    Asked,
    /// `fabric/meeting/rounds`: what the helper waits for.
    Meeting,
    /// `fabric/link/closing`: links that were closed.
    ClosedLinks,
    /// `fabric/sharing/invitations`: peers that were invited to this process.
    Invitations,
    /// `fabric/link/ended`: links that are over.
    EndedLinks,
    /// `fabric/link/former_links`: queue pairs that others replaced.
    ReplacedPairs,
    /// `fabric/link/former_links`: links that were given away.
    GivenLinks,
    /// `fabric/adapters`: where ports are.
    Ports,
    /// `fabric/adapters`: ports in use.
    PortsInUse,
    /// `fabric/port/notification`: which thread is told of what completes.
    Notification,
    /// `fabric/helper`: the helper thread starts.
    HelperStarts,
}

/// The calling thread has a lock, until this is dropped.
#[must_use]
#[derive(Debug)]
pub(crate) struct HeldRank {
    #[cfg(debug_assertions)]
    rank: LockRank,
}

impl LockRank {
    /// The rank that is `rank as u8`.
    #[inline(always)]
    pub(crate) const fn of(number: u8) -> LockRank {
        LockRank::ALL[number as usize]
    }

    /// The calling thread takes a lock of this rank, and may wait for it.
    #[inline(always)]
    pub(crate) fn taken(self) -> HeldRank {
        #[cfg(debug_assertions)]
        held::check(self);
        self.tried()
    }

    /// The calling thread has a lock of this rank, and did not wait for it.
    #[inline(always)]
    pub(crate) fn tried(self) -> HeldRank {
        #[cfg(debug_assertions)]
        held::change(self, |count| count + 1);
        HeldRank {
            #[cfg(debug_assertions)]
            rank: self,
        }
    }

    /// The calling thread gives back a lock of this rank.
    #[inline(always)]
    pub(crate) fn released(self) {
        #[cfg(debug_assertions)]
        held::change(self, |count| count.saturating_sub(1));
    }
}

#[cfg(debug_assertions)]
impl Drop for HeldRank {
    fn drop(&mut self) {
        self.rank.released();
    }
}

/// A call of the program, until it is dropped. It has no lock at first, also where it is in a handler that interrupted another one.
#[must_use]
pub struct HookCall {
    #[cfg(debug_assertions)]
    outer: held::HeldCounts,
}

impl HookCall {
    /// It begins.
    #[inline(always)]
    pub fn begin() -> Self {
        HookCall {
            #[cfg(debug_assertions)]
            outer: held::exchange(held::NONE),
        }
    }
}

#[cfg(debug_assertions)]
impl Drop for HookCall {
    fn drop(&mut self) {
        held::exchange(self.outer);
    }
}

/// The calling thread will not come back to give its locks back.
#[inline(always)]
pub(crate) fn forget_all() {
    #[cfg(debug_assertions)]
    held::exchange(held::NONE);
}

#[cfg(debug_assertions)]
pub(super) mod held {
    use super::LockRank;
    use std::cell::Cell;

    /// How many locks of each rank a thread has.
    pub(super) type HeldCounts = [u8; LockRank::ALL.len()];
    pub(super) const NONE: HeldCounts = [0; LockRank::ALL.len()];

    thread_local! {
        static HELD: Cell<HeldCounts> = const { Cell::new(NONE) };
    }

    /// Ends the process if that is out of order.
    pub(super) fn check(rank: LockRank) {
        if !is_in_order(rank) {
            end_process(format_args!("{rank:?} is taken out of order"));
        }
    }

    /// True if the calling thread has no lock of this rank, nor of one behind it.
    pub(super) fn is_in_order(rank: LockRank) -> bool {
        HELD.get()[rank as usize..].iter().all(|&count| count == 0)
    }

    /// True if the calling thread has a lock of this rank.
    pub(in crate::sys) fn has(rank: LockRank) -> bool {
        HELD.get()[rank as usize] > 0
    }

    pub(super) fn change(rank: LockRank, to: fn(u8) -> u8) {
        let mut held = HELD.get();
        held[rank as usize] = to(held[rank as usize]);
        HELD.set(held);
    }

    pub(super) fn exchange(held: HeldCounts) -> HeldCounts {
        HELD.replace(held)
    }

    /// Says what is wrong, and under which locks.
    pub(in crate::sys) fn end_process(what: std::fmt::Arguments) -> ! {
        let held = exchange(NONE);
        let held = LockRank::ALL.iter().zip(held).filter(|(_, count)| *count > 0);
        let held: Vec<_> = held.map(|(held, _)| held).collect();
        let trace = std::backtrace::Backtrace::force_capture();
        eprintln!("sanshim: {what} under the locks {held:?}\n{trace}");
        std::process::abort();
    }
}

/// A mutex with its place in the order. A thread that panicked with the mutex counts as one that gave it back: the
/// things that these mutexes guard are whole at any moment.
#[derive(Debug)]
pub(crate) struct RankedMutex<T> {
    rank: LockRank,
    mutex: Mutex<T>,
}

/// What was locked, and its place.
pub(crate) struct RankGuard<G> {
    guard: G,
    _held: HeldRank,
}

impl<T> RankedMutex<T> {
    pub(crate) const fn new(rank: LockRank, value: T) -> Self {
        RankedMutex { rank, mutex: Mutex::new(value) }
    }

    /// Waits for it.
    pub(crate) fn lock(&self) -> RankGuard<MutexGuard<'_, T>> {
        RankGuard::new(self.rank, || self.mutex.lock())
    }
}

impl<G> RankGuard<G> {
    /// Locks what has a place of this rank.
    pub(crate) fn new(rank: LockRank, lock: impl FnOnce() -> LockResult<G>) -> Self {
        let held = rank.taken();
        RankGuard { guard: lock().unwrap_or_else(PoisonError::into_inner), _held: held }
    }
}

impl<G: Deref> Deref for RankGuard<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for RankGuard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::held::{has, is_in_order};
    use super::*;

    #[test]
    fn a_thread_that_has_a_lock_takes_only_those_behind_it() {
        let structure = LockRank::Structure.taken();
        let set = LockRank::EpollSet.taken();
        assert!(is_in_order(LockRank::Receive));
        assert!(!is_in_order(LockRank::EpollSet) && !is_in_order(LockRank::BringingBack));
        drop(structure);
        assert!(!is_in_order(LockRank::Structure) && !has(LockRank::Structure));
        drop(set);
        assert!(is_in_order(LockRank::BringingBack));
    }

    #[test]
    fn what_was_only_tried_for_counts_for_what_is_taken_under_it() {
        let send = LockRank::Send.taken();
        let set = LockRank::EpollSet.tried();
        assert!(is_in_order(LockRank::Receive) && !is_in_order(LockRank::Send));
        drop(send);
        assert!(is_in_order(LockRank::Send) && !is_in_order(LockRank::EpollSet));
        drop(set);
    }

    #[test]
    fn a_handler_begins_without_the_locks_that_it_interrupted() {
        let lock = RankedMutex::new(LockRank::Meeting, ());
        let held = lock.lock();
        let call = HookCall::begin();
        assert!(is_in_order(LockRank::Structure));
        drop(call);
        assert!(!is_in_order(LockRank::Structure));
        drop(held);
        assert!(is_in_order(LockRank::Structure));
    }
}
