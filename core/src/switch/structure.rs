//! The lock over everything that changes the shape of things: sockets coming and going, epoll
//! registrations, listeners. Never taken to move bytes.
//!
//! While it is held, signals are held back too where the program has handlers: none of them meets a
//! half-made change in its own thread. A fork takes it first, so a child never inherits one.

use super::socket::Socket;
use crate::registry::Registry;
use crate::sys::handlers::Undisturbed;
use crate::sys::lock::FamilyLock;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

/// What the lock guards directly.
#[derive(Default)]
pub struct Shape {
    /// Sockets to use again, where the [`spare`](super::spare) ones had no room.
    pub free_sockets: Option<&'static Socket>,
    /// Epoll sets to use again.
    pub free_sets: Vec<&'static super::epoll::Set>,
    /// Where connectors of this host meet this process.
    pub door: Option<super::setup::Door>,
    /// What this process publishes; `None` if it does not.
    pub registry: Option<Registry>,
}

struct Cell(UnsafeCell<Option<Shape>>);

// SAFETY: reached only with LOCK held.
unsafe impl Sync for Cell {}

static LOCK: FamilyLock = FamilyLock::new();
static SHAPE: Cell = Cell(UnsafeCell::new(None));

/// The lock, held.
pub struct Structure {
    _signals: Undisturbed,
}

impl Structure {
    /// Waits for the lock.
    pub fn lock() -> Structure {
        let signals = Undisturbed::begin();
        // No handler interrupts this thread, so it can not have it already.
        let _ = LOCK.lock();
        Structure { _signals: signals }
    }

    /// In a fork child of a process that held the lock over the fork: it is the child's now.
    pub fn adopt_after_fork(&mut self) {
        LOCK.reset();
        let _ = LOCK.lock();
    }
}

impl Drop for Structure {
    fn drop(&mut self) {
        LOCK.unlock();
    }
}

impl Deref for Structure {
    type Target = Shape;

    fn deref(&self) -> &Shape {
        // SAFETY: the lock is held; `deref_mut` makes the value before anybody reads it.
        unsafe { (*SHAPE.0.get()).get_or_insert_with(Shape::default) }
    }
}

impl DerefMut for Structure {
    fn deref_mut(&mut self) -> &mut Shape {
        // SAFETY: the lock is held.
        unsafe { (*SHAPE.0.get()).get_or_insert_with(Shape::default) }
    }
}
