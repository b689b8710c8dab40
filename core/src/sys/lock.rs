//! A lock that works between processes and outlives a holder that was killed.
//!
//! The word holds the owner's thread id. So a waiter can see that the owner is gone, and take the lock over. The lock
//! must lie in memory that the peer of a connection cannot write.

use super::lock_order::LockRank;
use super::thread::own_tid;
use super::{futex, process};
use std::sync::atomic::{AtomicU32, Ordering};

const CONTENDED: u32 = 1 << 31;
/// No thread has this id, because the kernel gives none above 2^22.
pub(crate) const NOBODY: u32 = CONTENDED - 1;
/// How long (ns) a waiter sleeps before it looks whether the owner still lives.
pub(crate) const CHECK_INTERVAL: u64 = 20_000_000;
/// How a lock was obtained.
#[derive(Debug, PartialEq, Eq)]
pub enum Acquired {
    /// From a holder that released it.
    Clean,
    /// The caller got the lock from a holder that died with it. The things that the lock protects may be half changed.
    FromTheDead,
}

/// Why a lock was not obtained.
#[derive(Debug, PartialEq, Eq)]
pub enum Busy {
    /// Another thread has it.
    Other,
    /// The calling thread has it. It is in a signal handler that interrupted its own operation.
    Reentered,
}

/// The lock, of a [`LockRank`] by its number. Memory of zeros is an unlocked one.
#[repr(transparent)]
#[derive(Debug, Default)]
pub(crate) struct FamilyLock<const RANK: u8>(AtomicU32);

impl<const RANK: u8> FamilyLock<RANK> {
    /// Unlocked.
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Takes the lock if it is free. Acquire.
    #[inline]
    fn try_lock(&self) -> Result<(), Busy> {
        let tid = own_tid();
        match self.0.compare_exchange(0, tid, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(word) if word & !CONTENDED == tid => Err(Busy::Reentered),
            Err(_) => Err(Busy::Other),
        }
    }

    /// Waits for the lock and takes it. Fails only if the calling thread already holds it.
    #[inline]
    pub(crate) fn lock(&self) -> Result<Acquired, Busy> {
        let acquired = match self.try_lock() {
            Ok(()) => Acquired::Clean,
            Err(Busy::Reentered) => return Err(Busy::Reentered),
            Err(Busy::Other) => self.lock_slowly(),
        };
        std::mem::forget(LockRank::of(RANK).taken());
        Ok(acquired)
    }

    #[cold]
    fn lock_slowly(&self) -> Acquired {
        let tid = own_tid();
        for _ in 0..100 {
            if self.try_lock().is_ok() {
                return Acquired::Clean;
            }
            std::hint::spin_loop();
        }
        loop {
            let word = self.0.load(Ordering::Relaxed);
            if word == 0 {
                if self
                    .0
                    .compare_exchange(0, tid | CONTENDED, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
                {
                    return Acquired::Clean;
                }
                continue;
            }
            let wanted = word | CONTENDED;
            if word != wanted
                && self
                    .0
                    .compare_exchange(word, wanted, Ordering::Relaxed, Ordering::Relaxed)
                    .is_err()
            {
                continue;
            }
            let in_vain = wanted & !CONTENDED == NOBODY
                || futex::wait(&self.0, wanted, CHECK_INTERVAL)
                    == Err(super::Errno(libc::ETIMEDOUT));
            let owner = wanted & !CONTENDED;
            if in_vain
                && !process::lives(owner)
                && self
                    .0
                    .compare_exchange(wanted, tid | CONTENDED, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return Acquired::FromTheDead;
            }
        }
    }

    /// Gives the lock back. Release.
    #[inline]
    pub(crate) fn unlock(&self) {
        LockRank::of(RANK).released();
        if self.0.swap(0, Ordering::Release) & CONTENDED != 0 {
            futex::wake(&self.0, 1);
        }
    }

    /// If the calling thread has the lock, its holder counts as dead from now on. For a thread that will not release
    /// it, and after exec, where the holder was a thread of the program before that had the same id.
    pub(crate) fn abandon_own(&self) {
        let own = |word: u32| (word & !CONTENDED == own_tid()).then_some(word & CONTENDED | NOBODY);
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, own);
    }

    /// In a fork child, for a lock in copied memory that the thread held which forked: it is the thread's now.
    pub(crate) fn adopt(&self) {
        self.0.store(own_tid(), Ordering::Relaxed);
    }

    /// In a fork child, for locks in copied memory. The thread that held it does not exist here.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
