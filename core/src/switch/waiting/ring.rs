//! Ringing the peer's bell, also for threads that died before they did.

use crate::switch::back_to_tcp::detach;
use crate::switch::socket::Socket;
use crate::switch::stream::Stream;
use std::sync::atomic::Ordering::Relaxed;

/// Rings the peer's bell, unless another thread did since that was due.
pub(in crate::switch) fn ring(socket: &Socket) {
    let Some(stream) = socket.stream() else { return };
    let mut goes_on = true;
    match stream.fabric {
        Some(link) => stream.ring_by(|| link.ring()),
        None if stream.owes_ring() => stream.ring_by(|| {
            let direction = &stream.own().sending.0.direction;
            // Before the ring: a receiver that recalls the direction knows that something came.
            goes_on = direction.ring() || !direction.state().is_final();
            socket.statistics().wakeups_sent.add(1);
            stream.segment.bells().ring();
        }),
        None => {}
    }
    if !goes_on {
        detach::look_after(socket, &stream);
    }
}

/// Before a thread sleeps on the connection, and where a call moved nothing: makes up for relatives that
/// were killed inside a call, and for threads that were thrown out of one.
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

/// Takes over from threads that died with a lock, and rings for what any that died had published, or made
/// room for. No lock is held.
#[cold]
pub(in crate::switch) fn recover(socket: &Socket, stream: &Stream) {
    stream.succeed_the_dead();
    if stream.owes_ring() {
        ring(socket);
    }
}
