//! Signal handlers. The library notes that the program has some, and changes nothing about them. A signal that is sent
//! may make a signalfd ready.

use crate::real::hooks;
use libc::{c_int, pid_t, sigaction as Action, sighandler_t, sigval};
use sanshim_core::sys::actions::done;
use sanshim_core::sys::handlers::before_set;

/// # Safety
/// `action` is null or the program's, which libc reads too.
unsafe fn before(signal: c_int, action: *const Action) {
    // libc refuses any other number without looking at the action.
    if (1..=64).contains(&signal) && !action.is_null() {
        // SAFETY: the caller's promise.
        before_set(signal, unsafe { (*action).sa_sigaction });
    }
}

hooks! {
    fn sigaction(signal: c_int, action: *const Action, old: *mut Action) -> c_int = |real| {
        // SAFETY: the program's arguments.
        unsafe { before(signal, action) };
        real(signal, action, old)
    }

    fn __sigaction(signal: c_int, action: *const Action, old: *mut Action) -> c_int = |real| {
        // SAFETY: the program's arguments.
        unsafe { before(signal, action) };
        real(signal, action, old)
    }

    fn kill(pid: pid_t, signal: c_int) -> c_int = |real| { done(real(pid, signal)) }

    fn killpg(group: pid_t, signal: c_int) -> c_int = |real| { done(real(group, signal)) }

    fn tgkill(pid: pid_t, thread: pid_t, signal: c_int) -> c_int
    = |real| { done(real(pid, thread, signal)) }

    fn sigqueue(pid: pid_t, signal: c_int, value: sigval) -> c_int
    = |real| { done(real(pid, signal, value)) }
}

macro_rules! signal {
    ($($name:ident)*) => {
        hooks! {$(
            fn $name(signal: c_int, handler: sighandler_t) -> sighandler_t = |real| {
                before_set(signal, handler);
                real(signal, handler)
            }
        )*}
    };
}

signal! { signal bsd_signal ssignal sysv_signal __sysv_signal sigset }
