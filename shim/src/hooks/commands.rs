//! system and popen. libc spawns their shell itself, past our hooks: so they are made of posix_spawn here, and the
//! shell gets open connections as any other program does.

use super::process::posix_spawn;
use super::stdio::fdopen;
use crate::real::{errno, hooks, set_errno};
use libc::{c_char, c_int, pid_t, FILE};
use sanshim_core::sys::{file, lock::FamilyLock};
use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

type Actions = libc::posix_spawn_file_actions_t;

extern "C" {
    static environ: *const *const c_char;
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

const DISABLED: c_int = 1;

/// Runs `wait` with cancellation put off: what it waits for has to be tidied up.
fn uncancelled<T>(wait: impl FnOnce() -> T) -> T {
    let mut old = 0;
    // SAFETY: a place for the old state; then that state.
    unsafe {
        pthread_setcancelstate(DISABLED, &mut old);
        let result = wait();
        pthread_setcancelstate(old, null_mut());
        result
    }
}

/// Starts a shell that runs `command`; an error number if that fails.
///
/// # Safety
/// A terminated string; actions and attributes are null or initialized.
unsafe fn start(
    command: *const c_char,
    actions: *const Actions,
    attributes: *const libc::posix_spawnattr_t,
) -> Result<pid_t, c_int> {
    let arguments = [c"sh".as_ptr(), c"-c".as_ptr(), c"--".as_ptr(), command, null()];
    let mut pid = 0;
    // SAFETY: the caller's promise; whoever changes the environment meanwhile races with libc's as well.
    let failed = unsafe {
        posix_spawn(&mut pid, c"/bin/sh".as_ptr(), actions, attributes, arguments.as_ptr(), environ)
    };
    if failed == 0 {
        Ok(pid)
    } else {
        Err(failed)
    }
}

/// The status of a child that ended; -1 and errno if it is not ours to wait for.
fn status_of(pid: pid_t) -> c_int {
    let mut status = 0;
    loop {
        // SAFETY: a place for the status.
        if unsafe { libc::waitpid(pid, &mut status, 0) } == pid {
            return status;
        }
        if errno() != libc::EINTR {
            return -1;
        }
    }
}

/// What several calls of system in this process share: while any of them waits the process ignores SIGINT and SIGQUIT.
struct Waiting {
    lock: FamilyLock,
    guarded: UnsafeCell<(u32, MaybeUninit<[libc::sigaction; 2]>)>,
}

// SAFETY: `guarded` is only touched with the lock held.
unsafe impl Sync for Waiting {}

static WAITING: Waiting =
    Waiting { lock: FamilyLock::new(), guarded: UnsafeCell::new((0, MaybeUninit::uninit())) };
const IGNORED: [c_int; 2] = [libc::SIGINT, libc::SIGQUIT];

impl Waiting {
    fn with<T>(
        &self,
        run: impl FnOnce(&mut u32, &mut MaybeUninit<[libc::sigaction; 2]>) -> T,
    ) -> T {
        let held = self.lock.lock();
        // SAFETY: the lock is held; SIGCHLD alone is blocked, but a signal handler has no business in system.
        let (count, before) = unsafe { &mut *self.guarded.get() };
        let result = run(count, before);
        if held.is_ok() {
            self.lock.unlock();
        }
        result
    }

    /// Begins to ignore them; which of them were not ignored before.
    fn begin(&self) -> libc::sigset_t {
        self.with(|count, before| {
            *count += 1;
            // SAFETY: plain data; `before` is written before it is read.
            unsafe {
                if *count == 1 {
                    let mut ignore: libc::sigaction = std::mem::zeroed();
                    ignore.sa_sigaction = libc::SIG_IGN;
                    let to = before.as_mut_ptr().cast::<libc::sigaction>();
                    for (i, signal) in IGNORED.into_iter().enumerate() {
                        libc::sigaction(signal, &ignore, to.add(i));
                    }
                }
                let mut handled: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&mut handled);
                for (signal, action) in IGNORED.into_iter().zip(before.assume_init_ref()) {
                    if action.sa_sigaction != libc::SIG_IGN {
                        libc::sigaddset(&mut handled, signal);
                    }
                }
                handled
            }
        })
    }

    fn end(&self) {
        self.with(|count, before| {
            *count -= 1;
            if *count == 0 {
                // SAFETY: written when the count became one.
                for (signal, action) in IGNORED.into_iter().zip(unsafe { before.assume_init_ref() })
                {
                    // SAFETY: as it was.
                    unsafe { libc::sigaction(signal, action, null_mut()) };
                }
            }
        });
    }
}

/// system, of a command.
unsafe fn run(command: *const c_char) -> c_int {
    let handled = WAITING.begin();
    // SAFETY: plain data, initialized before it is used.
    unsafe {
        let (mut child, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigemptyset(&mut child);
        libc::sigaddset(&mut child, libc::SIGCHLD);
        libc::pthread_sigmask(libc::SIG_BLOCK, &child, &mut before);
        let mut attributes = MaybeUninit::uninit();
        let at = attributes.as_mut_ptr();
        libc::posix_spawnattr_init(at);
        libc::posix_spawnattr_setsigmask(at, &before);
        libc::posix_spawnattr_setsigdefault(at, &handled);
        let flags = libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETSIGMASK;
        libc::posix_spawnattr_setflags(at, flags as _);
        let started = start(command, null(), at);
        libc::posix_spawnattr_destroy(at);
        let status = match started {
            Ok(pid) => status_of(pid),
            Err(e) => {
                set_errno(e);
                // As if the shell had ended with 127.
                127 << 8
            }
        };
        let e = errno();
        WAITING.end();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, null_mut());
        set_errno(e);
        status
    }
}

/// Streams of popen, with their descriptors and processes.
struct Streams {
    lock: FamilyLock,
    /// How many there are: fclose need not look where there are none.
    count: AtomicU32,
    all: UnsafeCell<Vec<(usize, c_int, pid_t)>>,
}

// SAFETY: `all` is only touched with the lock held.
unsafe impl Sync for Streams {}

static STREAMS: Streams =
    Streams { lock: FamilyLock::new(), count: AtomicU32::new(0), all: UnsafeCell::new(Vec::new()) };

impl Streams {
    fn with<T>(&self, run: impl FnOnce(&mut Vec<(usize, c_int, pid_t)>) -> T) -> T {
        let held = self.lock.lock();
        // SAFETY: the lock is held; popen and pclose are not for signal handlers.
        let result = run(unsafe { &mut *self.all.get() });
        if held.is_ok() {
            self.lock.unlock();
        }
        result
    }

    fn add(&self, stream: *mut FILE, fd: c_int, pid: pid_t) {
        self.with(|all| all.push((stream.addr(), fd, pid)));
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// The process of a stream, which is one no longer.
    fn take(&self, stream: *mut FILE) -> Option<pid_t> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let pid = self.with(|all| {
            let at = all.iter().position(|(one, ..)| *one == stream.addr())?;
            Some(all.swap_remove(at).2)
        })?;
        self.count.fetch_sub(1, Ordering::SeqCst);
        Some(pid)
    }
}

/// popen's mode: whether it reads, and whether its descriptor is close-on-exec.
fn parse(mode: &[u8]) -> Option<(bool, bool)> {
    let has = |one| mode.contains(&one);
    let is_valid = mode.iter().all(|one| b"rwe".contains(one)) && has(b'r') != has(b'w');
    is_valid.then(|| (has(b'r'), has(b'e')))
}

unsafe fn open(command: *const c_char, mode: &[u8]) -> Result<*mut FILE, c_int> {
    let (reads, close_on_exec) = parse(mode).ok_or(libc::EINVAL)?;
    let (from, to) = file::pipe().map_err(|e| e.0)?;
    let (ours, theirs, there) = if reads { (from, to, 1) } else { (to, from, 0) };
    let mut actions = MaybeUninit::uninit();
    let at = actions.as_mut_ptr();
    // SAFETY: initialized first.
    let started = unsafe {
        libc::posix_spawn_file_actions_init(at);
        libc::posix_spawn_file_actions_adddup2(at, theirs, there);
        // Streams of earlier calls are not for it.
        STREAMS.with(|all| {
            for (_, fd, _) in all.iter().filter(|(_, fd, _)| *fd != there) {
                libc::posix_spawn_file_actions_addclose(at, *fd);
            }
        });
        let started = start(command, at, null());
        libc::posix_spawn_file_actions_destroy(at);
        started
    };
    file::close(theirs);
    let pid = started.inspect_err(|_| file::close(ours))?;
    if !close_on_exec {
        let _ = file::set_close_on_exec(ours, false);
    }
    let mode = if reads { c"r" } else { c"w" };
    // SAFETY: a terminated string.
    let stream = unsafe { fdopen(ours, mode.as_ptr()) };
    if stream.is_null() {
        let e = errno();
        file::close(ours);
        status_of(pid);
        return Err(e);
    }
    STREAMS.add(stream, ours, pid);
    Ok(stream)
}

hooks! {
    fn system(command: *const c_char) -> c_int = |real| {
        let shell_is_there = command.is_null();
        let command = if shell_is_there { c"exit 0".as_ptr() } else { command };
        // SAFETY: the program's, or ours.
        let status = uncancelled(|| unsafe { run(command) });
        if shell_is_there { c_int::from(status == 0) } else { status }
    }

    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE = |real| {
        // SAFETY: the program's strings.
        match uncancelled(|| unsafe { open(command, CStr::from_ptr(mode).to_bytes()) }) {
            Ok(stream) => stream,
            Err(e) => {
                set_errno(e);
                null_mut()
            }
        }
    }

    fn pclose(stream: *mut FILE) -> c_int = |real| {
        let Some(pid) = STREAMS.take(stream) else { return real(stream) };
        // SAFETY: the program's stream, which it gives up.
        unsafe { fclose(stream) };
        uncancelled(|| status_of(pid))
    }

    // As old programs were linked.
    fn _IO_popen(command: *const c_char, mode: *const c_char) -> *mut FILE = |_real| {
        // SAFETY: the same contract.
        unsafe { popen(command, mode) }
    }

    fn _IO_fclose(stream: *mut FILE) -> c_int = |_real| {
        // SAFETY: the same contract.
        unsafe { fclose(stream) }
    }

    // A stream of popen's may be closed like any other.
    fn fclose(stream: *mut FILE) -> c_int = |real| {
        let pid = STREAMS.take(stream);
        let closed = real(stream);
        match pid {
            Some(pid) => uncancelled(|| status_of(pid)),
            None => closed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_as_libc_takes_them() {
        assert_eq!(parse(b"r"), Some((true, false)));
        assert_eq!(parse(b"ew"), Some((false, true)));
        for wrong in [b"".as_slice(), b"e", b"rw", b"rb", b"a"] {
            assert_eq!(parse(wrong), None);
        }
    }
}
