//! Whether the program has signal handlers, and a way to keep them out, and the thread's cancellation, while something
//! is half done.
//!
//! Otherwise a handler might wait for what only the code that it interrupted can bring about. A program without
//! handlers makes no system call for this. Libraries that a provider uses make calls at which a thread may be
//! cancelled, and a provider's frames cannot be unwound.

use super::process::SignalsHeld;
use std::cell::Cell;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The program has, or had, a handler.
static SET: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The calling thread holds its signals back already.
    static HOLDS: Cell<bool> = const { Cell::new(false) };
}

/// The signals of a thread's own faults. They are never held back: a fault would then end the process.
const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// [`FAULTS`] as a mask.
pub(super) const FAULT_MASK: u64 = {
    let (mut mask, mut at) = (0, 0);
    while at < FAULTS.len() {
        mask |= 1 << (FAULTS[at] - 1);
        at += 1;
    }
    mask
};

/// What sigset takes in a handler's place to hold a signal back.
const SIG_HOLD: libc::sighandler_t = 2;

/// Called before the program gives a signal this handler.
pub fn before_set(signal: c_int, handler: libc::sighandler_t) {
    let is_one = handler > SIG_HOLD && handler != libc::SIG_ERR;
    if is_one && !FAULTS.contains(&signal) {
        SET.store(true, Relaxed);
    }
}

/// True if the program has handlers, or had some.
pub(crate) fn are_set() -> bool {
    SET.load(Relaxed)
}

extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// While this exists no other thread cancels the calling one. Makes no system call.
pub(crate) struct Uncancelled {
    /// The state before.
    before: c_int,
    _of_this_thread: PhantomData<*const ()>,
}

impl Uncancelled {
    /// Begins now.
    #[inline]
    pub(crate) fn begin() -> Self {
        /// PTHREAD_CANCEL_DISABLE.
        const DISABLE: c_int = 1;
        let mut before = 0;
        // SAFETY: it writes one integer, which is there.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        Self { before, _of_this_thread: PhantomData }
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: it writes nothing, and the state is one that it gave.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}

/// While this exists no handler of the program interrupts the calling thread, and no other thread cancels it. The
/// thread must not wait for anything meanwhile, but for a device that is at work on the program's memory, and not for
/// long.
pub(crate) struct Undisturbed {
    signals: Option<SignalsHeld>,
    _uncancelled: Uncancelled,
}

impl Undisturbed {
    /// Begins now. Costs two system calls in all, but only if the program has handlers and there is no outer one.
    #[inline]
    pub(crate) fn begin() -> Self {
        let uncancelled = Uncancelled::begin();
        let holds_back = SET.load(Relaxed) && !HOLDS.get();
        let signals = holds_back.then(|| {
            let held = SignalsHeld::hold_back(!FAULT_MASK);
            // A handler that ran before this has returned.
            HOLDS.set(true);
            held
        });
        Self { signals, _uncancelled: uncancelled }
    }
}

impl Drop for Undisturbed {
    #[inline]
    fn drop(&mut self) {
        if self.signals.is_some() {
            HOLDS.set(false);
        }
    }
}

/// For a thread of the library's own: it holds the program's signals back for good.
pub(crate) fn never_run_here() {
    HOLDS.set(true);
}

/// True if the kernel would restart an interrupted call whichever of the program's handlers ran (SA_RESTART).
pub(crate) fn restart() -> bool {
    /// A handler in the kernel's own form: handler, flags, restorer, mask.
    type Action = [u64; 4];
    (1..=64).all(|signal| {
        let mut action: Action = [0; 4];
        let asked = super::call!(rt_sigaction, signal, 0, action.as_mut_ptr() as usize, 8);
        let handled = asked.is_ok() && action[0] > libc::SIG_IGN as u64;
        // 32 and 33 are the C library's own, for cancellation and for setuid.
        !handled || matches!(signal, 32 | 33) || action[1] & libc::SA_RESTART as u64 != 0
    })
}
