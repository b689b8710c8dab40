//! Keeps a process from forking while a thread changes something that is the process's own, and tells which process of
//! a family of forks this is. This module does not know what changes.

use crate::sys::lock_order::{LockRank, RankGuard};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A thread that makes, changes or ends what is the process's own holds this for reading, and a fork holds it for
/// writing. So the child finds no lock of ours, nor of a provider's, taken by a thread that it does not have.
static FORK: RwLock<()> = RwLock::new(());

/// Changes in every fork child.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Which process of a family this is.
#[inline]
pub(super) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// No fork while it is there.
pub(super) type Gate = RankGuard<RwLockReadGuard<'static, ()>>;

/// No fork until the result is dropped.
pub(super) fn no_fork() -> Gate {
    RankGuard::new(LockRank::ForkGate, || FORK.read())
}

/// Nothing but a fork until the result is dropped.
pub(super) fn only_fork() -> RankGuard<RwLockWriteGuard<'static, ()>> {
    RankGuard::new(LockRank::ForkGate, || FORK.write())
}

/// In a fork child: it is another process than its parent.
pub(super) fn begin_anew() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
