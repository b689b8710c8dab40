//! Control of one direction of a connection: the session's token, with waiting.
//!
//! Without a second user it costs one atomic operation each way, shared or not. Waiters look every 20 ms whether the
//! holder, or the process that it is kept for, still comes.

use crate::session::token::{Claim, Refused, Step, Token, TokenTaken, Wake};
use crate::sys::lock::{Busy, CHECK_INTERVAL};
use crate::sys::process;
use crate::sys::process::owner;
use crate::sys::thread::own_tid;
use crate::sys::{futex, time, Errno};

/// How often a waiter looks before it queues or sleeps: most holders copy a few bytes.
const LOOKS: u32 = 100;

/// What a waiter learnt by its last sleep.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slept {
    /// A signal ended it.
    pub(crate) signalled: bool,
}

/// See the module. All zero is free.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct ControlLock {
    token: Token,
}

#[inline]
fn claim() -> Claim {
    Claim { process: owner(), thread: own_tid() }
}

impl ControlLock {
    /// Takes control if no thread has it. Acquire.
    #[inline]
    pub(crate) fn try_lock(&self) -> Result<TokenTaken, Busy> {
        self.token.try_take(claim()).map_err(|refused| match refused {
            Refused::Other => Busy::Other,
            Refused::Reentered => Busy::Reentered,
        })
    }

    /// Takes control if no thread has it and this process had it last. Acquire.
    #[inline(always)]
    pub(crate) fn try_lock_again(&self) -> bool {
        let claim = claim();
        if !self.token.was_of(claim) || !self.token.try_borrow(claim.thread) {
            return false;
        }
        // Another process may have had it in between.
        let again = self.token.was_of(claim);
        if !again {
            self.unlock();
        }
        again
    }

    /// As [`try_lock`](Self::try_lock), for what is no transfer of the calling process: control stays with the process
    /// that has it (D3). A thread that waits finds a dead holder.
    #[inline]
    pub(crate) fn try_borrow(&self) -> bool {
        self.token.try_borrow(own_tid())
    }

    /// Takes control, waiting for it; only after a refusal that was not for reentering. `goes_on` is asked
    /// at first and before each sleep, and told of the last one; its error ends the wait.
    #[cold]
    pub(crate) fn wait<E>(
        &self,
        mut goes_on: impl FnMut(Slept) -> Result<(), E>,
    ) -> Result<TokenTaken, E> {
        goes_on(Slept::default())?;
        let claim = claim();
        for _ in 0..LOOKS {
            if let Ok(taken) = self.token.try_take(claim) {
                return Ok(taken);
            }
            std::hint::spin_loop();
        }
        let (mut ticket, mut signalled) = (None, false);
        let mut checked = time::now();
        loop {
            let mut step = self.token.look(claim, &mut ticket);
            if let Step::Sleep(seen) = step {
                if let Err(why) = goes_on(Slept { signalled }) {
                    if let Some(ticket) = ticket {
                        self.token.give_up(ticket);
                        self.wake_all();
                    }
                    return Err(why);
                }
                let slept = if Token::says_abandoned(seen) {
                    Err(Errno(libc::ETIMEDOUT))
                } else {
                    futex::wait(self.token.word(), seen, CHECK_INTERVAL)
                };
                signalled = slept == Err(Errno(libc::EINTR)) || process::let_held_signals_in();
                // Signals may come more often than that.
                let is_due = signalled && time::now() - checked >= CHECK_INTERVAL;
                if slept != Err(Errno(libc::ETIMEDOUT)) && !is_due {
                    continue;
                }
                checked = time::now();
                step = self.token.waited_in_vain(claim, ticket, seen, process::lives);
            }
            match step {
                Step::Taken(taken) => return Ok(taken),
                Step::WakeAll => self.wake_all(),
                Step::Again | Step::Sleep(_) => {}
            }
        }
    }

    /// Gives control back. Release.
    #[inline(always)]
    pub(crate) fn unlock(&self) {
        match self.token.give_back() {
            Wake::Nobody => {}
            Wake::One => futex::wake(self.token.word(), 1),
            Wake::All => self.wake_all(),
        }
    }

    fn wake_all(&self) {
        futex::wake(self.token.word(), i32::MAX as u32);
    }

    /// Has a waiting thread look whether to go on. The holder calls this.
    pub(crate) fn nudge(&self) {
        if self.is_waited_for() {
            self.wake_all();
        }
    }

    /// True if a thread may sleep until control is given back.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.token.is_waited_for()
    }

    /// The calling thread will not give it back, or a thread of the image before this one that had its id: if it
    /// holds it, it counts as dead.
    pub(crate) fn abandon_own(&self) {
        self.token.abandon(own_tid());
    }

    /// True if the calling thread holds it.
    pub(crate) fn is_held_by_caller(&self) -> bool {
        self.token.holder() == Some(own_tid())
    }

    /// True if a thread holds it.
    pub(crate) fn is_held(&self) -> bool {
        self.token.holder().is_some()
    }

    /// True if a thread holds it that died. Costs system calls if another does.
    pub(crate) fn is_held_by_the_dead(&self) -> bool {
        self.token.holder().is_some_and(|thread| thread != own_tid() && !process::lives(thread))
    }

    /// True if a thread holds it that lives. Costs system calls.
    pub(crate) fn is_held_by_the_living(&self) -> bool {
        self.token.holder().is_some_and(process::lives)
    }

    /// Times control changed from one process to another.
    #[inline]
    pub(crate) fn swaps(&self) -> u32 {
        self.token.swaps()
    }
}
