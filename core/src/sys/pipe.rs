//! Pipes, among them the program's. The library reads and writes them without waiting whether or not they block.
//!
//! It asks a kernel from 6.5 on by RWF_NOWAIT. An older kernel knows that for no pipe, but its splice never waits if it
//! is told so: the bytes go by way of a pipe of our own.

use super::file::{close, read, write};
use super::{call, poll, Errno, Fd, Result};

/// A pipe, close-on-exec: (read end, write end).
pub fn pipe() -> Result<(Fd, Fd)> {
    pipe_with(libc::O_CLOEXEC)
}

fn pipe_with(flags: i32) -> Result<(Fd, Fd)> {
    let mut fds = [0; 2];
    call!(pipe2, fds.as_mut_ptr() as usize, flags)?;
    Ok((fds[0], fds[1]))
}

/// Reads from a pipe without waiting: EAGAIN if it is empty.
pub(crate) fn read_now(fd: Fd, to: *mut u8, length: usize) -> Result<usize> {
    let one = libc::iovec { iov_base: to.cast(), iov_len: length };
    let at = &one as *const _ as usize;
    match call!(preadv2, fd, at, 1, -1isize as usize, -1isize as usize, libc::RWF_NOWAIT) {
        Err(Errno(libc::EOPNOTSUPP | libc::ENOSYS)) => read_through_own(fd, to, length),
        other => other,
    }
}

/// Writes to a pipe without waiting: EAGAIN if it is full.
pub(crate) fn write_now(fd: Fd, from: *const u8, length: usize) -> Result<usize> {
    let one = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: length };
    let at = &one as *const _ as usize;
    match call!(pwritev2, fd, at, 1, -1isize as usize, -1isize as usize, libc::RWF_NOWAIT) {
        Err(Errno(libc::EOPNOTSUPP | libc::ENOSYS)) => write_through_own(fd, from, length),
        other => other,
    }
}

#[cold]
fn read_through_own(fd: Fd, to: *mut u8, length: usize) -> Result<usize> {
    if !super::file::is_pipe(fd) {
        return read(fd, to, length);
    }
    let Ok(own) = Own::new() else {
        // Without a descriptor to spare. It may wait if another reader is faster.
        await_now(fd, libc::POLLIN)?;
        return read(fd, to, length);
    };
    let moved = splice_now(fd, own.write_end, length)?;
    let mut got = 0;
    while got < moved {
        // All bytes that have left the program's pipe are there.
        match read(own.read_end, to.wrapping_add(got), moved - got) {
            Ok(n @ 1..) => got += n,
            Ok(_) => break,
            Err(e) if got == 0 => return Err(e),
            Err(_) => break,
        }
    }
    Ok(got)
}

#[cold]
fn write_through_own(fd: Fd, from: *const u8, length: usize) -> Result<usize> {
    if !super::file::is_pipe(fd) {
        return write(fd, from, length);
    }
    let Ok(own) = Own::new() else {
        // Without a descriptor to spare. A pipe with room takes so much at once. It may wait if another writer is faster.
        await_now(fd, libc::POLLOUT)?;
        return write(fd, from, length.min(libc::PIPE_BUF));
    };
    let filled = write(own.write_end, from, length)?;
    // Bytes that do not go on end with our pipe: the caller hears how many did.
    splice_now(own.read_end, fd, filled)
}

/// EAGAIN unless the pipe is ready.
fn await_now(fd: Fd, events: i16) -> Result<()> {
    match poll::poll_one(fd, events)? {
        0 => Err(Errno(libc::EAGAIN)),
        _ => Ok(()),
    }
}

/// Moves bytes from a pipe to another without waiting for either.
fn splice_now(from: Fd, to: Fd, length: usize) -> Result<usize> {
    call!(splice, from, 0, to, 0, length, libc::SPLICE_F_NONBLOCK)
}

/// A pipe of our own for a moment. It never waits.
struct Own {
    read_end: Fd,
    write_end: Fd,
}

impl Own {
    fn new() -> Result<Own> {
        let (read_end, write_end) = pipe_with(libc::O_CLOEXEC | libc::O_NONBLOCK)?;
        Ok(Own { read_end, write_end })
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        close(self.read_end);
        close(self.write_end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_that_blocks_is_read_and_written_without_waiting() {
        let (read_end, write_end) = pipe().unwrap();
        let mut got = [0u8; 100];
        assert_eq!(read_through_own(read_end, got.as_mut_ptr(), 100), Err(Errno(libc::EAGAIN)));
        let sent: Vec<u8> = (0..=255).cycle().take(70_000).collect();
        let mut written = 0;
        loop {
            let rest = &sent[written..];
            match write_through_own(write_end, rest.as_ptr(), rest.len().min(5000)) {
                Ok(n) => written += n,
                Err(e) => {
                    assert_eq!(e, Errno(libc::EAGAIN));
                    break;
                }
            }
        }
        let mut read = 0;
        while read < written {
            let n = read_through_own(read_end, got.as_mut_ptr(), 100).unwrap();
            assert_eq!(got[..n], sent[read..read + n]);
            read += n;
        }
        close(write_end);
        // A child of a test beside this one may have the end, too, for a moment.
        let mut end = || read_through_own(read_end, got.as_mut_ptr(), 100);
        while end() == Err(Errno(libc::EAGAIN)) {
            std::thread::yield_now();
        }
        assert_eq!(end(), Ok(0));
        close(read_end);
    }
}
