//! The signal mask that a thread sleeps with, as ppoll and epoll_pwait take it.

use super::user::{self, Access};
use super::Result;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

/// A set of signals in the kernel's form: a bit for each. Only the kernel reads it.
#[derive(Clone, Copy)]
pub struct SignalMask<'a> {
    at: NonNull<u64>,
    of: PhantomData<&'a u64>,
}

impl<'a> SignalMask<'a> {
    /// Bytes of a set, which is smaller than libc's type.
    pub const SIZE: usize = size_of::<u64>();

    /// The mask that a program gave a call; `None` if that is null.
    ///
    /// # Errors
    /// EFAULT, as from a call that need not sleep too.
    ///
    /// # Safety
    /// The set stays where it is while the result exists. The program promises that when it makes the call.
    #[inline]
    pub unsafe fn of_program(at: *const libc::sigset_t) -> Result<Option<Self>> {
        match NonNull::new(at.cast_mut().cast()) {
            Some(at) => Self::checked(at).map(Some),
            None => Ok(None),
        }
    }

    /// Not inlined, for most calls have no mask.
    #[inline(never)]
    fn checked(at: NonNull<u64>) -> Result<Self> {
        user::check(at.as_ptr().cast(), Self::SIZE, Access::Read)?;
        Ok(Self { at, of: PhantomData })
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
