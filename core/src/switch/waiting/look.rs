//! Looks at the anchor by a thread that does not sleep. The thread asks the kernel again once the last answer is old.

use crate::switch::anchor::ends;
use crate::switch::anchor::watchers;
use crate::switch::back_to_tcp;
use crate::switch::endpoint::flag;
use crate::switch::socket::Socket;
use crate::switch::stream::Stream;
use crate::sys::file;
use std::sync::atomic::Ordering::Relaxed;

/// How long the kernel's answer about an anchor counts as fresh, in clock ticks; some 100 µs.
pub(in crate::switch) const FRESH_TICKS: u64 = 300_000;
/// If the last look is no longer ago than this (clock ticks, some 4 ms), a peer that did something since then counts as
/// alive.
pub(in crate::switch) const ALIVE_TICKS: u64 = 12_000_000;

/// True if the kernel's last answer about the anchor is old at the time `now` (ticks).
#[inline]
pub(in crate::switch) fn is_stale(stream: &Stream, now: u64) -> bool {
    is_older(stream, now, FRESH_TICKS)
}

/// True if the kernel's last answer about the anchor is older than `age` at the time `now`, both in ticks.
#[inline]
pub(in crate::switch) fn is_older(stream: &Stream, now: u64, age: u64) -> bool {
    now.wrapping_sub(stream.endpoint.looked_at.load(Relaxed)) > age
}

/// Asks the kernel about the anchor if the last answer is old at the time `now` (ticks), or the peer hinted that it
/// closed.
#[inline]
pub(in crate::switch) fn look_if_stale(socket: &Socket, stream: &Stream, now: u64) {
    let hinted = ends::hinted_end(stream);
    if is_stale(stream, now) || hinted {
        look_again(socket, stream, now, hinted);
    }
}

#[cold]
fn look_again(socket: &Socket, stream: &Stream, now: u64, hinted: bool) {
    let last = stream.endpoint.looked_at.swap(now, Relaxed);
    back_to_tcp::look_around();
    let alive = stream.activity_of_peer();
    let is_alive = stream.endpoint.seen_alive.swap(alive, Relaxed) != alive
        && now.wrapping_sub(last) < ALIVE_TICKS;
    if is_alive && !hinted {
        return;
    }
    let answered = watchers::answered_at(socket);
    if !hinted && !ends::hears_no_end(stream) && now.wrapping_sub(answered) <= FRESH_TICKS {
        // An epoll set watches the anchor, and would have reported its end.
        ends::look_here(socket, stream);
        stream.endpoint.looked_at.store(answered, Relaxed);
        return;
    }
    ends::look(socket, stream);
    if stream.endpoint.is_shared() {
        note_blocking_mode(socket, stream);
    }
}

/// Reads O_NONBLOCK from the kernel, because another process may have changed the flag.
pub(in crate::switch) fn note_blocking_mode(socket: &Socket, stream: &Stream) {
    if let Ok(flags) = file::status_flags(socket.anchor()) {
        let nonblocking = flags & libc::O_NONBLOCK != 0;
        if nonblocking != stream.endpoint.has(flag::NONBLOCK) {
            if nonblocking {
                stream.endpoint.set(flag::NONBLOCK);
            } else {
                stream.endpoint.clear(flag::NONBLOCK);
            }
        }
    }
}
