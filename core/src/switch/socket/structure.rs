//! The lock over everything that changes the shape of things: sockets coming and going, epoll registrations, listeners.
//! No thread takes it to move bytes.
//!
//! While a thread holds it, signals are held back too where the program has handlers: no handler meets a half-made
//! change in its own thread. A fork takes it first, so a child never inherits one.

use crate::sys::handlers::Undisturbed;
use crate::sys::lock::FamilyLock;
use crate::sys::lock_order::LockRank;
use std::cell::UnsafeCell;

static LOCK: FamilyLock<{ LockRank::Structure as u8 }> = FamilyLock::new();

/// The lock, held.
pub(crate) struct Structure {
    /// False where this thread has it already.
    is_outermost: bool,
    _signals: Undisturbed,
}

impl Structure {
    /// Waits for the lock.
    pub(crate) fn lock() -> Structure {
        let signals = Undisturbed::begin();
        let is_outermost = LOCK.lock().is_ok();
        Structure { is_outermost, _signals: signals }
    }

    /// In a fork child of a process that held the lock over the fork: it is the child's now.
    pub(crate) fn adopt_after_fork(&mut self) {
        LOCK.adopt();
    }
}

impl Drop for Structure {
    fn drop(&mut self) {
        if self.is_outermost {
            LOCK.unlock();
        }
    }
}

/// What only the holder of the lock reaches.
pub(in crate::switch) struct Guarded<T>(UnsafeCell<T>);

// SAFETY: reached only with the lock held.
unsafe impl<T> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    pub(in crate::switch) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    pub(in crate::switch) fn get<'a>(&'static self, _: &'a mut Structure) -> &'a mut T {
        // SAFETY: one thread has the lock, and what it calls while the result is borrowed reaches no other.
        unsafe { &mut *self.0.get() }
    }
}
