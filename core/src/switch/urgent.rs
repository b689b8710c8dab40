//! Urgent data (S8): the byte itself travels on the anchor, where the kernel raises SIGURG and
//! EPOLLPRI as always; the stream carries the mark.

use super::buffers::Buffers;
use super::socket::Socket;
use super::stream::Stream;
use super::transfer;
use super::Outcome;
use crate::sys::{net, Errno};

/// send with MSG_OOB: the last byte is urgent, the others go before it.
pub fn send(socket: &Socket, stream: &Stream, from: Buffers, flags: i32) -> Outcome {
    let length = from.remaining();
    let mut last = 0u8;
    let mut rest = from.clone();
    rest.skip(length - 1);
    // SAFETY: one byte remains, and there is room for one.
    if let Err(e) = unsafe { rest.copy_out(&mut last, 1) } {
        return Outcome::Done(Err(e));
    }
    let mut before = from;
    before.truncate(length - 1);
    if length > 1 {
        match transfer::send(socket, before, flags & !libc::MSG_OOB) {
            Outcome::Done(Ok(sent)) if sent == length - 1 => {}
            other => return other,
        }
    }
    if stream.endpoint.send.lock.lock().is_err() {
        return Outcome::Done(Err(Errno(libc::EAGAIN)));
    }
    let unable = transfer::unable(stream);
    if unable.is_none() {
        stream.mark_urgent();
    }
    stream.endpoint.send.lock.unlock();
    if let Some(e) = unable {
        return Outcome::Done(Err(e));
    }
    Outcome::Done(net::send(socket.anchor(), &[last], libc::MSG_OOB).map(|_| length))
}
