//! Descriptors of our own beyond every number that the program can get.
//!
//! There may be one or two for each connection, and the program is to find its own descriptors where
//! it would without us: they lie above its limit, which is raised for the moment of making them, or
//! far above what it uses where the limit is that large.

use super::lock::FamilyLock;
use super::{call, file, hidden, Fd};

/// Most such descriptors of a process.
const MOST: u64 = 2048;
/// A limit from which on they lie below it, because a program hardly uses it up; and how high at most:
/// the kernel's table of a process's descriptors grows to the highest.
const LARGE: u64 = 16384;
const HIGHEST: u64 = 32768;
/// So near to where they begin the program may not have come: it takes the lowest free number, so
/// what we were given shows how far it is.
const DISTANCE: u64 = 64;

/// Where the descriptors begin, and whether the limit has to be raised for them.
fn floor(soft: u64, hard: u64) -> Option<(u64, bool)> {
    if soft >= LARGE {
        Some((soft.min(HIGHEST) - MOST, false))
    } else if hard >= soft.saturating_add(MOST) {
        Some((soft, true))
    } else {
        None
    }
}

/// The limits of descriptors before they became `new`.
pub fn limits(new: Option<&libc::rlimit64>) -> Option<libc::rlimit64> {
    let mut old = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let new = new.map_or(0, |limit| limit as *const _ as usize);
    call!(prlimit64, 0, libc::RLIMIT_NOFILE, new, &mut old as *mut _ as usize).ok()?;
    Some(old)
}

/// Held while the limit is raised: for one thread at a time, and never over a fork.
static RAISED: FamilyLock = FamilyLock::new();

/// Before a fork: the child must not inherit a raised limit.
pub fn before_fork() {
    // A signal handler that forks while its own thread has raised the limit is not waited for.
    let _ = RAISED.lock();
}

/// After it, on both sides; in the child its thread has another id.
pub fn after_fork() {
    RAISED.unlock();
}

/// Further descriptors, hidden and close-on-exec, for the same files as `fds`, which stay open.
/// `None` if there is no room for all of them.
pub fn duplicate<const N: usize>(fds: [Fd; N]) -> Option<[Fd; N]> {
    let now = limits(None)?;
    let (lowest, raised) = floor(now.rlim_cur, now.rlim_max)?;
    if !raised {
        return duplicate_from(lowest, fds, None);
    }
    RAISED.lock().ok()?;
    // Another thread may have had it raised.
    let made = limits(None).and_then(|now| {
        let (lowest, raised) = floor(now.rlim_cur, now.rlim_max)?;
        duplicate_from(lowest, fds, raised.then_some(now))
    });
    RAISED.unlock();
    made
}

/// `raised`: the limits that are to be raised for it.
fn duplicate_from<const N: usize>(
    floor: u64,
    fds: [Fd; N],
    raised: Option<libc::rlimit64>,
) -> Option<[Fd; N]> {
    let is_far = |fd: &Fd| u64::try_from(*fd).is_ok_and(|fd| fd + DISTANCE <= floor);
    if !fds.iter().all(|fd| hidden::is_hidden(*fd) || is_far(fd)) {
        return None;
    }
    if let Some(limit) = raised {
        limits(Some(&libc::rlimit64 { rlim_cur: floor + MOST, ..limit }))?;
    }
    let made = fds.map(|fd| call!(fcntl, fd, libc::F_DUPFD_CLOEXEC, floor).map(|fd| fd as Fd));
    if let Some(limit) = raised {
        limits(Some(&limit));
    }
    if made.iter().any(|fd| !fd.is_ok_and(|fd| (fd as u64) < floor + MOST)) {
        for fd in made.into_iter().flatten() {
            file::close(fd);
        }
        return None;
    }
    Some(made.map(|fd| {
        let fd = fd.unwrap_or(-1);
        hidden::note(fd);
        fd
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_lie_where_the_program_cannot_come() {
        assert_eq!(floor(1024, 524_288), Some((1024, true)));
        assert_eq!(floor(1 << 20, 1 << 20), Some((HIGHEST - MOST, false)));
        assert_eq!(floor(20000, 20000), Some((20000 - MOST, false)));
        assert_eq!(floor(1024, 4096), Some((1024, true)));
        assert_eq!(floor(1024, 1024), None);
        assert_eq!(floor(4096, 4096), None);
    }

    #[test]
    fn the_limit_is_as_before() {
        let fd = file::sealed_memory(c"test", 1).unwrap();
        let before = limits(None).unwrap();
        if let Some([made]) = duplicate([fd]) {
            assert!(hidden::is_hidden(made));
            assert!(made as u64 >= before.rlim_cur.min(HIGHEST) - MOST);
            assert_eq!(file::identity(made), file::identity(fd));
            assert_eq!(file::descriptor_flags(made), Ok(libc::FD_CLOEXEC));
            hidden::close(made);
        }
        let after = limits(None).unwrap();
        assert_eq!((before.rlim_cur, before.rlim_max), (after.rlim_cur, after.rlim_max));
        file::close(fd);
    }
}
