//! The note that a connection has ended, whichever thread finds that out.

use crate::registry;
use crate::switch::endpoint::flag;
use crate::switch::socket::Socket;
use crate::switch::stream::Stream;
use std::sync::atomic::Ordering::Relaxed;

/// Flags under which the kernel shows the anchor's end for ever.
pub(in crate::switch) const SHOWS_END: u32 = flag::ANCHOR_ENDED | flag::RECEIVE_SHUT;

/// The connection failed with this error.
pub(in crate::switch) fn lose_rest(socket: &Socket, stream: &Stream, error: i32) {
    stream.endpoint.error.store(error as u32, Relaxed);
    stream.endpoint.set(flag::RESET | flag::ANCHOR_ENDED);
    registry::set_state(socket.statistics(), registry::State::Failed);
}

/// What TCP makes of a send to a peer that is gone.
pub(in crate::switch) fn break_pipe(stream: &Stream) {
    stream.endpoint.error.store(libc::EPIPE as u32, Relaxed);
    stream.endpoint.set(flag::ANCHOR_ENDED | flag::BROKEN_PIPE);
}
