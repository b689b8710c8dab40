//! Serves sendfile and splice with a SAN socket at one end.

use crate::switch::anchor::ready;
use crate::switch::buffers::Buffers;
use crate::switch::outcome::Outcome;
use crate::switch::setup;
use crate::switch::socket::lane::Lane;
use crate::switch::socket::Socket;
use crate::switch::transfer::receive;
use crate::switch::transfer::send;
use crate::sys::scratch::Scratch;
use crate::sys::{actions, blocking, file, net, pipe as pipes, time, Errno, Fd};
use libc::iovec;

/// How long (ns) bytes that this end looked at and then recalled may take to come over TCP. The caller naps meanwhile.
const COMES_AGAIN: u64 = 1_000_000_000;
const NAP: u64 = 50_000;

/// Sends from a file to a SAN socket (sendfile). If the program gives an offset, the file's own offset stays where it
/// is.
pub fn send_file(socket: &Socket, from: Fd, offset: Option<&mut i64>, count: usize) -> Outcome {
    if setup::advance(socket, count) == Lane::Tcp {
        return Outcome::Pass;
    }
    let mut at = offset.as_deref().copied();
    // The call refuses a bad descriptor, a socket or a pipe before it sends anything.
    if let Err(e) = file::check_open(from) {
        return Outcome::Done(Err(e));
    }
    if at.is_none() && file::seek(from, 0, libc::SEEK_CUR).is_err() {
        return Outcome::Done(Err(Errno(libc::EINVAL)));
    }
    if count == 0 {
        return Outcome::Done(Ok(0));
    }
    let result = send::send_from(socket, count, 0, |to| {
        let Some(at) = &mut at else { return file::read(from, to.at(), to.length()) };
        let read = file::pread(from, to.at(), to.length(), *at)?;
        *at += read as i64;
        Ok(read)
    });
    if let (Some(offset), Some(at)) = (offset, at) {
        *offset = at;
    }
    result
}

/// Waits until a pipe can be read or written. Gives EAGAIN at once for `SPLICE_F_NONBLOCK`, or if the pipe is
/// non-blocking.
fn await_pipe(pipe: Fd, events: i16, flags: u32) -> Result<(), Errno> {
    let is_at_once = flags & libc::SPLICE_F_NONBLOCK != 0 || file::is_nonblocking(pipe);
    let timeout = if is_at_once { Some(0) } else { None };
    let mut fds = [libc::pollfd { fd: pipe, events, revents: 0 }];
    match blocking::wait_for(&mut fds, timeout, None)? {
        0 => Err(Errno(libc::EAGAIN)),
        _ => Ok(()),
    }
}

/// Moves bytes from a pipe into a SAN socket (splice).
pub fn splice_in(socket: &Socket, pipe: Fd, count: usize, flags: u32) -> Outcome {
    if setup::advance(socket, count) == Lane::Tcp {
        return Outcome::Pass;
    }
    if count == 0 {
        return Outcome::Done(Ok(0));
    }
    // This waits for the pipe before the call takes the send lock.
    if let Err(e) = await_pipe(pipe, libc::POLLIN, flags) {
        return Outcome::Done(Err(e));
    }
    let mut first = true;
    // The socket alone decides whether the call waits for room.
    send::send_from(socket, count, 0, |to| {
        // The call reads once: a pipe gives what it has, and then splice returns.
        if !std::mem::replace(&mut first, false) {
            return Ok(0);
        }
        pipes::read_now(pipe, to.at(), to.length())
    })
}

/// Moves bytes from a SAN socket into a pipe (splice). Bytes that the pipe does not take stay in the stream.
pub fn splice_out(socket: &Socket, pipe: Fd, count: usize, flags: u32) -> Outcome {
    if setup::advance(socket, count) == Lane::Tcp {
        return Outcome::Pass;
    }
    if count == 0 {
        return Outcome::Done(Ok(0));
    }
    let mut scratch = match Scratch::take() {
        Ok(scratch) => scratch,
        Err(e) => return Outcome::Done(Err(e)),
    };
    let bytes = scratch.bytes();
    let most = bytes.len();
    // The socket alone decides whether the call waits for data: the kernel ignores SPLICE_F_NONBLOCK there.
    let first = splice_piece(socket, pipe, &mut bytes[..count.min(most)], 0, flags);
    let Outcome::Done(Ok(mut all)) = first else { return first };
    let mut was_whole = all == count.min(most);
    // A receive that finds no bytes would take an error off the connection. The program's next call has to learn of
    // that error.
    let has_data = || socket.stream().is_some_and(|stream| ready::available(&stream) > 0);
    // As in the kernel, further pieces are the bytes that are there and fit. The call waits for none.
    while was_whole && all < count && has_data() {
        let piece = &mut bytes[..(count - all).min(most)];
        let (receive, splice) = (libc::MSG_DONTWAIT, libc::SPLICE_F_NONBLOCK);
        let length = piece.len();
        let Outcome::Done(Ok(n)) = splice_piece(socket, pipe, piece, receive, splice) else {
            break;
        };
        all += n;
        was_whole = n == length;
    }
    Outcome::Done(Ok(all))
}

/// Moves as much as `bytes` has room for. `receive_flags` are for the receive, and `flags` for the write to the pipe.
fn splice_piece(
    socket: &Socket,
    pipe: Fd,
    bytes: &mut [u8],
    receive_flags: i32,
    flags: u32,
) -> Outcome {
    let one = [iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
    let Ok(buffers) = Buffers::new(&one) else { return Outcome::Pass };
    let peeked = match receive::receive(socket, buffers, libc::MSG_PEEK | receive_flags) {
        Outcome::Done(Ok(n)) if n > 0 => n,
        other => return other,
    };
    let written = loop {
        match pipes::write_now(pipe, bytes.as_ptr(), peeked) {
            Ok(written) => break actions::done(written),
            Err(Errno(libc::EAGAIN)) => {
                if let Err(e) = await_pipe(pipe, libc::POLLOUT, flags) {
                    return Outcome::Done(Err(e));
                }
            }
            Err(e) => return Outcome::Done(Err(e)),
        }
    };
    match consume(socket, &mut bytes[..written]) {
        Some(why) => Outcome::Done(Err(why)),
        None => Outcome::Done(Ok(written)),
    }
}

/// Takes off the stream as many bytes as `bytes` has: the call has looked at them. The connection may have gone back to
/// TCP meanwhile. Recalled bytes come there once more, in a moment. Gives the connection's error.
fn consume(socket: &Socket, bytes: &mut [u8]) -> Option<Errno> {
    let (start, mut taken) = (time::now(), 0);
    while taken < bytes.len() && time::now() - start < COMES_AGAIN {
        let rest = &mut bytes[taken..];
        let one = [iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() }];
        let buffers = Buffers::new(&one).ok()?;
        let received = match receive::receive(socket, buffers, libc::MSG_DONTWAIT) {
            Outcome::Done(received) => received,
            Outcome::Pass => net::discard(socket.anchor(), rest.len()),
        };
        match received {
            Ok(n @ 1..) => taken += n,
            Err(Errno(libc::EAGAIN)) => time::sleep(NAP),
            // The connection ended, and the bytes that the call looked at are lost with it.
            Ok(0) => return None,
            Err(why) => return Some(why),
        }
    }
    None
}
