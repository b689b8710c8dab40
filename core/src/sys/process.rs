//! Processes, threads and scheduling.

use super::signal_mask::SignalMask;
use super::{call, handlers, thread, Errno, Fd};
use std::cell::OnceCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// This process's id. The kernel is asked each time, so it is right in a vfork child too.
#[inline]
pub fn pid() -> u32 {
    call!(getpid).unwrap_or(0) as u32
}

/// The process that this memory belongs to. 0 before [`note_owner`] is called.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Notes that this memory belongs to this process. Called at the start, and in a fork child.
pub(crate) fn note_owner() {
    OWNER.store(pid(), Ordering::Relaxed);
}

/// The process that this memory belongs to.
pub fn owner() -> u32 {
    OWNER.load(Ordering::Relaxed)
}

/// True in a vfork child, which has borrowed its parent's memory, but has descriptors of its own. It must note nothing
/// there.
pub fn is_borrowed() -> bool {
    let owner = owner();
    owner != 0 && pid() != owner
}

/// The program may have made a child that has borrowed its memory.
static BORROWERS: AtomicBool = AtomicBool::new(cfg!(not(target_arch = "x86_64")));

/// Called before the program makes a child that shares its memory, or for which the handlers of fork do not run.
pub fn expect_borrower() {
    BORROWERS.store(true, Ordering::Relaxed);
}

/// False if this is hardly a process with borrowed memory. This does not ask the kernel, so it does not recognise a
/// child that the program made by an instruction of its own. It is for callers where a mistake only keeps a connection
/// on TCP.
#[inline]
pub fn may_be_borrowed() -> bool {
    BORROWERS.load(Ordering::Relaxed) && is_borrowed()
}

/// This thread's id.
pub(crate) fn tid() -> u32 {
    call!(gettid).unwrap_or(0) as u32
}

/// Effective user.
pub(crate) fn euid() -> u32 {
    call!(geteuid).unwrap_or(u32::MAX as usize) as u32
}

/// True while a process with this id exists, be it a zombie: one whose first thread has ended looks like one.
pub(crate) fn exists(pid: u32) -> bool {
    call!(kill, pid, 0) != Err(super::Errno(libc::ESRCH))
}

/// True while a thread or process with this id exists and is not a zombie.
pub fn lives(tid: u32) -> bool {
    if call!(kill, tid, 0) == Err(super::Errno(libc::ESRCH)) {
        return false;
    }
    let path = path_of(tid, "stat");
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let Ok(fd) = call!(openat, libc::AT_FDCWD, path.as_ptr() as usize, flags, 0) else {
        // A process that /proc hides from us may well live.
        return true;
    };
    let mut text = [0u8; 128];
    let n = super::file::read(fd as super::Fd, text.as_mut_ptr(), text.len()).unwrap_or(0);
    super::file::close(fd as super::Fd);
    // The line is "pid (name) S". The name may hold any character, so the line is read from its end.
    let state = text[..n].iter().rposition(|b| *b == b')').and_then(|at| text.get(at + 2));
    !matches!(state, Some(b'Z' | b'X'))
}

/// "/proc/TID/FILE" and zeros behind it. FILE has 21 letters at most. Does not allocate, because a signal handler or a vfork
/// child may ask.
pub(super) fn path_of(tid: u32, file: impl std::fmt::Display) -> [u8; 40] {
    let mut path = [0; 40];
    // A number has ten digits at most. One zero stays behind whatever is written.
    let mut rest = &mut path[..39];
    let _ = std::io::Write::write_fmt(&mut rest, format_args!("/proc/{tid}/{file}"));
    path
}

/// True if that process is of this one's PID namespace, as far as /proc shows.
pub(crate) fn is_of_own_namespace(pid: u32) -> bool {
    let namespace = |pid| {
        let path = path_of(pid, "ns/pid");
        // SAFETY: stat is plain data, zero is a valid value of it.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        let at = &mut status as *mut _ as usize;
        call!(newfstatat, libc::AT_FDCWD, path.as_ptr() as usize, at, 0).ok()?;
        Some((status.st_dev, status.st_ino))
    };
    let own = self::pid();
    pid == own || pid != 0 && namespace(pid).is_some_and(|other| namespace(own) == Some(other))
}

/// True if `fd` is a PID namespace, as setns takes it.
pub fn is_pid_namespace(fd: Fd) -> bool {
    const NS_GET_NSTYPE: usize = 0xb703;
    call!(ioctl, fd, NS_GET_NSTYPE) == Ok(libc::CLONE_NEWPID as usize)
}

/// Lets another thread that can run have this processor.
#[inline]
pub fn yield_now() {
    let _ = call!(sched_yield);
}

/// Number of processors that are on line, at least one.
///
/// Those that this thread may not use count too, because its peer may run there.
pub(crate) fn processors_online() -> usize {
    // SAFETY: no pointers. glibc reads /sys without going through any hook.
    let n = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(n).unwrap_or(1).max(1)
}

/// RLIMIT_NOFILE: poll takes that many descriptors, and their numbers are below it.
pub(crate) fn most_descriptors() -> usize {
    descriptor_limit().0.try_into().unwrap_or(usize::MAX)
}

/// RLIMIT_NOFILE, the soft limit and the hard one.
pub(crate) fn descriptor_limit() -> (u64, u64) {
    let mut limit = libc::rlimit64 { rlim_cur: u64::MAX, rlim_max: u64::MAX };
    let _ = call!(prlimit64, 0, libc::RLIMIT_NOFILE, 0, &mut limit as *mut _ as usize);
    (limit.rlim_cur, limit.rlim_max)
}

/// Calls `open` while the soft limit of descriptors is the hard one. A limit that the program sets meanwhile stays.
pub(super) fn at_hard_limit<T>(open: impl FnOnce() -> T) -> T {
    let exchange = |new: (u64, u64)| {
        let new = libc::rlimit64 { rlim_cur: new.0, rlim_max: new.1 };
        let mut old = new;
        let (new_at, old_at) = (&new as *const _ as usize, &mut old as *mut _ as usize);
        let exchanged = call!(prlimit64, 0, libc::RLIMIT_NOFILE, new_at, old_at);
        exchanged.map(|_| (old.rlim_cur, old.rlim_max))
    };
    let (_, hard) = descriptor_limit();
    let before = exchange((hard, hard));
    let opened = open();
    if let Ok(before) = before {
        match exchange(before) {
            Ok(since) if since != (hard, hard) => drop(exchange(since)),
            _ => {}
        }
    }
    opened
}

/// Sends SIGPIPE to the calling thread, as the kernel does for a write to a socket.
pub(crate) fn raise_sigpipe() {
    let _ = call!(tgkill, pid(), tid(), libc::SIGPIPE);
}

/// The C library's own two signals, by which it changes the user of all threads (setuid) and cancels them. They are not
/// held back for long, because it waits for them.
const LIBRARY_SIGNALS: u64 = 3 << 31;

/// Signals are held back until this is dropped. Changes of structure hold all of them back, so that a signal handler of
/// the program never meets one half done.
pub(crate) struct SignalsHeld(u64);

impl SignalsHeld {
    /// Holds back every signal of this thread.
    pub(crate) fn new() -> Self {
        Self::hold_back(u64::MAX)
    }

    /// Holds back these signals of this thread.
    pub(super) fn hold_back(signals: u64) -> Self {
        let mut old = 0u64;
        let _ = call!(
            rt_sigprocmask,
            libc::SIG_BLOCK,
            &signals as *const u64 as usize,
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
        if !super::jump::is_under_way() {
            let _ = call!(rt_sigprocmask, libc::SIG_SETMASK, &self.0 as *const u64 as usize, 0, 8);
        }
    }
}

/// The signals that a call holds back while its thread is awake between two sleeps: one that came there would not end
/// the call. They come in the sleeps. Faults are not held back ([`handlers::FAULT_MASK`]).
#[derive(Default)]
pub(crate) struct NapSignals(OnceCell<(SignalsHeld, Option<u64>)>);

impl NapSignals {
    /// Holds signals back from now on.
    pub(crate) fn hold(&self) {
        self.0.get_or_init(|| {
            let held = SignalsHeld::hold_back(!(LIBRARY_SIGNALS | handlers::FAULT_MASK));
            let outer = thread::set_nap_mask(Some(held.0));
            (held, outer)
        });
    }

    /// Called before a sleep. If the wait `is_made_of_naps`, this holds signals back from now on. Gives the mask to sleep
    /// with, under which they come: `mask` if the program has one for its wait, and otherwise the thread's own.
    pub(crate) fn mask<'a>(
        &'a self,
        is_made_of_naps: bool,
        mask: Option<SignalMask<'a>>,
    ) -> Option<SignalMask<'a>> {
        if is_made_of_naps {
            self.hold();
        }
        mask.or_else(|| self.0.get().map(|(held, _)| SignalMask::of(&held.0)))
    }
}

impl Drop for NapSignals {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some((_, outer)) = self.0.get() {
            thread::set_nap_mask(*outer);
        }
    }
}

/// Lets signals in that the calling thread holds back between sleeps. True: a handler ran.
pub(crate) fn let_held_signals_in() -> bool {
    let mask = thread::nap_mask();
    mask.is_some() && super::poll::poll(&mut [], Some(0), mask) == Err(Errno(libc::EINTR))
}

/// Lets the C library's own signals into a thread that was made with all signals held back.
pub(crate) fn let_library_signals_in() {
    let own = LIBRARY_SIGNALS;
    let _ = call!(rt_sigprocmask, libc::SIG_UNBLOCK, &own as *const u64 as usize, 0, 8);
}

/// Reads parts of another process's memory, in order, into as many places here (RDMA read on shared memory). Gives the
/// bytes copied, which may end inside a part where memory is missing.
///
/// # Errors
/// EPERM or ENOSYS where the kernel forbids it, ESRCH if the process is gone, EFAULT.
///
/// # Safety
/// The local places may be written.
pub(crate) unsafe fn read_memory(
    process: u32,
    local: &[libc::iovec],
    remote: &[libc::iovec],
) -> super::Result<usize> {
    let (to, from) = (local.as_ptr() as usize, remote.as_ptr() as usize);
    call!(process_vm_readv, process, to, local.len(), from, remote.len(), 0)
}

/// As [`read_memory`], but writes into the other process's memory (RDMA write on shared memory).
///
/// # Errors
/// As [`read_memory`].
///
/// # Safety
/// The other process offered this memory, and expects that it is written at this moment.
pub(crate) unsafe fn write_memory(
    process: u32,
    local: &[libc::iovec],
    remote: &[libc::iovec],
) -> super::Result<usize> {
    let (from, to) = (local.as_ptr() as usize, remote.as_ptr() as usize);
    call!(process_vm_writev, process, from, local.len(), to, remote.len(), 0)
}

/// A descriptor of our own for the file that another process has open as `fd`. Close-on-exec.
///
/// # Errors
/// EPERM or ENOSYS where the kernel forbids it, ESRCH if the process is gone, EBADF. EPERM too in a sandbox with a filter of
/// system calls, which may end a process for one that few programs make.
pub(crate) fn descriptor_of(process: u32, fd: Fd) -> super::Result<Fd> {
    if call!(prctl, libc::PR_GET_SECCOMP as usize) != Ok(0) {
        return Err(super::Errno(libc::EPERM));
    }
    let handle = call!(pidfd_open, process, 0)? as Fd;
    let ours = call!(pidfd_getfd, handle, fd, 0);
    super::file::close(handle);
    ours.map(|fd| fd as Fd)
}

/// Bytes that nobody can guess. Zeros where the kernel has none to give.
pub(crate) fn random() -> [u64; 2] {
    let mut bytes = [0u64; 2];
    let _ = call!(getrandom, bytes.as_mut_ptr() as usize, size_of_val(&bytes), 0);
    bytes
}

/// As many as a [proof](crate::proof) takes.
pub(crate) fn chance() -> [u64; 8] {
    let mut words = [0; 8];
    words.chunks_exact_mut(2).for_each(|two| two.copy_from_slice(&random()));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dead_do_not_live() {
        assert!(lives(pid()) && lives(tid()));
        let is = |path: [u8; 40], expected: &[u8]| path.split(|b| *b == 0).next() == Some(expected);
        assert!(is(path_of(u32::MAX, "stat"), b"/proc/4294967295/stat"));
        let longest = path_of(u32::MAX, format_args!("fd/{}", i32::MIN));
        assert!(is(longest, b"/proc/4294967295/fd/-2147483648"));
        let thread = std::thread::spawn(tid);
        let dead = thread.join().unwrap();
        // The kernel's entry of the thread may outlast the join for a moment.
        while lives(dead) {
            yield_now();
        }
    }
}
