//! Waits for an event of one connection: spins while that pays, then sleeps in the kernel.
//!
//! The peer rings the [`bell`] when it finds this end's select counter raised. These rules keep every sleeper's
//! wake-up:
//!
//! - Only a thread that found the stream empty and is about to raise the counter takes a ring off. Until then the
//!   kernel shows the bell readable to every other sleeper.
//! - That thread first lets the others that sleep on the bell leave.
//! - The epoll sets that watch the socket look at the socket themselves afterwards.

use super::armed::fall_asleep;
use super::sleep;
use crate::fabric::{self, Sleeper};
use crate::session::WayOut;
use crate::switch::anchor::behind;
use crate::switch::anchor::bell;
use crate::switch::anchor::ends;
use crate::switch::anchor::returning;
use crate::switch::anchor::user_timeout;
use crate::switch::back_to_tcp;
use crate::switch::endpoint::flag;
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::counters::CountedEvent;
use crate::switch::stream::Stream;
use crate::switch::waiting::ring;
use crate::sys::process::NapSignals;
use crate::sys::{handlers, time, Errno, Result};

pub(in crate::switch) use super::how::{Limit, Wait, Woken};
pub(in crate::switch) use super::look::{
    is_older, look_if_stale, note_blocking_mode, ALIVE_TICKS, FRESH_TICKS,
};

/// How long (ns) a thread that waits for room sleeps at a time. Another thread may have taken its ring off.
pub(in crate::switch) const NAP_OF_WRITER: u64 = 1_000_000_000;
/// How often (ns) a thread looks for the peer's end where this end has shut its receiving direction down. The anchor
/// does not report that end any more.
pub(in crate::switch) const NAP_WITHOUT_END: u64 = 1_000_000;

/// The same time after so many looks that found nothing. It doubles with each of the first five, to 32 ms.
pub(in crate::switch) fn nap_without_end(looks: u32) -> u64 {
    NAP_WITHOUT_END << looks.min(5)
}

/// Waits until the event may have come: spins while that pays, then sleeps. `ready` tells whether it has. EAGAIN: the
/// socket is non-blocking, or the call's time ran out. EINTR: as the kernel gives it.
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
    if socket.spin(stream, how.nap.unwrap_or(u64::MAX), &mut ready) {
        return Ok(Woken::Perhaps);
    }
    if !in_transfer {
        // This may take the structure lock, which comes before the send lock.
        back_to_tcp::look_around();
    }
    hold_for_fabric(&how.limit.signals);
    before_sleep(socket, stream, &mut ready);
    let asleep = fall_asleep(stream, event);
    let has_left = || event == CountedEvent::Write && stream.endpoint.way_out() == WayOut::Left;
    if ready() || has_left() || socket.phase() != phase::SAN {
        return Ok(Woken::Perhaps);
    }
    ring::recover_if_needed(socket, stream);
    if socket.phase() != phase::SAN || has_left() {
        return Ok(Woken::Perhaps);
    }
    let slept = fall_silent(socket, stream, how, asleep.armed.on_link);
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
        Err(Errno(e)) if ends::is_local(e) => time::sleep(NAP_WITHOUT_END),
        Err(Errno(e)) => ends::note_error(socket, stream, e),
    }
    Ok(Woken::Perhaps)
}

/// Called before a thread makes sure that it may sleep. A fabric has it look for longer then, and wakes it for more than
/// what it waits for. So where there may be a fabric, this holds signals back.
#[inline]
pub(in crate::switch) fn hold_for_fabric(signals: &NapSignals) {
    if fabric::may_exist() && handlers::are_set() {
        signals.hold();
    }
}

/// Takes earlier rings off, and does what else a thread does that is about to sleep.
pub(in crate::switch) fn before_sleep(
    socket: &Socket,
    stream: &Stream,
    ready: impl FnMut() -> bool,
) {
    stream.shrink_if_idle();
    if stream.is_between_hosts() {
        look_if_stale(socket, stream, time::ticks());
    }
    bell::take_off(socket, stream, ready);
    back_to_tcp::detach::look_after(socket, stream);
}

/// Sleeps in the kernel, where the ring comes. The caller has raised the counter.
fn fall_silent(
    socket: &Socket,
    stream: &Stream,
    how: &Wait,
    sleeper: Option<Sleeper>,
) -> Result<Woken> {
    let limit = how.limit.left(socket, how.event);
    sleep::sleep(socket, stream, sleeper, how, [limit, longest_nap(stream, how)])
}

/// How long (ns) to sleep at a time; `None`: until something wakes the thread.
fn longest_nap(stream: &Stream, how: &Wait) -> Option<u64> {
    if how.is_in_transfer() {
        return how.nap;
    }
    let nap = returning::longest_nap(stream)
        .or_else(|| behind::longest_nap(stream))
        .or((how.event == CountedEvent::Write).then_some(NAP_OF_WRITER));
    [nap, user_timeout::left(stream)].into_iter().flatten().min()
}
