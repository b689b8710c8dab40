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
//! The byte itself is [`bell`]'s.

use super::arrival;
use super::bell;
use super::detach;
use super::endpoint::flag;
use super::far;
use super::lanes;
use super::native;
use super::request;
use super::sleepers::Place;
use super::socket::{phase, Socket};
use super::spin::spin;
use super::stream::{Broken, Hold, Stream};
use crate::fabric::{Link, Sleeper};
use crate::provider::shm::{ABORTIVE, CLOSED, FAILED, FINISHED};
use crate::registry;
use crate::session::Ticket;
use crate::sys::process::NapSignals;
use crate::sys::{blocking, file, handlers, net, poll, time, Errno, Result};
use std::cell::Cell;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Data, the end of the stream, or an error.
    Read,
    /// Space in the send buffer, or an error.
    Write,
}

/// A call's SO_RCVTIMEO or SO_SNDTIMEO, from its first wait on.
#[derive(Debug, Default)]
pub(super) struct Limit(Cell<Option<Option<u64>>>);

impl Limit {
    /// What is left of it in ns; `None`: there is none.
    pub(super) fn left(&self, socket: &Socket, event: Event) -> Option<u64> {
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
pub(super) struct Wait<'a> {
    event: Event,
    /// The call has moved bytes: it is not restarted after a signal.
    partial: bool,
    limit: &'a Limit,
    /// How long (ns) until a thread that holds the send lock has something to do itself, the end of the
    /// connection included.
    slice: Option<u64>,
}

impl<'a> Wait<'a> {
    /// For `event`, in a call that has moved bytes (`partial`) or not.
    pub(super) fn new(event: Event, partial: bool, limit: &'a Limit) -> Self {
        Wait { event, partial, limit, slice: None }
    }

    /// For what the peer does about the transfer of a thread that holds the send lock, at most `slice` ns.
    pub(super) fn in_transfer(slice: u64, limit: &'a Limit) -> Self {
        Wait { event: Event::Write, partial: true, limit, slice: Some(slice.max(1)) }
    }
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// Something happened, or may have: to be looked at.
    Perhaps,
    /// The connection ended. Told only in a transfer, where what was read by RDMA is to count as sent
    /// before the end is noted.
    Ended,
}

/// How long what the kernel said of an anchor is believed, in clock ticks; some 100 µs.
const FRESH_TICKS: u64 = 300_000;
/// Flags under which the kernel shows the anchor readable for ever.
pub(super) const SILENT: u32 = flag::ANCHOR_ENDED | flag::RECEIVE_SHUT | flag::UNBELLED;
/// How long a wait without restart sleeps at a time.
const PARTIAL_SLICE: u64 = 1_000_000_000;
/// How often a writer looks that no doorbell can wake, because the peer's direction ended.
pub(super) const UNBELLED_SLICE: u64 = 1_000_000;

/// Ends the connection because the peer broke the protocol.
#[cold]
pub(super) fn fail(socket: &Socket, stream: &Stream, why: Broken) {
    if stream.endpoint.set(flag::RESET) {
        log::error!("fd {}: connection reset, the peer broke the protocol: {why}", socket.anchor());
        stream.endpoint.error.store(libc::ECONNRESET as u32, Relaxed);
        socket.statistics().set_state(registry::State::Failed);
        // Everybody who sleeps on the anchor has to learn of it, the peer too.
        let _ = net::shutdown(socket.anchor(), libc::SHUT_RDWR);
    }
}

/// True if the peer's end does not wake who sleeps on the anchor: it is to be looked for.
pub(super) fn hears_no_end(stream: &Stream) -> bool {
    stream.endpoint.has(flag::RECEIVE_SHUT) && !stream.endpoint.has(flag::ANCHOR_ENDED)
}

/// True if nothing more will come: the peer shut its direction down, or its anchor ended.
/// To be asked before the stream is looked at: what was sent before the end comes first.
#[inline]
pub(super) fn ended(stream: &Stream) -> bool {
    // Over a fabric what lies here unread then comes again.
    let is_told = |finished| {
        finished & FINISHED != 0
            && (stream.fabric.is_none() || !stream.endpoint.has(flag::READ_OUT))
    };
    is_told(stream.peer().sending.0.finished.load(Acquire))
        || stream.endpoint.has(flag::ANCHOR_ENDED | flag::RESET)
}

/// True if the peer says it closed and what that means is not noted yet.
#[inline]
pub(super) fn hinted_end(stream: &Stream) -> bool {
    stream.peer().sending.0.finished.load(Relaxed) & (CLOSED | FAILED) != 0
        && (!stream.endpoint.has(flag::ANCHOR_ENDED) || far::is_unread_behind_end(stream))
}

/// True if what the kernel last said of the anchor is old `now` (ticks).
#[inline]
pub(super) fn is_stale(stream: &Stream, now: u64) -> bool {
    now.wrapping_sub(stream.endpoint.looked_at.load(Relaxed)) > FRESH_TICKS
}

/// Asks the kernel about the anchor if the last answer is old `now` (ticks), or the peer hinted that it
/// closed.
#[inline]
pub(super) fn look_if_stale(socket: &Socket, stream: &Stream, now: u64) {
    let hinted = hinted_end(stream);
    if is_stale(stream, now) || hinted {
        look_again(socket, stream, now, hinted);
    }
}

#[cold]
fn look_again(socket: &Socket, stream: &Stream, now: u64, hinted: bool) {
    stream.endpoint.looked_at.store(now, Relaxed);
    request::heed();
    if socket.is_pending() {
        // A program that never sleeps waits for an answer as well.
        native::scan(socket);
        if socket.phase() == phase::NATIVE {
            return;
        }
    }
    // A peer that did something since the last look is alive.
    let alive = stream.activity_of_peer();
    if stream.endpoint.seen_alive.swap(alive, Relaxed) != alive && !hinted {
        return;
    }
    look(socket, stream);
    note_blocking_mode(socket, stream);
}

/// Reads O_NONBLOCK from the kernel: another process may have changed it.
pub(super) fn note_blocking_mode(socket: &Socket, stream: &Stream) {
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

/// Asks the kernel whether the anchor ended, without draining it.
#[cold]
pub(super) fn look(socket: &Socket, stream: &Stream) {
    far::look(socket, stream);
    let Ok(events) = poll::poll_one(socket.anchor(), libc::POLLIN | libc::POLLRDHUP) else {
        return;
    };
    if events & (libc::POLLERR | libc::POLLHUP | libc::POLLRDHUP | libc::POLLIN) == 0
        || is_our_own_end(socket, stream, events)
    {
        return;
    }
    if let Some(link) = stream.fabric {
        // What came before the end counts before it.
        link.catch_up();
    }
    if detach::is_kernels(stream) {
        // What the kernel says comes after what is still to be read here, and is the kernel's to say.
        detach::follow(stream);
        return;
    }
    if socket.is_pending() {
        // The peer's kernel speaks and nobody took the session: whoever it is has no shim.
        if native::withdraw(socket) {
            return;
        }
    }
    if stream.fabric.is_some_and(|link| far::is_early(stream, link, socket.anchor())) {
        return;
    }
    if events & libc::POLLERR != 0 {
        let e = net::option(socket.anchor(), libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(0);
        note_error(socket, stream, e);
    }
    if events & (libc::POLLRDHUP | libc::POLLHUP) != 0 {
        note_end(socket, stream);
    }
}

/// True if the kernel shows these events of the anchor only because this end shut its receiving direction down.
fn is_our_own_end(socket: &Socket, stream: &Stream, events: i16) -> bool {
    stream.endpoint.has(flag::RECEIVE_SHUT)
        && events & (libc::POLLERR | libc::POLLHUP) == 0
        && !net::is_ended_by_peer(socket.anchor())
        && net::unread(socket.anchor()) == Some(0)
}

pub(super) fn note_error(socket: &Socket, stream: &Stream, error: i32) {
    match error {
        0 => {}
        // A peer's kernel resets also for a doorbell byte nobody drained; between hosts that is an urgent one, which may come
        // after the close. TCP resets only when the program left data unread, or asked for it (SO_LINGER).
        libc::ECONNRESET
            if (stream.fabric.is_none() || far::is_closed_by_peer(stream))
                && stream.endpoint.has(flag::ESTABLISHED)
                && !stream.endpoint.has(flag::LEFT)
                && stream.peer_consumed_all()
                && stream.peer().sending.0.finished.load(Acquire) & ABORTIVE == 0 =>
        {
            stream.endpoint.set(flag::ANCHOR_ENDED | flag::GONE);
        }
        // The end of the stream came before the reset: it stays the end of the stream.
        libc::EPIPE => {
            note_end(socket, stream);
            if !stream.endpoint.has(flag::RESET) {
                break_pipe(stream);
            }
        }
        e => {
            stream.endpoint.error.store(e as u32, Relaxed);
            stream.endpoint.set(flag::RESET | flag::ANCHOR_ENDED);
            socket.statistics().set_state(registry::State::Failed);
        }
    }
}

/// What TCP makes of a send to a peer that is gone.
pub(super) fn break_pipe(stream: &Stream) {
    stream.endpoint.error.store(libc::EPIPE as u32, Relaxed);
    stream.endpoint.set(flag::ANCHOR_ENDED | flag::BROKEN_PIPE);
}

/// The anchor's stream ended: the peer closed or died. With bytes it never read, TCP would have
/// sent a reset instead.
pub(super) fn note_end(socket: &Socket, stream: &Stream) {
    if stream.endpoint.has(flag::ANCHOR_ENDED) {
        return;
    }
    // After our own shutdown the kernel shows an end that need not be the peer's.
    if stream.endpoint.has(flag::RECEIVE_SHUT) && !net::is_ended_by_peer(socket.anchor()) {
        return;
    }
    let half_closed = stream.peer().sending.0.finished.load(Acquire) & FINISHED != 0;
    if !half_closed && !stream.endpoint.has(flag::RESET) && !stream.peer_consumed_all() {
        stream.endpoint.error.store(libc::ECONNRESET as u32, Relaxed);
        stream.endpoint.set(flag::RESET);
        socket.statistics().set_state(registry::State::Failed);
    }
    stream.endpoint.set(flag::ANCHOR_ENDED);
    show_ends(socket, stream);
}

/// Publishes which directions have ended.
#[cold]
pub(super) fn show_ends(socket: &Socket, stream: &Stream) {
    use registry::State;
    if stream.endpoint.has(flag::RESET) {
        return;
    }
    socket.statistics().set_state(match (stream.endpoint.has(flag::SEND_SHUT), ended(stream)) {
        (false, false) => State::Established,
        (true, false) => State::FinWait,
        (false, true) => State::CloseWait,
        (true, true) => State::Closing,
    });
}

/// A thread counted as asleep on a socket, its select counter raised.
#[derive(Clone, Copy)]
pub(super) struct Armed {
    event: Event,
    ticket: Ticket,
    place: Place,
    on_link: Option<Sleeper>,
}

/// Announces a sleeper. It looks for its event once more before it sleeps.
pub(super) fn arm(stream: &Stream, event: Event) -> Armed {
    let _hold = Hold::of(stream);
    let locked = stream.endpoint.anchor.lock().is_ok();
    let place = stream.endpoint.sleepers.enter();
    if locked {
        stream.endpoint.anchor.unlock();
    }
    let on_link = stream.fabric.and_then(Link::falls_asleep);
    Armed { event, ticket: raise(stream, event), place, on_link }
}

/// The sleeper is awake.
pub(super) fn disarm(stream: &Stream, armed: Armed) {
    withdraw(stream, armed.event, armed.ticket);
    stream.endpoint.sleepers.leave(armed.place);
    if let Some(sleeper) = armed.on_link {
        sleeper.wakes();
    }
}

/// A sleeper until it is dropped, also where its thread is cancelled in its sleep.
pub(super) struct Asleep<'a> {
    stream: &'a Stream<'a>,
    armed: Armed,
    _hold: Hold<'a>,
}

/// [`arm`], until the result is dropped.
pub(super) fn fall_asleep<'a>(stream: &'a Stream<'a>, event: Event) -> Asleep<'a> {
    let hold = Hold::of(stream);
    Asleep { stream, armed: arm(stream, event), _hold: hold }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        disarm(self.stream, self.armed);
    }
}

/// Raises the counter of an event.
pub(super) fn raise(stream: &Stream, event: Event) -> Ticket {
    let counters = &stream.own().counters.0;
    let ticket = match event {
        Event::Read => counters.read.raise(),
        Event::Write => counters.write.raise(),
    };
    if let Some(link) = stream.fabric {
        link.before_sleep();
    }
    ticket
}

/// [`raise`] for who sleeps in no call on the socket: on an epoll set, or until a signal.
pub(super) fn raise_elsewhere(stream: &Stream, event: Event) -> Ticket {
    if let Some(link) = stream.fabric {
        link.is_awaited_elsewhere();
    }
    raise(stream, event)
}

/// Takes it back.
pub(super) fn withdraw(stream: &Stream, event: Event, ticket: Ticket) {
    let counters = &stream.own().counters.0;
    match event {
        Event::Read => counters.read.withdraw(ticket),
        Event::Write => counters.write.withdraw(ticket),
    }
}

/// True if a read would not wait: data, end, or error. `None`: a message has to be taken in to know.
#[inline]
fn known_readable(stream: &Stream) -> Option<bool> {
    stream.poll();
    if stream.endpoint.has(flag::RECEIVES_TCP) {
        let on_tcp = lanes::readable(stream);
        if on_tcp.is_some() {
            return on_tcp;
        }
    }
    if stream.endpoint.has(flag::RECEIVE_SHUT | flag::READ_OUT) || ended(stream) {
        return Some(!stream.endpoint.has(flag::READ_OUT) || ended(stream));
    }
    if stream.has_mark_ahead() {
        return Some(readable_around_mark(stream));
    }
    stream.peek_readable()
}

/// What a read passes over is not to be read.
#[cold]
fn readable_around_mark(stream: &Stream) -> bool {
    let Some(held) = stream.borrow(&stream.endpoint.receive.lock) else { return true };
    let unread = stream.unread();
    drop(held);
    stream.try_answer_suspension();
    unread != Ok(0)
}

/// As [`readable`], and true also of a message that says that it has data: the read takes it in.
#[inline]
pub(super) fn announced(stream: &Stream) -> bool {
    known_readable(stream).unwrap_or_else(|| stream.next_announces_data() || readable(stream))
}

/// True if a read would not wait: data, end, or error.
#[inline]
pub(super) fn readable(stream: &Stream) -> bool {
    match known_readable(stream) {
        Some(readable) => readable,
        None => {
            // If not, somebody receives right now and will know better.
            let Some(held) = stream.borrow(&stream.endpoint.receive.lock) else { return true };
            let absorbed = stream.absorb();
            drop(held);
            stream.try_answer_suspension();
            absorbed.is_err() || stream.peek_readable() != Some(false)
        }
    }
}

/// True if a write would not wait: space, or error.
#[inline]
pub(super) fn writable(stream: &Stream) -> bool {
    const FAILS: u32 = flag::RESET | flag::SEND_SHUT | flag::BROKEN_PIPE;
    match stream.endpoint.flags() {
        // The kernel knows: see `readiness::of_socket`.
        f if f & flag::LEFT != 0 => false,
        // What goes first has no room.
        f if f & (flag::LEAVING | FAILS) == flag::LEAVING => false,
        f if f & (flag::SENDS_TCP | FAILS) == flag::SENDS_TCP => {
            poll::poll_one(stream.anchor, libc::POLLOUT).is_ok_and(|events| events != 0)
        }
        f => {
            f & FAILS != 0
                || stream.has_space()
                || far::has_space(stream)
                // Who shut both directions down before it closed is heard once, at the first.
                || is_answered_by_reset(stream)
        }
    }
}

/// True if TCP would have answered what was sent with a reset by now: the peer closed for good, on this host.
pub(super) fn is_answered_by_reset(stream: &Stream) -> bool {
    stream.endpoint.has(flag::ANCHOR_ENDED)
        && stream.fabric.is_none()
        && stream.peer().sending.0.finished.load(Relaxed) & CLOSED != 0
}

/// Waits until the event may have come: spins while that pays, then sleeps. `ready` tells whether
/// it has. EAGAIN: the socket is non-blocking, or its time ran out; EINTR as the kernel has it.
pub(super) fn wait(
    socket: &Socket,
    stream: &Stream,
    how: &Wait,
    mut ready: impl FnMut() -> bool,
) -> Result<Woken> {
    let (event, in_transfer) = (how.event, how.slice.is_some());
    if !in_transfer && stream.endpoint.has(flag::NONBLOCK) {
        return Err(Errno(libc::EAGAIN));
    }
    if spin(&socket.spin, how.slice.unwrap_or(u64::MAX), &mut ready) {
        return Ok(Woken::Perhaps);
    }
    if !in_transfer {
        // It may take the structure lock, which comes before the send lock.
        request::heed();
    }
    bell::drain(socket, stream, &mut ready);
    let asleep = fall_asleep(stream, event);
    let leaving = event == Event::Write && stream.endpoint.has(flag::LEFT);
    if ready() || leaving || socket.phase() != phase::SAN {
        return Ok(Woken::Perhaps);
    }
    bell::make_up(socket, stream);
    if socket.phase() != phase::SAN || (event == Event::Write && stream.endpoint.has(flag::LEFT)) {
        return Ok(Woken::Perhaps);
    }
    let slept = sleep(socket, stream, how, asleep.armed.on_link);
    drop(asleep);
    match slept {
        Ok(Woken::Ended) if !in_transfer => look(socket, stream),
        Ok(woken) => return Ok(woken),
        Err(Errno(libc::EAGAIN)) => {
            note_blocking_mode(socket, stream);
            return Err(Errno(libc::EAGAIN));
        }
        Err(Errno(libc::EINTR)) => return Err(Errno(libc::EINTR)),
        Err(Errno(e)) => note_error(socket, stream, e),
    }
    Ok(Woken::Perhaps)
}

/// Sleeps in the kernel. The counter is raised.
fn sleep(socket: &Socket, stream: &Stream, how: &Wait, sleeper: Option<Sleeper>) -> Result<Woken> {
    let (anchor, event) = (socket.anchor(), how.event);
    let limit = how.limit.left(socket, event);
    let slice = if how.slice.is_some() {
        how.slice
    } else if stream.endpoint.has(SILENT) && stream.fabric.is_none()
        || event == Event::Write && stream.endpoint.has(flag::SENDS_TCP)
    {
        Some(UNBELLED_SLICE)
    } else if let Some(slice) = detach::slice(stream) {
        Some(slice)
    } else if socket.is_pending() {
        Some(stream.endpoint.unanswered.nap())
    } else if let Some(slice) = arrival::slice() {
        Some(slice)
    } else if how.partial {
        Some(PARTIAL_SLICE)
    } else if event == Event::Read {
        None
    } else {
        limit.or_else(|| net::time_out(anchor, libc::SO_RCVTIMEO).map(|_| PARTIAL_SLICE))
    };
    if let Some(link) = stream.fabric {
        return far::sleep(socket, stream, link, sleeper, (event, how.partial), [limit, slice]);
    }
    // The kernel's own recv honours SO_RCVTIMEO, restarts and cancellation exactly.
    let Some(slice) = slice else {
        let end = |n| if n == 0 { Woken::Ended } else { Woken::Perhaps };
        return blocking::peek(anchor).map(end);
    };
    if how.slice.is_none() && file::status_flags(anchor)? & libc::O_NONBLOCK != 0 {
        return Err(Errno(libc::EAGAIN));
    }
    let start = time::now();
    let pending = socket.is_pending();
    let mut signals = NapSignals::default();
    let mask = signals.mask(how.slice.is_none(), std::ptr::null());
    loop {
        let left = limit.map(|l| l.saturating_sub(time::now() - start));
        if left == Some(0) {
            return Err(Errno(libc::EAGAIN));
        }
        // At the end of the anchor's stream it is readable for ever: only time passes then.
        let events = match event {
            _ if stream.endpoint.has(SILENT) => 0,
            // What is there to read does not matter.
            Event::Write if stream.endpoint.has(flag::SENDS_TCP) => libc::POLLOUT,
            _ => libc::POLLIN,
        };
        let mut fds = [libc::pollfd { fd: anchor, events, revents: 0 }];
        let nap = left.map_or(slice, |l| l.min(slice));
        // SAFETY: the mask is there as long as `signals`.
        let n = match unsafe { blocking::poll(&mut fds, Some(nap), mask) } {
            // As the kernel's own recv; poll is never restarted.
            Err(Errno(libc::EINTR))
                if how.slice.is_none()
                    && !how.partial
                    && limit.is_none()
                    && handlers::restart() =>
            {
                0
            }
            slept => slept?,
        };
        let ended = n > 0 && fds[0].revents & (libc::POLLHUP | libc::POLLERR) != 0;
        if how.slice.is_some() {
            return Ok(if ended { Woken::Ended } else { Woken::Perhaps });
        }
        if ended || hears_no_end(stream) {
            look(socket, stream);
        }
        if socket.is_pending() {
            native::scan(socket);
        }
        let happened = match event {
            Event::Read => readable(stream),
            Event::Write => writable(stream),
        };
        // Once the session is taken there is a doorbell to sleep for.
        let answered = pending && !socket.is_pending();
        let returns = detach::is_due(stream) || socket.phase() != phase::SAN;
        if n > 0 || happened || answered || returns {
            return Ok(Woken::Perhaps);
        }
    }
}
