//! TCP_USER_TIMEOUT. TCP ends a connection with ETIMEDOUT when bytes wait for so long that the peer's kernel has no
//! room for. On the SAN bytes wait in the send buffer. The time runs from the moment when it has no room until the peer
//! reads something. Each thread that looks at the connection, or sleeps on it, looks at the clock. The kernel times
//! bytes that go over TCP.

use super::broken;
use super::link;
use super::returning;
use super::watchers;
use crate::session::WayOut;
use crate::switch::endpoint::flag;
use crate::switch::socket::Socket;
use crate::switch::stream::Stream;
use crate::sys::{net, time};
use std::sync::atomic::Ordering::Relaxed;

/// The program set the option, to so many milliseconds. Zero: TCP's own time, which a peer of this host never reaches.
pub(in crate::switch) fn set(stream: &Stream, milliseconds: i32) {
    stream.endpoint.timing.limit.store(milliseconds.max(0) as u32, Relaxed);
    if milliseconds > 0 {
        stream.endpoint.set(flag::TIMED);
    } else {
        stream.endpoint.clear(flag::TIMED);
    }
}

/// How long (ns) until the time is over, which begins to run if it did not; `None`: it does not run.
#[inline]
pub(in crate::switch) fn left(stream: &Stream) -> Option<u64> {
    if stream.endpoint.has(flag::TIMED) {
        count(stream)
    } else {
        None
    }
}

#[cold]
fn count(stream: &Stream) -> Option<u64> {
    let (timing, state) = (&stream.endpoint.timing, stream.endpoint.state());
    let is_on_san = state.way_out() == WayOut::San && !returning::is_recalled(stream);
    if !is_on_san || state.has(returning::OVER) {
        return None;
    }
    let read = stream.peer().receiving.0.total.load(Relaxed);
    let goes_on = timing.read.swap(read, Relaxed) == read;
    let mut since = timing.since.load(Relaxed);
    let now = time::now();
    // Room that comes because the send buffer grows is none of the peer's doing.
    if !goes_on || since == 0 {
        let has_space = stream.has_space() || link::poll_for_space(stream);
        since = if has_space { 0 } else { now };
        timing.since.store(since, Relaxed);
    }
    if since == 0 {
        return None;
    }
    let limit = u64::from(timing.limit.load(Relaxed)) * 1_000_000;
    Some((since + limit).saturating_sub(now))
}

/// After a send, which may have taken the last room. No lock is held.
#[inline]
pub(in crate::switch) fn after_send(socket: &Socket, stream: &Stream) {
    if stream.endpoint.has(flag::TIMED) {
        begin(socket, stream);
    }
}

/// Has the sets that watch it, which may not look at it while it is idle, wake in time.
#[cold]
fn begin(socket: &Socket, stream: &Stream) {
    let runs = stream.endpoint.timing.since.load(Relaxed) != 0;
    if count(stream).is_some() && !runs {
        watchers::look_again(socket);
    }
}

/// Ends the connection if the time is over.
#[inline]
pub(super) fn look(socket: &Socket, stream: &Stream) {
    if left(stream) == Some(0) {
        end(socket, stream);
    }
}

#[cold]
fn end(socket: &Socket, stream: &Stream) {
    log::info!("fd {}: connection ended by TCP_USER_TIMEOUT", socket.anchor());
    broken::lose_rest(socket, stream, libc::ETIMEDOUT);
    if net::unread(stream.anchor) == Some(0) {
        // The peer must not take the end for that of the stream.
        net::reset(stream.anchor);
    } else {
        // A reset now would take what is unread here.
        let _ = net::reset_at_close(stream.anchor);
        stream.wake_own();
    }
}
