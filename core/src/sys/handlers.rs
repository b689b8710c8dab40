//! The signal handlers that the program has, and what must not be left half done for one.
//!
//! A handler may wait for what only the code that it interrupted can bring about. Without handlers nothing is paid for that.

use super::process::SignalsHeld;
use std::cell::Cell;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The program has, or had, one.
static SET: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The calling thread holds its signals back already.
    static HOLDS: Cell<bool> = const { Cell::new(false) };
}

/// What a thread's own fault raises: it comes nowhere else, and held back it would end the process.
const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// Those as a mask.
const FAULT_MASK: u64 = {
    let (mut mask, mut at) = (0, 0);
    while at < FAULTS.len() {
        mask |= 1 << (FAULTS[at] - 1);
        at += 1;
    }
    mask
};

/// sigset's way to hold a signal back.
const SIG_HOLD: libc::sighandler_t = 2;

/// Before the program gives a signal this handler.
pub fn before_set(signal: c_int, handler: libc::sighandler_t) {
    let is_one = handler > SIG_HOLD && handler != libc::SIG_ERR;
    if is_one && !FAULTS.contains(&signal) {
        SET.store(true, Relaxed);
    }
}

/// While it lives no handler of the program interrupts the calling thread, which waits for nothing meanwhile.
pub(crate) struct Undisturbed(Option<SignalsHeld>, PhantomData<*const ()>);

impl Undisturbed {
    /// From now on. A system call, and one more at the end, where the program has handlers and no outer one is there.
    #[inline]
    pub(crate) fn begin() -> Self {
        if !SET.load(Relaxed) || HOLDS.get() {
            return Self(None, PhantomData);
        }
        let held = SignalsHeld::hold_back(!FAULT_MASK);
        // A handler that came before that is over.
        HOLDS.set(true);
        Self(Some(held), PhantomData)
    }
}

impl Drop for Undisturbed {
    #[inline]
    fn drop(&mut self) {
        if self.0.is_some() {
            HOLDS.set(false);
        }
    }
}

/// The calling thread, one of the library's own, holds the program's signals back for good.
pub(crate) fn never_run_here() {
    HOLDS.set(true);
}

/// True if a call that the kernel restarts after a signal goes on after any of the handlers that the
/// program has.
pub(crate) fn restart() -> bool {
    /// The kernel's own form: handler, flags, restorer, mask.
    type Action = [u64; 4];
    (1..=64).all(|signal| {
        let mut action: Action = [0; 4];
        let asked = super::call!(rt_sigaction, signal, 0, action.as_mut_ptr() as usize, 8);
        let handled = asked.is_ok() && action[0] > libc::SIG_IGN as u64;
        // The C library's own, for cancellation and for setuid.
        !handled || matches!(signal, 32 | 33) || action[1] & libc::SA_RESTART as u64 != 0
    })
}
