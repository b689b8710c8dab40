//! A process of its own for work that must not hold up the program and must outlive it: what a close has left to send.

use super::{call, thread, Fd, Result};

/// Runs `work` in a process that nobody waits for, and that keeps no descriptor but `keep`. It is no child of this one, so no
/// wait of the program's tells of it; it holds all signals back; its memory is a copy.
///
/// `work` must not allocate, and take no lock of this process's alone: another thread may have held it.
///
/// # Errors
/// The kernel's where there is no room for another process.
pub(crate) fn run(keep: Fd, work: impl FnOnce()) -> Result<()> {
    match clone()? {
        0 => {
            // Its child is the one that works: once this one is over, that is nobody's here.
            if let Ok(0) = clone() {
                thread::forget_tid();
                hold_all_signals();
                close_all_but(keep);
                work();
            }
            exit()
        }
        between => {
            let all = libc::__WALL;
            while call!(wait4, between, 0, all, 0) == Err(super::Errno(libc::EINTR)) {}
            Ok(())
        }
    }
}

/// A copy of this process with this thread alone, whose end raises no signal: zero in the copy, there its number.
fn clone() -> Result<usize> {
    call!(clone, 0, 0, 0, 0, 0)
}

fn hold_all_signals() {
    let all = u64::MAX;
    let _ = call!(rt_sigprocmask, libc::SIG_SETMASK, &all as *const u64 as usize, 0, 8);
}

/// A pipe of the program's would stay open through the copy.
fn close_all_but(keep: Fd) {
    if keep > 0 {
        let _ = call!(close_range, 0, keep - 1, 0);
    }
    let _ = call!(close_range, keep + 1, u32::MAX, 0);
}

fn exit() -> ! {
    loop {
        let _ = call!(exit_group, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{file, pipe};

    #[test]
    fn it_works_apart_and_is_nobodys_child() {
        let (read_end, write_end) = pipe::pipe().unwrap();
        run(write_end, || {
            let byte = [7u8];
            let _ = call!(write, write_end, byte.as_ptr() as usize, 1);
        })
        .unwrap();
        file::close(write_end);
        let mut byte = 0u8;
        assert_eq!(file::read(read_end, &mut byte, 1), Ok(1));
        assert_eq!(byte, 7);
        // It is gone, and kept nothing open.
        assert_eq!(file::read(read_end, &mut byte, 1), Ok(0));
        file::close(read_end);
    }
}
