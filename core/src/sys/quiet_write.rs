//! Writes for the log, to files that others have as well. They do not wait, and raise no signal. The library leaves out
//! a write that would do either.

use super::process::SignalsHeld;
use super::{call, poll, Errno, Fd, Result};

/// What a write may raise for its thread. SIGTTOU is not raised where it is held back.
const RAISED: [i32; 2] = [libc::SIGPIPE, libc::SIGXFSZ];

/// What a pipe takes as a whole or not at all.
pub(crate) const WHOLE: usize = libc::PIPE_BUF;

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Writes to a file that does not make its writers wait: a regular one, or one that was opened with O_NONBLOCK.
///
/// # Errors
/// The kernel's. EAGAIN, too, if a signal is held back already that could not be told from one of the write.
#[link_section = ".text.unlikely.sanshim_log"]
pub(crate) fn to_file(fd: Fd, bytes: &[u8]) -> Result<usize> {
    silently(bytes.len(), || super::file::write(fd, bytes.as_ptr(), bytes.len()))
}

/// Writes to a pipe, a terminal or another device, which other processes may have opened so that writers wait.
///
/// # Errors
/// As of [`to_file`]. EAGAIN, too, if there is no room.
#[link_section = ".text.unlikely.sanshim_log"]
pub(crate) fn to_stream(fd: Fd, bytes: &[u8]) -> Result<usize> {
    // A pipe that has any room takes as much as it takes as a whole.
    if poll::poll_one(fd, libc::POLLOUT)? != libc::POLLOUT {
        return Err(Errno(libc::EAGAIN));
    }
    silently(bytes.len(), || super::pipe::write_now(fd, bytes.as_ptr(), bytes.len()))
}

/// Sends over a socket.
///
/// # Errors
/// As of [`to_stream`].
#[link_section = ".text.unlikely.sanshim_log"]
pub(crate) fn to_socket(fd: Fd, bytes: &[u8]) -> Result<usize> {
    super::net::send(fd, bytes, libc::MSG_DONTWAIT)
}

/// Runs a write of so many bytes. The signal that it raises is for this thread, and taken back before it comes.
fn silently(length: usize, write: impl FnOnce() -> Result<usize>) -> Result<usize> {
    // A handler must not leave in between.
    let _held = SignalsHeld::new();
    if pending() & RAISED.iter().fold(0, |all, signal| all | bit(*signal)) != 0 {
        return Err(Errno(libc::EAGAIN));
    }
    let written = write();
    if written != Ok(length) {
        // Those for the thread come before those for the process.
        for signal in RAISED.into_iter().filter(|signal| pending() & bit(*signal) != 0) {
            take(signal);
        }
    }
    written
}

/// The signals that are held back from this thread, or from its process.
fn pending() -> u64 {
    let mut pending = 0u64;
    match call!(rt_sigpending, &raw mut pending as usize, size_of::<u64>()) {
        Ok(_) => pending,
        Err(_) => u64::MAX,
    }
}

fn take(signal: i32) {
    let (set, now) = (bit(signal), libc::timespec { tv_sec: 0, tv_nsec: 0 });
    let (set, now) = (&raw const set as usize, &raw const now as usize);
    let _ = call!(rt_sigtimedwait, set, 0, now, size_of::<u64>());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::file;
    use crate::sys::pipe::pipe;

    #[test]
    fn a_pipe_without_a_reader_raises_no_signal() {
        // The test harness ignores SIGPIPE, and what is held back is not lost by that.
        let (read, write) = pipe().unwrap();
        assert_eq!(to_stream(write, b"seen"), Ok(4));
        file::close(read);
        let _held = SignalsHeld::new();
        assert_eq!(to_stream(write, b"unseen"), Err(Errno(libc::EAGAIN)));
        assert_eq!(to_file(write, b"unseen"), Err(Errno(libc::EPIPE)));
        assert_eq!(pending() & bit(libc::SIGPIPE), 0);
        // One that is pending before is the program's.
        crate::sys::process::raise_sigpipe();
        assert_eq!(to_file(write, b"unseen"), Err(Errno(libc::EAGAIN)));
        assert_ne!(pending() & bit(libc::SIGPIPE), 0);
        take(libc::SIGPIPE);
        file::close(write);
    }

    #[test]
    fn a_full_pipe_makes_nobody_wait() {
        let (read, write) = pipe().unwrap();
        let line = [b'x'; WHOLE];
        let taken = (0..).take_while(|_| to_stream(write, &line).is_ok()).count();
        assert!(taken > 0);
        assert_eq!(to_stream(write, b"more"), Err(Errno(libc::EAGAIN)));
        [read, write].into_iter().for_each(file::close);
    }
}
