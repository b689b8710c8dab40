//! What is different where the peer is on another host, and a [`Link`] plays its part.
//!
//! The doorbell is a descriptor of the link's beside the anchor, because nobody here can put a byte
//! on the anchor; the anchor tells of the connection's end as ever. A fork child uses such a connection through its parent's
//! link. It [goes back to TCP](super::detach) with the help of both ends' links.

use super::bell::{let_sleepers_leave, Departure};
use super::detach;
use super::endpoint::flag;
use super::epoll;
use super::socket::{phase, Socket};
use super::stream::{Hold, Stream};
use super::urgent;
use super::wait::{self, Event, Woken};
use crate::fabric::{self, Ear, Link, Sleeper};
use crate::provider::shm::{State, CLOSED, FAILED, FINISHED};
use crate::registry;
use crate::sys::process::NapSignals;
use crate::sys::{blocking, file, handlers, hidden, net, time, Errno, Fd, Result};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// How long (ns) an offer waits for the acceptor to accept, before it is asked back.
const OFFERED: u64 = 3_000_000_000;
/// How long (ns) the answer to that is waited for where it cannot be put off.
const ANSWER: u64 = 1_000_000_000;
/// How long (ns) a sleeper whose link is another process's, which may have died, or has failed, sleeps at a time.
const SLICE: u64 = 500_000_000;
/// How long (ns) a process that exits, or a fork relative that closes, waits for the peer to take
/// what it sent.
const LINGER: u64 = 5_000_000_000;
const PAUSE: u64 = 50_000;
/// Most doorbells of urgent data that are taken off when it is closed.
const MOST_URGENT: usize = 1 << 16;
/// How long (ns) a process that exits waits, for all its connections, until relatives that use them take
/// control.
const LEAVING: u64 = 1_000_000_000;

/// What such a connection is shown to be on.
pub(super) fn provider() -> registry::Provider {
    if fabric::is_of_this_host() {
        registry::Provider::Shm
    } else {
        registry::Provider::Verbs
    }
}

/// After a send to a peer whose TCP connection ended: a byte there brings back TCP's own reset.
pub(super) fn knock(socket: &Socket, stream: &Stream) {
    if detach::is_begun(stream) {
        // The byte would be one of the stream.
        return;
    }
    if let Err(Errno(error)) = net::send(socket.anchor(), &[0], libc::MSG_DONTWAIT) {
        if error != libc::EAGAIN && !stream.endpoint.has(flag::SEND_SHUT) {
            wait::note_error(socket, stream, error);
        }
    }
}

/// Takes the rings off the bell. Only for who found the stream empty and is about to raise a
/// counter; waits until the threads it was to wake are awake.
pub(super) fn drain(
    socket: &Socket,
    stream: &Stream,
    link: &Link,
    patience: u64,
    ready: impl FnMut() -> bool,
) {
    let e = stream.endpoint;
    wait::look_if_stale(socket, stream, time::ticks());
    let forced = match let_sleepers_leave(stream, link.bell(), patience, ready) {
        Departure::Done => false,
        Departure::Never => true,
        Departure::Awaited => return,
    };
    let _hold = Hold::of(stream);
    if e.anchor.lock().is_err() {
        return;
    }
    if !forced && e.sleepers.any() {
        e.anchor.unlock();
        return;
    }
    if !detach::is_due(stream) {
        urgent::take_off(stream, socket.anchor());
    }
    let mut rings = [0u8; 8];
    let drained = file::read(link.bell(), rings.as_mut_ptr(), rings.len()).is_ok();
    if forced {
        e.sleepers.clear();
    }
    e.anchor.unlock();
    if forced || (drained && e.holders.load(Relaxed) > 1) {
        for event in [Event::Read, Event::Write] {
            let _ = wait::raise(stream, event);
        }
    }
    if drained {
        socket.statistics().wakeups_received.add(1);
        epoll::doorbell_drained(socket);
    }
}

/// Sleeps until the bell rings, the anchor tells something, or something arrived that this thread, the `sleeper`, hears. The
/// counter is raised. No longer than `limit`, and `slice`, at a time. `partial`: the call has moved bytes.
pub(super) fn sleep(
    socket: &Socket,
    stream: &Stream,
    link: &Link,
    sleeper: Option<Sleeper>,
    (event, partial): (Event, bool),
    [limit, slice]: [Option<u64>; 2],
) -> Result<Woken> {
    let anchor = socket.anchor();
    if file::status_flags(anchor)? & libc::O_NONBLOCK != 0 {
        return Err(Errno(libc::EAGAIN));
    }
    let ear = sleeper.and_then(Sleeper::hear);
    if ear.is_none() {
        link.let_helper_hear();
    }
    let start = time::now();
    let mut signals = NapSignals::default();
    // The kernel's recv and send restart themselves where every handler asks for it.
    let restarts = || !partial && limit.is_none() && handlers::restart();
    loop {
        if is_unread_behind_end(stream) {
            look(socket, stream);
            return Ok(Woken::Perhaps);
        }
        let left = limit.map(|l| l.saturating_sub(time::now() - start));
        if left == Some(0) {
            return Err(Errno(libc::EAGAIN));
        }
        let silent = stream.endpoint.has(wait::SILENT);
        let events = if silent { 0 } else { libc::POLLIN | libc::POLLRDHUP };
        let mut fds = [
            libc::pollfd { fd: if silent { -1 } else { anchor }, events, revents: 0 },
            libc::pollfd { fd: link.bell(), events: libc::POLLIN, revents: 0 },
            libc::pollfd {
                fd: ear.as_ref().and_then(Ear::descriptor).unwrap_or(-1),
                events: libc::POLLIN,
                revents: 0,
            },
        ];
        let slice = [slice, self::slice(stream)].into_iter().flatten().min();
        let nap = [left, slice].into_iter().flatten().min();
        let mask = signals.mask(slice.is_some(), std::ptr::null());
        let nap_on = |fds: &mut [libc::pollfd], nap| {
            // SAFETY: the mask is there as long as `signals`.
            match unsafe { blocking::poll(fds, nap, mask) } {
                Err(Errno(libc::EINTR)) if restarts() => Ok(()),
                slept => slept.map(drop),
            }
        };
        nap_on(&mut fds, nap)?;
        if fds[0].revents != 0 || wait::hears_no_end(stream) {
            wait::look(socket, stream);
        }
        look(socket, stream);
        if socket.is_pending() {
            super::native::scan(socket);
        }
        if let Some(ear) = ear.as_ref().filter(|_| fds[2].revents & libc::POLLIN != 0) {
            // Who looks is awake: no bell need ring.
            ear.heard();
            return Ok(Woken::Perhaps);
        }
        let happened = match event {
            Event::Read => wait::readable(stream),
            Event::Write => wait::writable(stream),
        };
        let returns = detach::is_due(stream);
        if fds[1].revents != 0 || happened || socket.phase() != phase::SAN {
            return Ok(Woken::Perhaps);
        }
        if fds[0].revents != 0 {
            // TCP tells what this end cannot heed before the link told as much. Signals come meanwhile.
            nap_on(&mut [], Some(PAUSE))?;
        }
        if returns {
            return Ok(Woken::Perhaps);
        }
    }
}

/// How long to sleep at most on a connection over a link.
pub(super) fn slice(stream: &Stream) -> Option<u64> {
    let link = stream.fabric?;
    let may_be_broken = link.has_failed() && !stream.endpoint.has(flag::ANCHOR_ENDED | flag::RESET);
    // Where the anchor is not looked at, it tells nothing of a relative that died either.
    let is_silent = stream.endpoint.has(wait::SILENT);
    (may_be_broken || is_silent || link.is_foreign()).then_some(SLICE)
}

/// Notes what TCP cannot tell: that the peer [left bytes unread](is_unread_behind_end), and that the link is broken.
pub(super) fn look(socket: &Socket, stream: &Stream) {
    let Some(link) = stream.fabric else { return };
    let is_failed = link.is_failed_by_peer();
    if is_unread_behind_end(stream) {
        wait::break_pipe(stream);
    }
    if !is_failed {
        return;
    }
    if socket.is_pending() || stream.endpoint.has(flag::ANCHOR_ENDED | flag::RESET) {
        return;
    }
    if !link.is_broken() {
        // TCP's end tells of it.
        return;
    }
    let error = link.error();
    log::info!("fd {}: connection ended, its link is broken: {error}", socket.anchor());
    stream.endpoint.error.store(error.0 as u32, Relaxed);
    stream.endpoint.set(flag::RESET | flag::ANCHOR_ENDED);
    socket.statistics().set_state(registry::State::Failed);
    // The peer, and everybody who sleeps on the anchor, has to learn of it.
    net::reset(socket.anchor());
}

/// [`Stream::has_space`] once more after a look at the fabric.
#[inline]
pub(super) fn has_space(stream: &Stream) -> bool {
    stream.fabric.is_some_and(|link| {
        link.poll();
        stream.has_space()
    })
}

/// Before a send of `wanted` bytes, which `waits` for room: if there is no room for all, takes what the peer told of what it
/// read since. (Where TCP has room for all of a write, none of another process's comes in between.) Send lock.
#[inline]
pub(super) fn look_for_room(stream: &Stream, wanted: usize, waits: bool) {
    let Some(link) = stream.fabric else { return };
    let may_fit = waits && wanted <= stream.limit() as usize;
    if !may_fit || !stream.room().is_ok_and(|room| room < wanted as u64) {
        return;
    }
    if !link.is_foreign() {
        link.poll();
    } else if !link.is_failed_by_peer() {
        link.catch_up();
    }
}

/// True if an offer that nobody took may be withdrawn: the acceptor's shim alone decides.
pub(super) fn may_withdraw(stream: &Stream, link: &Link) -> bool {
    link.withdraw();
    let start = time::now();
    loop {
        link.poll();
        match stream.segment.state() {
            State::Refused => return true,
            State::Pending if time::now() - start < ANSWER => time::sleep(PAUSE),
            _ => return false,
        }
    }
}

/// Looks after an offer that nobody took yet.
pub(super) fn scan(stream: &Stream, link: &Link) {
    link.poll();
    let unanswered = &stream.endpoint.unanswered;
    if unanswered.waited(time::now()) > OFFERED {
        unanswered.start_anew();
        link.withdraw();
    }
}

/// The last descriptor of the connection is going: the peer gets what was sent, then TCP's end.
pub(super) fn close(socket: &Socket, stream: &Stream, link: &Link) {
    say_closed(socket, stream);
    if is_flushed(stream, link) || stream.endpoint.has(flag::ANCHOR_ENDED) {
        return;
    }
    // Who sends the rest, or will, may have no descriptor to keep TCP's end back with.
    if link.is_foreign() || link.is_moving() {
        return wait_for(stream, link);
    }
    hold_anchor(socket, link);
}

/// No process of this end uses it any more. What is on the anchor are doorbells of urgent data, which the program has from
/// the stream: left there, the kernel would reset the connection.
fn say_closed(socket: &Socket, stream: &Stream) {
    stream.own().sending.0.finished.fetch_or(CLOSED, SeqCst);
    stream.poll();
    let is_streams = socket.is_pending() || detach::is_due(stream) || detach::is_kernels(stream);
    if is_streams || stream.endpoint.has(flag::ANCHOR_ENDED) {
        return;
    }
    let mut bytes = [0; 256];
    for _ in 0..MOST_URGENT / bytes.len() {
        if !matches!(net::recv(socket.anchor(), &mut bytes, libc::MSG_DONTWAIT), Ok(1..)) {
            break;
        }
    }
}

/// A process of several closes its last descriptor of the connection.
pub(super) fn leave_to_relatives(socket: &Socket, stream: &Stream, link: &Link) {
    if !link.is_foreign() && !is_flushed(stream, link) {
        hold_anchor(socket, link);
    }
}

/// Another descriptor keeps TCP's end back until the peer has everything.
fn hold_anchor(socket: &Socket, link: &Link) {
    if let Ok(anchor) = file::duplicate_high(socket.anchor()) {
        let _ = file::set_descriptor_flags(anchor, libc::FD_CLOEXEC);
        link.keep_open(hidden::keep(anchor));
    }
}

/// The process exits with the connection open.
pub(super) fn exiting(socket: &Socket, stream: &Stream, link: &Link) {
    static COMES_UNTIL: AtomicU64 = AtomicU64::new(0);
    static GONE_UNTIL: AtomicU64 = AtomicU64::new(0);
    let shared = socket.phase() == phase::SAN && socket.leave(stream.endpoint);
    let is_over = match socket.phase() {
        phase::SAN if socket.is_pending() => false,
        phase::SAN if shared => detach::look_after(socket, stream),
        phase::SAN => detach::finish(socket, stream),
        phase::NATIVE => true,
        _ => return,
    };
    if is_over {
        wait_until(stream, link, first_and(&GONE_UNTIL, LINGER));
        return;
    }
    while link.withdraw_wish()
        && !link.is_failed_by_peer()
        && time::now() < first_and(&COMES_UNTIL, LEAVING)
    {
        time::sleep(PAUSE);
    }
    if shared && !link.is_foreign() {
        return leave_control_to_relatives(link);
    }
    if !shared && !socket.is_pending() {
        say_closed(socket, stream);
    }
    if !stream.endpoint.has(flag::ANCHOR_ENDED) {
        wait_for(stream, link);
    }
}

/// The time (clock, ns) that far after the first who asked.
fn first_and(first: &AtomicU64, then: u64) -> u64 {
    let until = time::now() + then;
    first.compare_exchange(0, until, Relaxed, Relaxed).err().unwrap_or(until)
}

/// Others go on with the connection: one of them takes control of its link. (D12: else it ends.)
fn leave_control_to_relatives(link: &Link) {
    static GOES_UNTIL: AtomicU64 = AtomicU64::new(0);
    let until = first_and(&GOES_UNTIL, LEAVING);
    while link.offer_control() && time::now() < until {
        time::sleep(PAUSE);
    }
    link.abandon();
}

/// True if TCP tells an end before which the link is to tell something: that the peer left, and what it sent before. The
/// connection goes back to TCP, or TCP has brought bytes already.
pub(super) fn is_early(stream: &Stream, link: &Link, anchor: Fd) -> bool {
    let sending = &stream.peer().sending.0;
    let is_told = sending.finished.load(SeqCst) & (FINISHED | CLOSED) != 0
        || sending.doorbells.state().left
        || link.is_failed_by_peer();
    let returns = || detach::is_due(stream) || stream.own().sending.0.doorbells.state().is_final();
    !is_told && (returns() || net::unread(anchor).is_some_and(|bytes| bytes > 0))
}

/// Before the connection is the kernel's: its end comes only when the peer knows how it went back.
pub(super) fn before_kernel(socket: &Socket, stream: &Stream) {
    if let Some(link) = stream.fabric.filter(|link| !link.is_foreign()) {
        if !is_flushed(stream, link) {
            hold_anchor(socket, link);
        }
    }
}

/// True if the peer closed, or is gone, with bytes unread after its stream had ended in order, and that is not noted yet. (TCP
/// resets then.)
pub(super) fn is_unread_behind_end(stream: &Stream) -> bool {
    stream.fabric.is_some()
        && stream.endpoint.has(flag::ANCHOR_ENDED)
        && !stream.endpoint.has(flag::RESET | flag::BROKEN_PIPE)
        && stream.peer().sending.0.finished.load(SeqCst) & (CLOSED | FAILED) != 0
        && !stream.peer_consumed_all()
}

/// True if the peer says that it closed.
pub(super) fn is_closed_by_peer(stream: &Stream) -> bool {
    stream.fabric.is_some() && stream.peer().sending.0.finished.load(SeqCst) & CLOSED != 0
}

/// True if the peer has all that was sent before the connection went back to TCP, and knows where that was: the program is
/// about to go on where the link cannot follow, and may end TCP's connection.
pub(super) fn has_all(stream: &Stream) -> bool {
    let Some(link) = stream.fabric.filter(|_| stream.segment.state() == State::Taken) else {
        return true;
    };
    wait_for(stream, link);
    if !is_flushed(stream, link) {
        return false;
    }
    if link.has_returned() || !link.is_failed_by_peer() {
        return true;
    }
    // That the peer ended the link may be heard before what came before it.
    link.catch_up();
    link.has_returned()
}

fn is_flushed(stream: &Stream, link: &Link) -> bool {
    link.is_flushed(stream.endpoint.session.last_sent().wrapping_add(1))
}

fn wait_for(stream: &Stream, link: &Link) {
    wait_until(stream, link, time::now() + LINGER);
}

fn wait_until(stream: &Stream, link: &Link, until: u64) {
    while !is_flushed(stream, link) && time::now() < until {
        time::sleep(PAUSE);
    }
}
