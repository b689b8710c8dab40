//! Urgent data (S8): the stream carries the mark and the byte. The byte goes over the anchor as well, where the
//! kernel raises SIGURG and wakes who waits, as always.

use super::bell;
use super::buffers::Buffers;
use super::detach;
use super::endpoint::flag;
use super::socket::Socket;
use super::stream::{Stream, Take};
use super::transfer;
use super::wait::Limit;
use super::Outcome;
use crate::reason::Reason;
use crate::sys::{net, poll, process, time, Errno};

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
        let _held = loop {
            let held = match transfer::lock(socket, stream, flags, length > 1, &limit) {
                Ok(held) => held,
                Err(_) if length > 1 => return Outcome::Done(Ok(length - 1)),
                Err(e) => return Outcome::Done(Err(e)),
            };
            if detach::pin(stream) {
                break held;
            }
            // Either end goes back to TCP: what was sent before goes before it there.
            drop(held);
            if !detach::advance(socket, stream, Reason::PeerReturned) {
                process::yield_now();
            }
        };
        if let Some(e) = transfer::unable(stream) {
            return Outcome::Done(Err(e));
        }
        if !stream.endpoint.has(flag::LEFT) {
            stream.mark_urgent(last);
        }
    }
    let sent = match net::send(socket.anchor(), &[last], libc::MSG_OOB) {
        // The peer has it, and what lies before it there wakes who waits.
        Err(Errno(libc::EAGAIN)) if !stream.endpoint.has(flag::LEFT) => Ok(length),
        sent => sent.map(|_| length),
    };
    if stream.signal_read() {
        bell::ring(socket);
    }
    Outcome::Done(sent)
}

/// recv with MSG_OOB. `Pass`: the kernel knows of it.
pub(super) fn receive(socket: &Socket, stream: &Stream, mut to: Buffers, flags: i32) -> Outcome {
    if socket.is_pending() || detach::is_kernels(stream) {
        return Outcome::Pass;
    }
    if stream.endpoint.has(flag::URGENT_INLINE) {
        return Outcome::Done(Err(Errno(libc::EINVAL)));
    }
    let keep = flags & libc::MSG_PEEK != 0;
    let Some(byte) = stream.read_urgent(keep).or_else(|| await_mark(socket, stream, keep)) else {
        return Outcome::Done(Err(Errno(libc::EINVAL)));
    };
    if to.remaining() == 0 {
        return Outcome::Done(Ok(0));
    }
    if flags & libc::MSG_TRUNC != 0 {
        return Outcome::Done(Ok(1));
    }
    // SAFETY: one byte is there, and there is room for one.
    Outcome::Done(unsafe { to.copy_in(&byte, 1) }.map(|()| 1))
}

/// How long (ns) a mark may come after the signal: between hosts they go different ways.
const LATE: u64 = 100_000_000;

#[cold]
fn await_mark(socket: &Socket, stream: &Stream, keep: bool) -> Option<u8> {
    stream.fabric?;
    let end = time::now() + LATE;
    while poll::poll_one(socket.anchor(), libc::POLLPRI) == Ok(libc::POLLPRI) && time::now() < end {
        stream.poll();
        if let Some(byte) = stream.read_urgent(keep) {
            return Some(byte);
        }
        process::yield_now();
    }
    None
}

/// The urgent byte in its place in the stream (SO_OOBINLINE): delivers it if it is the next byte.
/// `None` if it is not.
#[inline]
pub(super) fn receive_inline(
    stream: &Stream,
    to: &mut Buffers,
    take: Take,
) -> Option<Result<(), Errno>> {
    if !stream.endpoint.has(flag::URGENT_INLINE) || to.remaining() == 0 {
        return None;
    }
    let byte = stream.at_mark()?;
    if take != Take::Peek {
        stream.pass_mark();
    }
    if take == Take::Discard {
        to.skip(1);
        return Some(Ok(()));
    }
    // SAFETY: one byte is there, and there is room for one.
    Some(unsafe { to.copy_in(&byte, 1) })
}
