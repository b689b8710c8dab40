//! The array that a program gives epoll_wait. Most often the kernel alone writes to it.

use super::user::{self, Access};
use super::Result;
use std::ffi::c_int;
use std::marker::PhantomData;

/// Room for events. It may not be there: the kernel finds out itself, and others have to ask first.
pub struct EventArray<'a> {
    at: *mut libc::epoll_event,
    most: c_int,
    memory: PhantomData<&'a mut [libc::epoll_event]>,
}

impl EventArray<'_> {
    /// A program's array, for as many events as it says. `None` where the kernel says what is wrong.
    ///
    /// # Safety
    ///
    /// If there is memory, nobody else uses it while the result exists.
    #[inline]
    pub unsafe fn of_program(at: *mut libc::epoll_event, most: c_int) -> Option<Self> {
        const MOST: c_int = c_int::MAX / size_of::<libc::epoll_event>() as c_int;
        let memory = PhantomData;
        (!at.is_null() && (1..=MOST).contains(&most)).then_some(Self { at, most, memory })
    }

    /// To write to. As in the kernel, only what is filled in has to be writable, which is at least the first. EFAULT.
    pub(crate) fn checked(&mut self) -> Result<&mut [libc::epoll_event]> {
        user::check(self.at.cast(), size_of::<libc::epoll_event>(), Access::Write)?;
        // SAFETY: by `of_program`'s contract nobody else has it. The caller asked whether there is some.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.at, self.most as usize) })
    }

    /// Its address, and for how many events it is.
    #[inline]
    pub(super) fn for_kernel(&mut self) -> (*mut libc::epoll_event, c_int) {
        (self.at, self.most)
    }

    /// The first `n`.
    ///
    /// # Safety
    /// The kernel has written them.
    #[inline]
    pub(super) unsafe fn written(&mut self, n: usize) -> &mut [libc::epoll_event] {
        // SAFETY: the caller's promise, and `of_program`'s contract.
        unsafe { std::slice::from_raw_parts_mut(self.at, n) }
    }
}

impl<'a> From<&'a mut [libc::epoll_event]> for EventArray<'a> {
    #[inline]
    fn from(events: &'a mut [libc::epoll_event]) -> Self {
        let most = events.len().min(c_int::MAX as usize) as c_int;
        Self { at: events.as_mut_ptr(), most, memory: PhantomData }
    }
}
