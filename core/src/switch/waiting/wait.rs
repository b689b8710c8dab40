//! Waiting for an event of one connection: spins while that pays, then sleeps in the kernel.
//!
//! The anchor is the doorbell: one byte arrives on it when the peer found our select counter
//! raised. Rules that keep every sleeper's wake-up:
//!
//! - A byte is drained only by who found the stream empty and is about to raise the counter.
//!   Until then the kernel shows the anchor readable to every other sleeper.
//! - Who drains while others sleep on the same anchor lets them leave first.
//! - A byte drained on behalf of an epoll set makes that set look at the socket itself.
//!
//! The byte itself is [`doorbell`](crate::switch::anchor::doorbell)'s.

use super::armed::fall_asleep;
use super::{anchor_sleep, link_sleep};
use crate::fabric::Sleeper;
use crate::switch::anchor::ends;
use crate::switch::anchor::ready;
use crate::switch::anchor::returning;
use crate::switch::back_to_tcp;
use crate::switch::endpoint::flag;
use crate::switch::socket::{phase, Socket};
use crate::switch::spin::spin;
use crate::switch::stream::counters::Event;
use crate::switch::stream::Stream;
use crate::switch::waiting::ring;
use crate::sys::{time, Errno, Result};

pub(in crate::switch) use super::how::{Limit, Wait, Woken};
pub(in crate::switch) use super::look::{is_stale, look_if_stale, note_blocking_mode};

/// How long (ns) a wait sleeps at a time whose call is not restarted after a signal.
const NAP_IN_PARTIAL_CALL: u64 = 1_000_000_000;
/// How long (ns) who waits for room sleeps at a time: of its doorbell, which others take off, it may not have heard.
pub(in crate::switch) const NAP_OF_WRITER: u64 = 1_000_000_000;
/// How often (ns) a writer looks that no doorbell can wake, because the peer's direction ended.
pub(in crate::switch) const NAP_WITHOUT_DOORBELL: u64 = 1_000_000;

/// Waits until the event may have come: spins while that pays, then sleeps. `ready` tells whether
/// it has. EAGAIN: the socket is non-blocking, or its time ran out; EINTR as the kernel has it.
pub(in crate::switch) fn wait(
    socket: &Socket,
    stream: &Stream,
    how: &Wait,
    mut ready: impl FnMut() -> bool,
) -> Result<Woken> {
    let (event, in_transfer) = (how.event, how.is_in_transfer());
    if !in_transfer && stream.endpoint.has(flag::NONBLOCK) {
        return Err(Errno(libc::EAGAIN));
    }
    if spin(&socket.spin, how.nap.unwrap_or(u64::MAX), &mut ready) {
        return Ok(Woken::Perhaps);
    }
    if !in_transfer {
        // It may take the structure lock, which comes before the send lock.
        back_to_tcp::look_around();
    }
    ring::drain(socket, stream, &mut ready);
    let asleep = fall_asleep(stream, event);
    let leaving = event == Event::Write && stream.endpoint.has(flag::LEFT);
    if ready() || leaving || socket.phase() != phase::SAN {
        return Ok(Woken::Perhaps);
    }
    ring::recover_if_needed(socket, stream);
    if socket.phase() != phase::SAN || (event == Event::Write && stream.endpoint.has(flag::LEFT)) {
        return Ok(Woken::Perhaps);
    }
    let slept = sleep(socket, stream, how, asleep.armed.on_link);
    drop(asleep);
    match slept {
        Ok(Woken::Ended) if !in_transfer => ends::look(socket, stream),
        Ok(woken) => return Ok(woken),
        Err(Errno(libc::EAGAIN)) => {
            note_blocking_mode(socket, stream);
            return Err(Errno(libc::EAGAIN));
        }
        Err(Errno(libc::EINTR)) => return Err(Errno(libc::EINTR)),
        // Another thread closed the descriptor.
        Err(Errno(e @ (libc::EBADF | libc::ENOTSOCK))) => return Err(Errno(e)),
        Err(Errno(e)) if ends::is_local(e) => time::sleep(NAP_WITHOUT_DOORBELL),
        Err(Errno(e)) => ends::note_error(socket, stream, e),
    }
    Ok(Woken::Perhaps)
}

/// Sleeps in the kernel, where the doorbell comes. The counter is raised.
fn sleep(socket: &Socket, stream: &Stream, how: &Wait, sleeper: Option<Sleeper>) -> Result<Woken> {
    let has_waited = how.limit.rest().is_some();
    let limit = how.limit.left(socket, how.event);
    let nap = longest_nap(stream, how, has_waited);
    match stream.fabric {
        Some(link) => link_sleep::sleep(socket, stream, link, sleeper, how, [limit, nap]),
        None => anchor_sleep::sleep(socket, stream, how, [limit, nap]),
    }
}

/// How long (ns) to sleep at a time; `None`: until the kernel's own recv returns. `has_waited`: a part of the call's time-out
/// is over.
fn longest_nap(stream: &Stream, how: &Wait, has_waited: bool) -> Option<u64> {
    if how.is_in_transfer() {
        return how.nap;
    }
    let is_never_rung = stream.endpoint.has(ends::ALWAYS_READABLE) && stream.fabric.is_none();
    let is_unrung = || how.event == Event::Write && ready::waits_unrung(stream);
    let waits_for_tcp = how.event == Event::Write && stream.endpoint.has(flag::SENDS_TCP);
    if is_never_rung || waits_for_tcp || is_unrung() {
        return Some(NAP_WITHOUT_DOORBELL);
    }
    if let Some(nap) = returning::longest_nap(stream) {
        return Some(nap);
    }
    if how.partial {
        return Some(NAP_IN_PARTIAL_CALL);
    }
    match how.event {
        // The kernel's own recv would begin anew with the time-out at each doorbell.
        Event::Read => has_waited.then_some(NAP_IN_PARTIAL_CALL),
        Event::Write => Some(NAP_OF_WRITER),
    }
}
