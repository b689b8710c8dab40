//! Sleeping on an anchor, and what the anchor tells.
//!
//! The anchor is the doorbell: one byte arrives on it when the peer found our select counter
//! raised. Rules that keep every sleeper's wake-up (design 1, 4):
//!
//! - A byte is drained only by who found the stream empty and is about to raise the counter.
//!   Until then the kernel shows the anchor readable to every other sleeper.
//! - Who drains while others sleep on the same anchor lets them leave first.
//! - A byte drained on behalf of an epoll set makes that set look at the socket itself.
//!
//! The byte itself is [`doorbell`]'s.

use crate::fabric::{Link, Sleeper};
use crate::session::Ticket;
use crate::switch::anchor::ends;
use crate::switch::anchor::ready;
use crate::switch::anchor::returning;
use crate::switch::anchor::untaken_offer;
use crate::switch::back_to_tcp::request;
use crate::switch::endpoint::flag;
use crate::switch::endpoint::sleepers::Place;
use crate::switch::socket::{phase, Socket};
use crate::switch::spin::spin;
use crate::switch::stream::counters::{self, Event};
use crate::switch::stream::{Hold, Stream};
use crate::switch::waiting::link_sleep;
use crate::switch::waiting::ring;
use crate::sys::process::NapSignals;
use crate::sys::{blocking, file, handlers, net, time, Errno, Result};
use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

/// A call's SO_RCVTIMEO or SO_SNDTIMEO, from its first wait on.
#[derive(Debug, Default)]
pub(in crate::switch) struct Limit(Cell<Option<Option<u64>>>);

impl Limit {
    /// What is left of it in ns; `None`: there is none.
    pub(in crate::switch) fn left(&self, socket: &Socket, event: Event) -> Option<u64> {
        let now = time::now();
        let until = self.0.get().unwrap_or_else(|| {
            let limit = match event {
                Event::Read => libc::SO_RCVTIMEO,
                Event::Write => libc::SO_SNDTIMEO,
            };
            net::time_out(socket.anchor(), limit).map(|limit| now.saturating_add(limit))
        });
        self.0.set(Some(until));
        until.map(|until| until.saturating_sub(now))
    }
}

/// How a thread waits.
pub(in crate::switch) struct Wait<'a> {
    event: Event,
    /// The call has moved bytes: it is not restarted after a signal.
    partial: bool,
    limit: &'a Limit,
    /// How long (ns) until a thread that holds the send lock has something to do itself, the end of the
    /// connection included.
    nap: Option<u64>,
}

impl<'a> Wait<'a> {
    /// For `event`, in a call that has moved bytes (`partial`) or not.
    pub(in crate::switch) fn new(event: Event, partial: bool, limit: &'a Limit) -> Self {
        Wait { event, partial, limit, nap: None }
    }

    /// For what the peer does about the transfer of a thread that holds the send lock, at most `nap` ns.
    pub(in crate::switch) fn in_transfer(nap: u64, limit: &'a Limit) -> Self {
        Wait { event: Event::Write, partial: true, limit, nap: Some(nap.max(1)) }
    }
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::switch) enum Woken {
    /// Something happened, or may have: to be looked at.
    Perhaps,
    /// The connection ended. Told only in a transfer, where what was read by RDMA is to count as sent
    /// before the end is noted.
    Ended,
}

/// How long what the kernel said of an anchor is believed, in clock ticks; some 100 µs.
const FRESH_TICKS: u64 = 300_000;
/// How long a wait without restart sleeps at a time.
const NAP_IN_PARTIAL_CALL: u64 = 1_000_000_000;
/// How often a writer looks that no doorbell can wake, because the peer's direction ended.
pub(in crate::switch) const NAP_WITHOUT_DOORBELL: u64 = 1_000_000;

/// True if what the kernel last said of the anchor is old `now` (ticks).
#[inline]
pub(in crate::switch) fn is_stale(stream: &Stream, now: u64) -> bool {
    now.wrapping_sub(stream.endpoint.looked_at.load(Relaxed)) > FRESH_TICKS
}

/// Asks the kernel about the anchor if the last answer is old `now` (ticks), or the peer hinted that it
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
    stream.endpoint.looked_at.store(now, Relaxed);
    request::check();
    if socket.is_pending() {
        // A program that never sleeps waits for an answer as well.
        untaken_offer::scan(socket);
        if socket.phase() == phase::NATIVE {
            return;
        }
    }
    // A peer that did something since the last look is alive.
    let alive = stream.activity_of_peer();
    if stream.endpoint.seen_alive.swap(alive, Relaxed) != alive && !hinted {
        return;
    }
    ends::look(socket, stream);
    note_blocking_mode(socket, stream);
}

/// Reads O_NONBLOCK from the kernel: another process may have changed it.
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

/// A thread counted as asleep on a socket, its select counter raised.
#[derive(Clone, Copy)]
pub(in crate::switch) struct Armed {
    event: Event,
    ticket: Ticket,
    place: Place,
    on_link: Option<Sleeper>,
}

/// Announces a sleeper. It looks for its event once more before it sleeps.
pub(in crate::switch) fn arm(stream: &Stream, event: Event) -> Armed {
    let _hold = Hold::of(stream);
    let locked = stream.endpoint.anchor.lock().is_ok();
    let place = stream.endpoint.sleepers.enter();
    if locked {
        stream.endpoint.anchor.unlock();
    }
    let on_link = stream.fabric.and_then(Link::falls_asleep);
    Armed { event, ticket: counters::raise(stream, event), place, on_link }
}

/// The sleeper is awake.
pub(in crate::switch) fn disarm(stream: &Stream, armed: Armed) {
    counters::withdraw(stream, armed.event, armed.ticket);
    stream.endpoint.sleepers.leave(armed.place);
    if let Some(sleeper) = armed.on_link {
        sleeper.wakes();
    }
}

/// A sleeper until it is dropped, also where its thread is cancelled in its sleep.
pub(in crate::switch) struct Asleep<'a> {
    stream: &'a Stream<'a>,
    armed: Armed,
    _hold: Hold<'a>,
}

/// [`arm`], until the result is dropped.
pub(in crate::switch) fn fall_asleep<'a>(stream: &'a Stream<'a>, event: Event) -> Asleep<'a> {
    let hold = Hold::of(stream);
    Asleep { stream, armed: arm(stream, event), _hold: hold }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        disarm(self.stream, self.armed);
    }
}

/// Waits until the event may have come: spins while that pays, then sleeps. `ready` tells whether
/// it has. EAGAIN: the socket is non-blocking, or its time ran out; EINTR as the kernel has it.
pub(in crate::switch) fn wait(
    socket: &Socket,
    stream: &Stream,
    how: &Wait,
    mut ready: impl FnMut() -> bool,
) -> Result<Woken> {
    let (event, in_transfer) = (how.event, how.nap.is_some());
    if !in_transfer && stream.endpoint.has(flag::NONBLOCK) {
        return Err(Errno(libc::EAGAIN));
    }
    if spin(&socket.spin, how.nap.unwrap_or(u64::MAX), &mut ready) {
        return Ok(Woken::Perhaps);
    }
    if !in_transfer {
        // It may take the structure lock, which comes before the send lock.
        request::check();
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
        Err(Errno(e)) => ends::note_error(socket, stream, e),
    }
    Ok(Woken::Perhaps)
}

/// Sleeps in the kernel. The counter is raised.
fn sleep(socket: &Socket, stream: &Stream, how: &Wait, sleeper: Option<Sleeper>) -> Result<Woken> {
    let (anchor, event) = (socket.anchor(), how.event);
    let limit = how.limit.left(socket, event);
    let nap = if how.nap.is_some() {
        how.nap
    } else if stream.endpoint.has(ends::ALWAYS_READABLE) && stream.fabric.is_none()
        || event == Event::Write && stream.endpoint.has(flag::SENDS_TCP)
    {
        Some(NAP_WITHOUT_DOORBELL)
    } else if let Some(nap) = returning::longest_nap(stream) {
        Some(nap)
    } else if socket.is_pending() {
        Some(stream.endpoint.unanswered.nap())
    } else if how.partial {
        Some(NAP_IN_PARTIAL_CALL)
    } else if event == Event::Read {
        None
    } else {
        limit.or_else(|| net::time_out(anchor, libc::SO_RCVTIMEO).map(|_| NAP_IN_PARTIAL_CALL))
    };
    if let Some(link) = stream.fabric {
        return link_sleep::sleep(
            socket,
            stream,
            link,
            sleeper,
            (event, how.partial),
            [limit, nap],
        );
    }
    // The kernel's own recv honours SO_RCVTIMEO, restarts and cancellation exactly.
    let Some(nap) = nap else {
        let end = |n| if n == 0 { Woken::Ended } else { Woken::Perhaps };
        return blocking::peek(anchor).map(end);
    };
    if how.nap.is_none() && file::status_flags(anchor)? & libc::O_NONBLOCK != 0 {
        return Err(Errno(libc::EAGAIN));
    }
    let start = time::now();
    let pending = socket.is_pending();
    let mut signals = NapSignals::default();
    let mask = signals.mask(how.nap.is_none(), std::ptr::null());
    loop {
        let left = limit.map(|l| l.saturating_sub(time::now() - start));
        if left == Some(0) {
            return Err(Errno(libc::EAGAIN));
        }
        // At the end of the anchor's stream it is readable for ever: only time passes then.
        let events = match event {
            _ if stream.endpoint.has(ends::ALWAYS_READABLE) => 0,
            // What is there to read does not matter.
            Event::Write if stream.endpoint.has(flag::SENDS_TCP) => libc::POLLOUT,
            _ => libc::POLLIN,
        };
        let mut fds = [libc::pollfd { fd: anchor, events, revents: 0 }];
        let nap = left.map_or(nap, |l| l.min(nap));
        // SAFETY: the mask is there as long as `signals`.
        let n = match unsafe { blocking::poll(&mut fds, Some(nap), mask) } {
            // As the kernel's own recv; poll is never restarted.
            Err(Errno(libc::EINTR))
                if how.nap.is_none() && !how.partial && limit.is_none() && handlers::restart() =>
            {
                0
            }
            slept => slept?,
        };
        let ended = n > 0 && fds[0].revents & (libc::POLLHUP | libc::POLLERR) != 0;
        if how.nap.is_some() {
            return Ok(if ended { Woken::Ended } else { Woken::Perhaps });
        }
        if ended || ends::hears_no_end(stream) {
            ends::look(socket, stream);
        }
        if socket.is_pending() {
            untaken_offer::scan(socket);
        }
        let happened = match event {
            Event::Read => ready::readable(stream),
            Event::Write => ready::writable(stream),
        };
        // Once the session is taken there is a doorbell to sleep for.
        let answered = pending && !socket.is_pending();
        let returns = returning::is_due(stream) || socket.phase() != phase::SAN;
        if n > 0 || happened || answered || returns {
            return Ok(Woken::Perhaps);
        }
    }
}
