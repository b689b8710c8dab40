//! Keeps a process from forking while something is changed that is the process's own, and tells a process of its
//! fork relatives. Knows of nothing that is changed.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Held for reading by who makes, changes or ends what is the process's own, and for writing over a fork: so the child
/// finds no lock of ours, nor of a provider's, taken by a thread that it does not have. Before all other
/// locks of the fabric.
static FORK: RwLock<()> = RwLock::new(());

/// Changes in every fork child.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Which process of a family this is.
#[inline]
pub(super) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// No fork while it is there.
pub(super) type Gate = RwLockReadGuard<'static, ()>;

/// No fork until the result is dropped.
pub(super) fn no_fork() -> Gate {
    FORK.read().unwrap_or_else(PoisonError::into_inner)
}

/// Nothing but a fork until the result is dropped.
pub(super) fn only_fork() -> RwLockWriteGuard<'static, ()> {
    FORK.write().unwrap_or_else(PoisonError::into_inner)
}

/// In a fork child: it is another process than its parent.
pub(super) fn begin_anew() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
