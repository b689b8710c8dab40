//! A process of ours that stays when the caller becomes another program.

use super::process::{self, SignalsHeld};
use super::{call, thread, Fd, Result};

/// Runs `work` in a process that is nobody's child but init's, with a copy of this one's memory and no descriptor
/// but `kept`; SIGTERM, SIGINT and SIGHUP end it, and no other signal comes. `work` neither allocates nor calls anything of
/// the program's. False if there is none, because the program would be told of its end, or the kernel does not let it be.
pub fn leave_behind(kept: Fd, work: impl FnOnce()) -> bool {
    if call!(getpid) == Ok(1) || is_subreaper() {
        return false;
    }
    let _signals = SignalsHeld::new();
    match fork() {
        // In between: it ends at once, so that the other is init's. What it closes is closed before the caller goes on.
        Ok(0) => {
            if become_own(kept).is_err() {
                exit(1);
            }
            match fork() {
                Ok(0) => {
                    thread::forget_tid();
                    process::note_owner();
                    end_by_signal();
                    work();
                    exit(0)
                }
                made => exit(made.is_err().into()),
            }
        }
        Ok(child) => {
            let mut status = 0i32;
            let ended = call!(wait4, child, (&raw mut status) as usize, libc::__WALL, 0);
            ended.is_ok() && status == 0
        }
        Err(_) => false,
    }
}

fn is_subreaper() -> bool {
    let mut is = 0i32;
    let asked = call!(prctl, libc::PR_GET_CHILD_SUBREAPER, (&raw mut is) as usize, 0, 0, 0);
    asked.is_err() || is != 0
}

/// Not libc's: handlers of the program would run. And no signal tells of the child's end, so the program's own waits do
/// not find it.
fn fork() -> Result<usize> {
    call!(clone, 0, 0, 0, 0, 0)
}

fn exit(status: i32) -> ! {
    loop {
        let _ = call!(exit_group, status);
    }
}

/// In the one in between: what is the program's is let go of.
fn become_own(kept: Fd) -> Result<()> {
    // What ends the program's session, or group, is not meant for this one.
    call!(setsid)?;
    if kept > 0 {
        call!(close_range, 0, kept - 1, 0)?;
    }
    call!(close_range, kept + 1, u32::MAX, 0)?;
    let _ = call!(chdir, c"/".as_ptr() as usize);
    call!(prctl, libc::PR_SET_NAME, c"sanshim-rest".as_ptr() as usize, 0, 0, 0).map(drop)
}

/// By those that are sent to every process, when a service or the host stops.
fn end_by_signal() {
    // The kernel's struct, of which all zero is the default action.
    let default = [0u64; 4];
    let mut held = u64::MAX;
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let _ = call!(rt_sigaction, signal, (&raw const default) as usize, 0, 8);
        held &= !(1 << (signal - 1));
    }
    let _ = call!(rt_sigprocmask, libc::SIG_SETMASK, (&raw const held) as usize, 0, 8);
}
