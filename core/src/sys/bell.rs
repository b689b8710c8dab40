//! A bell: one end of a connection rings it, and the other end sleeps on it.
//!
//! A bell is a pipe that no other process can turn against this one. Each end has an open file description of its own,
//! which does not block and both reads and writes. So a write never waits and never raises SIGPIPE, whatever the other
//! end does to its own description: it can fill the pipe, or empty it, and so spoils its own connection. (An eventfd
//! has one description, at which the other end could clear O_NONBLOCK.)
//!
//! A sleeper that watches the edge of a bell need not take the rings off. A sleeper that waits for the level takes them
//! off before each sleep.

use super::{call, file, pipe, Errno, Fd, Result};
use std::fmt::Write;

/// Bytes of the pipe. That many rings fit. The kernel keeps one page.
const SIZE: usize = 4096;
/// A process that has a way to a bell may open it.
const MODE: u32 = 0o666;
/// Longest link that names a pipe.
const NAME: usize = 32;

/// Makes a bell: this end's descriptor, and one to pass to the other end and to close. Both are close-on-exec.
///
/// # Errors
/// The kernel's where no descriptor is left, or /proc is not mounted.
pub(crate) fn make() -> Result<(Fd, Fd)> {
    let (read_end, write_end) = pipe::pipe()?;
    let _ = call!(fcntl, read_end, libc::F_SETPIPE_SZ, SIZE);
    // The other end may be another user's, as a server's is that gave up root. Nobody else has a way to the pipe.
    let _ = file::set_mode(read_end, MODE);
    let own = name_of(read_end).and_then(|name| open_anew(&name));
    file::close(write_end);
    match own {
        Ok(own) => Ok((own, read_end)),
        Err(e) => {
            file::close(read_end);
            Err(e)
        }
    }
}

/// This end's descriptor of a bell that another process passed. The one passed stays open.
///
/// # Errors
/// EBADF if it is no pipe; EACCES if whoever passed it may not read and write it by himself; otherwise as [`make`].
pub(crate) fn adopt(passed: Fd) -> Result<Fd> {
    if !may_be(passed) {
        return Err(Errno(libc::EBADF));
    }
    let name = name_of(passed)?;
    // Root may open any pipe that it is handed one end of, such as the one that others write their log to.
    if file::stat(passed)?.st_mode & MODE != MODE {
        return Err(Errno(libc::EACCES));
    }
    open_anew(&name)
}

/// True if `fd` is a pipe, which a close does not wait for, nor anything else. Asks no file system, which could be another
/// process's own.
pub(crate) fn may_be(fd: Fd) -> bool {
    call!(fcntl, fd, libc::F_GETPIPE_SZ, 0).is_ok()
}

/// Rings. The caller has published before what it rings for.
pub(crate) fn ring(bell: Fd) {
    if write_ring(bell) == Err(Errno(libc::EAGAIN)) {
        // It is full of rings that nobody took off.
        silence(bell);
        let _ = write_ring(bell);
    }
}

fn write_ring(bell: Fd) -> Result<usize> {
    let ring = [0u8];
    call!(write, bell, ring.as_ptr() as usize, ring.len())
}

/// Takes all rings off; true if there was one.
pub(crate) fn silence(bell: Fd) -> bool {
    let mut rings = [0u8; 64];
    let mut rang = false;
    for _ in 0..SIZE / rings.len() {
        match file::read(bell, rings.as_mut_ptr(), rings.len()) {
            Ok(n) if n == rings.len() => rang = true,
            Ok(n) => return rang || n > 0,
            Err(_) => return rang,
        }
    }
    rang
}

/// Where a pipe is opened anew.
type Path = smallvec::SmallVec<[u8; NAME]>;

/// # Errors
/// EBADF if it is a named pipe, whose file system would be asked.
fn name_of(pipe: Fd) -> Result<Path> {
    let mut path = Path::new();
    let _ = write!(Text(&mut path), "/proc/self/fd/{pipe}\0");
    let mut name = [0u8; NAME];
    let n = call!(
        readlinkat,
        libc::AT_FDCWD,
        path.as_ptr() as usize,
        name.as_mut_ptr() as usize,
        name.len()
    )?;
    name[..n].starts_with(b"pipe:[").then_some(path).ok_or(Errno(libc::EBADF))
}

/// A description of this process's own.
fn open_anew(path: &Path) -> Result<Fd> {
    let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC;
    call!(openat, libc::AT_FDCWD, path.as_ptr() as usize, flags, 0).map(|fd| fd as Fd)
}

struct Text<'a>(&'a mut Path);

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::poll;

    fn bell() -> (Fd, Fd) {
        let (own, passed) = make().unwrap();
        let others = adopt(passed).unwrap();
        file::close(passed);
        (own, others)
    }

    /// A server that gave up root is offered sessions by what root started.
    #[test]
    fn another_user_may_adopt_one() {
        let (own, passed) = make().unwrap();
        assert_eq!(file::stat(passed).map(|status| status.st_mode & 0o777), Ok(0o666));
        file::close(own);
        file::close(passed);
    }

    /// Root could open it, and who passed one end of it could not.
    #[test]
    fn a_pipe_that_its_maker_keeps_to_himself_is_none() {
        let (read_end, write_end) = pipe::pipe().unwrap();
        for end in [read_end, write_end] {
            assert_eq!(adopt(end), Err(Errno(libc::EACCES)));
        }
        file::set_mode(read_end, MODE).unwrap();
        let opened = adopt(write_end).unwrap();
        [read_end, write_end, opened].into_iter().for_each(file::close);
    }

    #[test]
    fn a_ring_is_heard_and_taken_off() {
        let (own, others) = bell();
        assert!(!silence(others));
        ring(own);
        assert_eq!(poll::poll_one(others, libc::POLLIN), Ok(libc::POLLIN));
        assert!(silence(others) && !silence(others));
        [own, others].into_iter().for_each(file::close);
    }

    #[test]
    fn each_ring_is_an_edge_though_none_is_taken_off() {
        let (own, others) = bell();
        let set = poll::epoll_create().unwrap();
        let edge = (libc::EPOLLIN | libc::EPOLLET) as u32;
        poll::epoll_ctl(set, libc::EPOLL_CTL_ADD, others, edge, 0).unwrap();
        // More than the pipe holds.
        for _ in 0..3 * SIZE {
            ring(own);
            let mut event = [libc::epoll_event { events: 0, u64: 0 }];
            assert_eq!(poll::epoll_wait(set, &mut event, Some(0), None), Ok(1));
            assert_eq!(poll::epoll_wait(set, &mut event, Some(0), None), Ok(0));
        }
        [own, others, set].into_iter().for_each(file::close);
    }

    #[test]
    fn what_the_other_end_does_to_its_descriptor_does_not_block_a_ring() {
        let (own, passed) = make().unwrap();
        file::set_status_flags(passed, 0).unwrap();
        for _ in 0..2 * SIZE {
            ring(own);
        }
        // Nor does it raise SIGPIPE once the other end is gone.
        file::close(passed);
        ring(own);
        file::close(own);
    }

    #[test]
    fn nothing_but_a_pipe_is_a_bell() {
        let event = file::eventfd(0).unwrap();
        assert!(adopt(event).is_err() && adopt(-1).is_err());
        file::close(event);
    }
}
