//! Rings the peer's bell, also in place of threads that died before they rang.

use crate::switch::back_to_tcp::detach;
use crate::switch::socket::Socket;
use crate::switch::stream::Stream;
use std::sync::atomic::Ordering::Relaxed;

/// Rings the peer's bell, unless another thread has rung since the ring was due.
pub(in crate::switch) fn ring(socket: &Socket) {
    let Some(stream) = socket.stream() else { return };
    if !stream.carrier().ring(&stream) {
        detach::look_after(socket, &stream);
    }
}

/// Completes what relatives left undone when they were killed inside a call, and what threads left undone when they
/// were thrown out of one. A thread calls this before it sleeps on the connection, and where its call moved nothing.
#[inline]
pub(in crate::switch) fn recover_if_needed(socket: &Socket, stream: &Stream) {
    let e = stream.endpoint;
    if e.holders.load(Relaxed) > 1 || e.thrown_out.load(Relaxed) != 0 {
        e.thrown_out.store(0, Relaxed);
        recover(socket, stream);
    }
}

/// True if [`recover_if_needed`] may find something, now or later.
pub(in crate::switch) fn may_need_recovery(socket: &Socket) -> bool {
    socket.stream().is_some_and(|stream| {
        stream.endpoint.holders.load(Relaxed) > 1 && (stream.owes_ring() || stream.is_locked())
    })
}

/// Takes over from threads that died with a lock. Rings for what dead threads had published, or made room for. The
/// caller holds no lock.
#[cold]
pub(in crate::switch) fn recover(socket: &Socket, stream: &Stream) {
    stream.succeed_the_dead();
    if stream.owes_ring() {
        ring(socket);
    }
}
