//! The signal mask that a thread sleeps with, as ppoll and epoll_pwait take it.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};

/// A set of signals in the kernel's form: a bit for each. Only the kernel reads it, which checks the address.
#[derive(Clone, Copy)]
pub struct SignalMask<'a> {
    at: NonNull<u64>,
    of: PhantomData<&'a u64>,
}

impl<'a> SignalMask<'a> {
    /// The mask that a program gave a call; `None` if that is null.
    ///
    /// # Safety
    /// The set stays where it is while the result exists. The program promises that when it makes the call.
    #[inline]
    pub unsafe fn of_program(at: *const libc::sigset_t) -> Option<Self> {
        NonNull::new(at.cast_mut().cast()).map(|at| Self { at, of: PhantomData })
    }

    /// One of our own.
    #[inline]
    pub(super) fn of(signals: &'a u64) -> Self {
        Self { at: NonNull::from(signals), of: PhantomData }
    }

    /// For libc, which hands it on to the kernel; null for none.
    #[inline]
    pub(super) fn pointer(mask: Option<Self>) -> *const libc::sigset_t {
        mask.map_or(ptr::null(), |mask| mask.at.as_ptr().cast_const().cast())
    }
}
