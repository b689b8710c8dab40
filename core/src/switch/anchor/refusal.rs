//! Bytes that come after this end has shut both directions down. TCP gives none of them out, and answers with a reset. On the
//! SAN the [sender](super::ends::loses) finds that reset by itself, if it can, and this end is reset as well.

use super::broken;
use crate::switch::endpoint::flag;
use crate::switch::socket::Socket;
use crate::switch::stream::Stream;
use crate::sys::net;
use std::sync::atomic::Ordering::Relaxed;

/// Both directions are shut: what is here by now may still be read.
pub(in crate::switch) fn begin(stream: &Stream) {
    let Ok(_held) = stream.lock_receive() else { return };
    let (receive, here) = (&stream.endpoint.receive, stream.available().unwrap_or(0));
    let from = 1 + receive.total() + here;
    let _ = receive.refused_from.compare_exchange(0, from, Relaxed, Relaxed);
}

/// Bytes of the segment that may still be read; `None`: any. Receive lock.
pub(in crate::switch) fn allowed(stream: &Stream) -> Option<u64> {
    let receive = &stream.endpoint.receive;
    let from = receive.refused_from.load(Relaxed).checked_sub(1)?;
    Some(from.saturating_sub(receive.total()))
}

/// Resets the connection if more came than is [`allowed`], which it gives. Receive lock.
pub(in crate::switch) fn apply(socket: &Socket, stream: &Stream) -> Option<u64> {
    let allowed = allowed(stream)?;
    let is_more = stream.available().is_ok_and(|here| here > allowed);
    if is_more && !stream.endpoint.has(flag::RESET) {
        broken::lose_rest(socket, stream, libc::ECONNRESET);
        // The sender heard of both ends before TCP's end came, and so left the reset to this end.
        if stream.is_between_hosts() {
            net::reset(socket.anchor());
        }
    }
    Some(allowed)
}

/// [`apply`], unless another thread receives at this moment. That thread will do it.
pub(super) fn look(socket: &Socket, stream: &Stream) {
    if stream.endpoint.has(flag::RECEIVE_SHUT) {
        let held = stream.borrow(&stream.endpoint.receive.lock);
        held.map(|_held| apply(socket, stream));
    }
}
