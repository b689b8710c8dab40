//! A process of ours that stays when the caller becomes another program.

use super::process::{self, SignalsHeld};
use super::{call, thread, Fd, Result};

/// Runs `work` in a process that is init's child and nobody else's, with a copy of this one's memory and no descriptor
/// but `kept`. All signals are held back there; `work` neither allocates nor calls anything of the program's. False if there
/// can be none.
pub fn leave_behind(kept: Fd, work: impl FnOnce()) -> bool {
    let _signals = SignalsHeld::new();
    match fork() {
        // In between: it ends at once, so that the other is init's.
        Ok(0) => match fork() {
            Ok(0) => {
                if become_own(kept).is_ok() {
                    work();
                }
                exit(0)
            }
            made => exit(made.is_err().into()),
        },
        Ok(child) => {
            let mut status = 0i32;
            let ended = call!(wait4, child, (&raw mut status) as usize, libc::__WALL, 0);
            ended.is_ok() && status == 0
        }
        Err(_) => false,
    }
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

/// In that process.
fn become_own(kept: Fd) -> Result<()> {
    thread::forget_tid();
    process::note_owner();
    // What ends the program's session, or group, is not meant for this one.
    call!(setsid)?;
    if kept > 0 {
        call!(close_range, 0, kept - 1, 0)?;
    }
    call!(close_range, kept + 1, u32::MAX, 0)?;
    call!(prctl, libc::PR_SET_NAME, c"sanshim-rest".as_ptr() as usize, 0, 0, 0).map(drop)
}
