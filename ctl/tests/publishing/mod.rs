//! Processes that publish what a test wants `sanctl` to show.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// While it lives nobody else forks: a child would inherit our pipes and keep them open.
pub(crate) fn no_other_child() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `body` in a fork child, which then has a registry file of its own, and keeps the child
/// alive during `meanwhile`.
pub(crate) fn with_publishing_child(body: impl FnOnce(), meanwhile: impl FnOnce(u32)) {
    let _alone = no_other_child();
    let ((ready, child_ready), (child_done, done)) = (pipe(), pipe());
    // SAFETY: the child runs `body` and system calls, and ends with _exit.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        drop((ready, done));
        let published = catch_unwind(AssertUnwindSafe(body));
        if published.is_ok() && File::from(child_ready).write_all(&[0]).is_ok() {
            // Until the parent closes its end, by ending if need be.
            let _ = File::from(child_done).read(&mut [0]);
        }
        // SAFETY: ends the child without the test harness's exit handlers.
        unsafe { libc::_exit(i32::from(published.is_err())) };
    }
    drop((child_ready, child_done));
    let result = catch_unwind(AssertUnwindSafe(|| {
        File::from(ready).read_exact(&mut [0]).expect("the child has published");
        meanwhile(child as u32);
    }));
    drop(done);
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    if let Err(panic) = result {
        resume_unwind(panic);
    }
}

/// The reading and the writing end of a pipe.
pub(crate) fn pipe() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: an array of two descriptors, which are then ours alone.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    }
}
