//! Processes, threads and scheduling.

use super::call;

/// This process's id, from the kernel (never a cached value: true in a vfork child too).
#[inline]
pub fn pid() -> u32 {
    call!(getpid).unwrap_or(0) as u32
}

/// This thread's id.
pub fn tid() -> u32 {
    call!(gettid).unwrap_or(0) as u32
}

/// Effective user.
pub fn euid() -> u32 {
    call!(geteuid).unwrap_or(u32::MAX as usize) as u32
}

/// True while a thread or process with this id exists.
pub fn exists(tid: u32) -> bool {
    call!(kill, tid, 0) != Err(super::Errno(libc::ESRCH))
}

/// Lets another runnable thread have this core.
#[inline]
pub fn yield_now() {
    let _ = call!(sched_yield);
}

/// Number of processors this process may use, at least one.
pub fn processors() -> usize {
    let mut set = [0u64; 128];
    match call!(sched_getaffinity, 0, std::mem::size_of_val(&set), set.as_mut_ptr() as usize) {
        Ok(n) => {
            set[..n.min(1024) / 8].iter().map(|w| w.count_ones() as usize).sum::<usize>().max(1)
        }
        Err(_) => 1,
    }
}

/// SIGPIPE to the calling thread, as the kernel directs it for a socket write.
pub fn raise_sigpipe() {
    let _ = call!(tgkill, pid(), tid(), libc::SIGPIPE);
}

/// All signals held back until dropped. Structural changes run under it, so that a signal
/// handler of the program can never meet one half done.
pub struct SignalsHeld(u64);

impl SignalsHeld {
    /// Holds back every signal of this thread.
    pub fn new() -> Self {
        let (all, mut old) = (u64::MAX, 0u64);
        let _ = call!(
            rt_sigprocmask,
            libc::SIG_SETMASK,
            &all as *const u64 as usize,
            &mut old as *mut u64 as usize,
            8
        );
        Self(old)
    }
}

impl Default for SignalsHeld {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        let _ = call!(rt_sigprocmask, libc::SIG_SETMASK, &self.0 as *const u64 as usize, 0, 8);
    }
}
