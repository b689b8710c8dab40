//! Ringing the peer's doorbell, and taking our own off before a thread sleeps, with all that is to be done besides.

use crate::reason::Reason;
use crate::switch::anchor::doorbell;
use crate::switch::anchor::ends;
use crate::switch::anchor::switchover;
use crate::switch::back_to_tcp::detach;
use crate::switch::endpoint::flag;
use crate::switch::socket::Socket;
use crate::switch::stream::{Hold, Stream};
use crate::switch::waiting::link_sleep;
use crate::sys::lock::Acquired;
use crate::sys::Errno;
use std::sync::atomic::Ordering::Relaxed;

/// Rings the peer's doorbell, unless another thread did since that was due.
pub(in crate::switch) fn ring(socket: &Socket) {
    let Some(stream) = socket.stream() else { return };
    if let Some(link) = stream.fabric {
        return stream.ring_by(|| link.ring());
    }
    let e = stream.endpoint;
    if !switchover::try_turn(&stream) {
        // It is owed: nothing but the stream's bytes may go over TCP yet.
        return;
    }
    let _hold = Hold::of(&stream);
    let held = e.doorbell_lock.lock();
    if held == Ok(Acquired::FromTheDead) {
        doorbell::recount_sent(&stream, socket.anchor());
    }
    let (mut listens, mut failed) = (true, None);
    if stream.owes_doorbell() || e.has(flag::ANCHOR_ENDED) {
        stream.ring_by(|| (listens, failed) = doorbell::send_doorbell(socket, &stream, 0, 0));
        if held.is_ok() {
            stream.own().sending.0.doorbells.rung();
        }
    }
    if held.is_ok() {
        e.doorbell_lock.unlock();
    }
    if let Some(Errno(error)) = failed.filter(|_| !e.has(flag::SEND_SHUT)) {
        // The kernel tells each error once, and whoever waits for space would never learn of it.
        ends::note_error(socket, &stream, error);
    }
    if !listens {
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
        stream.endpoint.holders.load(Relaxed) > 1 && (stream.owes_doorbell() || stream.is_locked())
    })
}

/// Takes over from threads that died with a lock, and rings for what any that died had published, or made
/// room for. No lock is held.
#[cold]
pub(in crate::switch) fn recover(socket: &Socket, stream: &Stream) {
    stream.succeed_the_dead();
    if stream.owes_doorbell() {
        ring(socket);
    }
}

/// Takes the doorbell bytes off the anchor. Only for who found the stream empty and is about to
/// raise a counter. Waits until threads that the byte was to wake are awake; not once `ready`.
pub(in crate::switch) fn drain(socket: &Socket, stream: &Stream, ready: impl FnMut() -> bool) {
    drain_within(socket, stream, doorbell::SLEEPERS_TIMEOUT, ready);
}

/// As [`drain`], before our end is closed: nobody who still sleeps here is waited for long.
pub(in crate::switch) fn drain_at_end(socket: &Socket, stream: &Stream) {
    drain_within(socket, stream, doorbell::SLEEPERS_TIMEOUT_AT_END, || false);
}

fn drain_within(socket: &Socket, stream: &Stream, timeout: u64, ready: impl FnMut() -> bool) {
    stream.shrink_if_idle();
    if let Some(link) = stream.fabric {
        return link_sleep::drain(socket, stream, link, timeout, ready);
    }
    let drained = doorbell::take_off_within(socket, stream, socket.anchor(), timeout, ready);
    if drained > 0 && is_better_off_on_tcp(socket, stream, drained) {
        detach::advance(socket, stream, Reason::Quiet);
    }
    detach::look_after(socket, stream);
}

/// True if most of what came lately had to wake somebody.
fn is_better_off_on_tcp(socket: &Socket, stream: &Stream, drained: u64) -> bool {
    let e = stream.endpoint;
    let messages = e.session.last_received();
    socket.traffic.count_doorbells(drained as u32, messages, e.receive.total()) && !e.is_shared()
}
