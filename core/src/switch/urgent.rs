//! Urgent data (S8): the byte itself travels on the anchor, where the kernel raises SIGURG and
//! EPOLLPRI as always; the stream carries the mark.

use super::bell;
use super::buffers::Buffers;
use super::detach;
use super::endpoint::flag;
use super::socket::Socket;
use super::stream::{Stream, Take};
use super::transfer;
use super::wait::Limit;
use super::Outcome;
use crate::sys::{net, Errno};

/// send with MSG_OOB: the last byte is urgent, the others go before it.
pub(super) fn send(socket: &Socket, stream: &Stream, from: Buffers, flags: i32) -> Outcome {
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
    {
        let limit = Limit::default();
        let lock = || transfer::lock(socket, stream, flags, length > 1, &limit);
        let mut held = lock();
        if held.is_ok() && detach::is_half_left(stream) {
            drop(held);
            detach::look_after(socket, stream);
            held = lock();
        }
        let _held = match held {
            Ok(held) => held,
            Err(_) if length > 1 => return Outcome::Done(Ok(length - 1)),
            Err(e) => return Outcome::Done(Err(e)),
        };
        if let Some(e) = transfer::unable(stream) {
            return Outcome::Done(Err(e));
        }
        if !stream.endpoint.has(flag::LEFT) {
            stream.mark_urgent();
        }
    }
    let sent = net::send(socket.anchor(), &[last], libc::MSG_OOB).map(|_| length);
    if stream.signal_read() {
        bell::ring(socket);
    }
    Outcome::Done(sent)
}

/// The urgent byte in its place in the stream (SO_OOBINLINE): delivers it if it is the next byte.
/// `None` if it is not, or has not arrived yet.
#[inline]
pub(super) fn receive_inline(
    socket: &Socket,
    stream: &Stream,
    to: &mut Buffers,
    take: Take,
) -> Option<Result<(), Errno>> {
    if !stream.endpoint.has(flag::URGENT_INLINE) || !stream.at_mark() || to.remaining() == 0 {
        return None;
    }
    receive_at_mark(socket, stream, to, take)
}

#[cold]
fn receive_at_mark(
    socket: &Socket,
    stream: &Stream,
    to: &mut Buffers,
    take: Take,
) -> Option<Result<(), Errno>> {
    let mut byte = [0u8];
    let peek = if take == Take::Peek { libc::MSG_PEEK } else { 0 };
    net::recv(socket.anchor(), &mut byte, libc::MSG_OOB | peek).ok().filter(|n| *n == 1)?;
    if take != Take::Peek {
        stream.pass_mark();
    }
    if take == Take::Discard {
        to.skip(1);
        return Some(Ok(()));
    }
    // SAFETY: one byte is there, and there is room for one.
    Some(unsafe { to.copy_in(byte.as_ptr(), 1) })
}
