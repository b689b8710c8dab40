//! Sending and receiving, with TCP's rules for flags, waiting and errors.

use super::bell;
use super::buffers::Buffers;
use super::detach;
use super::endpoint::flag;
use super::far;
use super::lanes;
use super::setup::{self, Way};
use super::socket::{phase, Socket};
use super::stream::{Broken, Moved, Posted, Stream, Take};
use super::suspend;
use super::turn::{self, reentered, waits};
use super::wait::{self, Event, Limit, Wait};
use super::Outcome;
use crate::session::transfer::Call;
use crate::sys::{blocking, net, process, time, Errno};
use std::sync::atomic::Ordering::Relaxed;

/// How long (ns) a receive that may not wait looks again for bytes that the program saw before.
const LOOK_TIME: u64 = 100_000_000;

/// The error of a broken connection, told once; afterwards `then`.
fn reset_error(stream: &Stream, then: Result<usize, Errno>) -> Result<usize, Errno> {
    if stream.endpoint.set(flag::ERROR_REPORTED) {
        return Err(stream.endpoint.broken_by());
    }
    then
}

/// recv in all its forms. `Pass`: the socket is on plain TCP.
#[inline]
pub fn receive(socket: &Socket, mut to: Buffers, flags: i32) -> Outcome {
    if !setup::is_on_san(socket, Way::Receive, to.remaining()) {
        return Outcome::Pass;
    }
    let Some(stream) = socket.stream() else { return Outcome::Pass };
    let began = time::ticks();
    setup::note_transfer(began);
    to.know_time(began);
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Outcome::Pass;
    }
    if flags & libc::MSG_OOB != 0 {
        return super::urgent::receive(socket, &stream, to, flags);
    }
    let mut got = 0;
    if stream.endpoint.has(flag::RECEIVES_TCP) {
        if let Some(done) = lanes::receive(socket, &stream, &mut to, flags, &mut got) {
            return done;
        }
    }
    if receive_at_once(socket, &stream, &mut to, flags, &mut got) {
        return Outcome::Done(Ok(got));
    }
    if !stream.endpoint.has(flag::ASYNC) {
        return receive_step_by_step(socket, &stream, to, flags, got);
    }
    let seen = stream.arrival_stamp();
    let received = receive_step_by_step(socket, &stream, to, flags, got);
    if happened_before(socket, &stream, Event::Read) && stream.arrival_stamp() != seen {
        // It came while no doorbell was to ring for it.
        process::signal_input(socket.anchor());
    }
    received
}

/// With O_ASYNC, when a call is done: from now on the next event reaches the anchor, where the kernel raises the signal.
/// True if one did not have to.
fn happened_before(socket: &Socket, stream: &Stream, event: Event) -> bool {
    if !wait::readable(stream) {
        bell::drain(socket, stream, || false);
    }
    let _ = wait::raise_elsewhere(stream, event);
    match event {
        Event::Read => wait::readable(stream),
        Event::Write => wait::writable(stream),
    }
}

fn receive_step_by_step(
    socket: &Socket,
    stream: &Stream,
    mut to: Buffers,
    flags: i32,
    mut got: usize,
) -> Outcome {
    let wanted = got + to.remaining();
    let (mut looks_since, mut waited_at) = (0, None);
    let take = match flags {
        f if f & libc::MSG_PEEK != 0 => Take::Peek,
        f if f & libc::MSG_TRUNC != 0 => Take::Discard,
        _ => Take::Consume,
    };
    let limit = Limit::default();
    let call = stream.call(wanted);
    super::gather::gather(stream, wanted);
    loop {
        if waited_at.is_some() && receive_at_once(socket, stream, &mut to, flags, &mut got) {
            return Outcome::Done(Ok(got));
        }
        let ended = wait::ended(stream);
        let received = match take {
            Take::Peek => receive_once(socket, stream, &mut to.clone(), take, call, false),
            _ => receive_once(socket, stream, &mut to, take, call, got > 0),
        };
        match received {
            Err(Failure::Busy) => return Outcome::Done(Err(reentered(stream, flags))),
            Err(Failure::Broken(why)) => {
                // Where the bytes of this attempt lie nobody knows.
                wait::fail(socket, stream, why);
                let told = if got > 0 { Ok(got) } else { reset_error(stream, Ok(0)) };
                return Outcome::Done(told);
            }
            Ok(moved) => {
                if moved.ring {
                    bell::ring(socket);
                }
                got = if take == Take::Peek { moved.bytes } else { got + moved.bytes };
                if let Some(e) = moved.fault {
                    return Outcome::Done(if got > 0 { Ok(got) } else { Err(e) });
                }
                if got == wanted && (wanted > 0 || wait::readable(stream)) {
                    return Outcome::Done(Ok(got));
                }
            }
        }
        let enough = if flags & libc::MSG_WAITALL != 0 {
            wanted
        } else {
            (stream.endpoint.receive.low_water.load(Relaxed) as usize).min(wanted)
        };
        let waits = waits(stream, flags);
        let peeked = if take == Take::Peek { got } else { 0 };
        let at_mark = got > 0 && stream.mark_at(peeked).is_some();
        if got < wanted
            && (got > 0 || !waits)
            && !(take == Take::Peek || ended || at_mark || stream.endpoint.has(flag::RECEIVE_SHUT))
            && stream.owes_seen()
            && !detach::is_due(stream)
        {
            // What MSG_PEEK or FIONREAD saw is there, as soon as its sender sends it in messages.
            let now = time::now();
            if looks_since == 0 {
                looks_since = now;
            }
            if now - looks_since < LOOK_TIME {
                process::yield_now();
                continue;
            }
            stream.forget_seen();
        }
        if (got >= enough.max(1) || at_mark)
            && !(waits && take == Take::Consume && stream.will_be_written(wanted - got))
        {
            return Outcome::Done(Ok(got));
        }
        if detach::is_due(stream) && detach::look_after(socket, stream) {
            return rest_from_kernel(socket, to, got, flags);
        }
        if ended || stream.endpoint.has(flag::RECEIVE_SHUT) {
            if got == 0 && stream.endpoint.has(flag::RESET) {
                return Outcome::Done(reset_error(stream, Ok(0)));
            }
            wait::show_ends(socket, stream);
            return Outcome::Done(Ok(got));
        }
        let posted = match take {
            Take::Consume if stream.concerns_sender(to.remaining()) => {
                post(socket, stream, &to, call, waits)
            }
            _ => None,
        };
        let woken = if !waits {
            wait::look_if_stale(socket, stream, time::ticks());
            if wait::ended(stream) {
                continue;
            }
            bell::make_up(socket, stream);
            if stream.endpoint.has(flag::ASYNC) && happened_before(socket, stream, Event::Read) {
                continue;
            }
            Err(Errno(libc::EAGAIN))
        } else {
            let stamp = stream.arrival_stamp();
            // Not again after one that brought nothing: the peer can write there what it likes.
            let hinted = posted.is_none() && waited_at != Some(got);
            waited_at = Some(got);
            let how = Wait::new(Event::Read, got > 0, &limit);
            let woken = wait::wait(socket, stream, &how, || match take {
                Take::Peek if got > 0 => stream.arrival_stamp() != stamp || wait::ended(stream),
                _ if hinted => wait::announced(stream),
                _ => posted.as_ref().is_some_and(Posted::is_over) || wait::readable(stream),
            });
            woken.map(drop)
        };
        if let Some(posted) = posted {
            let written = posted.take_back();
            to.skip(written);
            got += written;
            if written > 0 && got >= enough.max(1) {
                return Outcome::Done(Ok(got));
            }
        }
        if socket.phase() != phase::SAN {
            return rest_from_kernel(socket, to, got, flags);
        }
        if let Err(e) = woken {
            return Outcome::Done(if got > 0 { Ok(got) } else { Err(e) });
        }
    }
}

/// Receives what is there, where that is simple; `got`: bytes with those before.
#[inline(always)]
fn receive_at_once(
    socket: &Socket,
    stream: &Stream,
    to: &mut Buffers,
    flags: i32,
    got: &mut usize,
) -> bool {
    const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CMSG_CLOEXEC;
    flags & !FLAGS == 0 && stream.has_data() && receive_simply(socket, stream, to, got)
}

#[inline(never)]
fn receive_simply(socket: &Socket, stream: &Stream, to: &mut Buffers, got: &mut usize) -> bool {
    let Some((bytes, ring)) = stream.receive_at_once(to) else { return false };
    if ring {
        bell::ring(socket);
    }
    *got += bytes;
    true
}

/// Goes on with a receive on a socket that returned to TCP after `got` bytes.
#[cold]
pub(super) fn rest_from_kernel(
    socket: &Socket,
    mut to: Buffers,
    mut got: usize,
    flags: i32,
) -> Outcome {
    if got == 0 {
        return Outcome::Pass;
    }
    let mut piece = [0u8; 4096];
    while flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0 && to.remaining() > 0 {
        let n = to.remaining().min(piece.len());
        match blocking::receive(socket.anchor(), &mut piece[..n], flags & !libc::MSG_TRUNC) {
            Ok(n) if n > 0 => {
                // SAFETY: `n` bytes are there, and at most what remains was asked for.
                if unsafe { to.copy_in(piece.as_ptr(), n) }.is_err() {
                    break;
                }
                got += n;
            }
            _ => break,
        }
    }
    Outcome::Done(Ok(got))
}

enum Failure {
    /// The calling thread is inside a call on this socket already.
    Busy,
    Broken(Broken),
}

#[inline]
fn receive_once(
    socket: &Socket,
    stream: &Stream,
    to: &mut Buffers,
    take: Take,
    call: Call,
    partial: bool,
) -> Result<Moved, Failure> {
    stream.poll();
    let held = stream.lock_receive().map_err(|_| Failure::Busy)?;
    suspend::after(socket, stream, &held, &stream.endpoint.send.lock);
    if stream.endpoint.has(flag::READ_OUT) {
        return Ok(Moved::default());
    }
    let received = stream.receive(to, take, call, partial).map_err(Failure::Broken);
    drop(held);
    if let Some(link) = stream.fabric {
        link.received();
    }
    received
}

/// Before a receive waits: posts its buffer for RDMA if the sender is to know of it.
#[inline]
fn post<'a>(
    socket: &Socket,
    stream: &'a Stream,
    to: &Buffers,
    call: Call,
    waits: bool,
) -> Option<Posted<'a>> {
    let held = stream.lock_receive().ok()?;
    let posted =
        if stream.endpoint.has(flag::READ_OUT) { None } else { stream.post(to, call, waits) };
    drop(held);
    if stream.try_send_due() {
        bell::ring(socket);
    }
    posted
}

/// send in all its forms. `Pass`: the socket is on plain TCP.
#[inline]
pub fn send(socket: &Socket, mut from: Buffers, flags: i32) -> Outcome {
    if !setup::is_on_san(socket, Way::Send, from.remaining()) {
        return Outcome::Pass;
    }
    let Some(stream) = socket.stream() else { return Outcome::Pass };
    if flags & libc::MSG_OOB != 0 && from.remaining() > 0 {
        return super::urgent::send(socket, &stream, from, flags);
    }
    let (wanted, began) = (from.remaining(), time::ticks());
    setup::note_transfer(began);
    from.know_time(began);
    if socket.phase() == phase::SAN && !wait::is_stale(&stream, began) {
        if let Some(ring) = stream.send_at_once(&from) {
            if ring {
                bell::ring(socket);
            }
            return Outcome::Done(Ok(wanted));
        }
    }
    send_in_steps(socket, &stream, from, flags, began)
}

/// As [`send`], whatever else is to be done. `began`: when the call did, in ticks.
#[inline(never)]
fn send_in_steps(
    socket: &Socket,
    stream: &Stream,
    mut from: Buffers,
    flags: i32,
    began: u64,
) -> Outcome {
    let (wanted, limit) = (from.remaining(), Limit::default());
    let sent = transmit(
        socket,
        stream,
        flags,
        &limit,
        |stream| {
            let stream = &stream.over(socket.anchor());
            if !lanes::turn(stream) {
                return Ok((lanes::send(stream, &mut from), from.remaining() == 0));
            }
            far::look_for_room(stream, from.remaining(), waits(stream, flags));
            // The rest of a large send too: its waits are a part of what that cost.
            let moved = if wanted < stream.endpoint.threshold() as usize {
                stream.send(&mut from)
            } else {
                let limit = waits(stream, flags).then_some(&limit);
                super::rdma::send(socket, stream, &mut from, limit, began)
            };
            moved.map(|moved| (moved, from.remaining() == 0))
        },
        wanted == 0,
        began,
    );
    match sent {
        // A blocking send ends early only for an error, or when the socket went back to TCP.
        Outcome::Done(Ok(n))
            if n < wanted && (stream.endpoint.has(flag::LEFT) || socket.phase() != phase::SAN) =>
        {
            rest_to_kernel(socket, from, n, flags)
        }
        other => other,
    }
}

/// Goes on with a send on a socket that returned to TCP after `sent` bytes.
#[cold]
fn rest_to_kernel(socket: &Socket, mut from: Buffers, mut sent: usize, flags: i32) -> Outcome {
    let mut piece = [0u8; 4096];
    while from.remaining() > 0 {
        let n = from.remaining().min(piece.len());
        // SAFETY: room for `n` bytes, at most what remains.
        if unsafe { from.copy_out(piece.as_mut_ptr(), n) }.is_err() {
            break;
        }
        match net::send(socket.anchor(), &piece[..n], flags) {
            Ok(taken) => {
                sent += taken;
                if taken < n {
                    break;
                }
            }
            Err(_) => break,
        }
    }
    Outcome::Done(Ok(sent))
}

/// Sends what `fill` provides, up to `length` bytes, straight into the send buffer (sendfile,
/// splice). `fill` gets writable memory; zero ends the transfer.
pub fn send_from(
    socket: &Socket,
    length: usize,
    flags: i32,
    mut fill: impl FnMut(*mut u8, usize) -> Result<usize, Errno>,
) -> Outcome {
    if !setup::is_on_san(socket, Way::Send, length) {
        return Outcome::Pass;
    }
    let Some(stream) = socket.stream() else { return Outcome::Pass };
    if lanes::decide(socket, &stream) {
        return Outcome::Pass;
    }
    let mut left = length;
    let mut dry = false;
    transmit(
        socket,
        &stream,
        flags,
        &Limit::default(),
        |stream| {
            if !lanes::turn(stream) {
                // The receiver is in the middle of something.
                return Ok((Moved::default(), false));
            }
            let moved = stream.buffer(left, |to, n| {
                let filled = fill(to, n)?;
                dry |= filled < n;
                Ok(filled)
            })?;
            left -= moved.bytes;
            Ok((moved, left == 0 || dry))
        },
        length == 0,
        time::ticks(),
    )
}

/// Moves bytes with `step` until it says it is done, waiting for space as the flags and the socket
/// demand. `step` runs under the send lock and returns what it moved, an error of its source, and
/// whether it is done. `began`: when the call did, in ticks.
#[inline(always)]
fn transmit(
    socket: &Socket,
    stream: &Stream,
    flags: i32,
    limit: &Limit,
    mut step: impl FnMut(&Stream) -> Result<(Moved, bool), Broken>,
    empty: bool,
    began: u64,
) -> Outcome {
    let mut sent = 0;
    let finish = |sent: usize, e: Errno| {
        if e == Errno(libc::EAGAIN) {
            stream.endpoint.send.stalls.fetch_add(1, Relaxed);
        }
        if sent > 0 {
            return Outcome::Done(Ok(sent));
        }
        if e == Errno(libc::EPIPE) && flags & libc::MSG_NOSIGNAL == 0 {
            process::raise_sigpipe();
        }
        Outcome::Done(Err(e))
    };
    wait::look_if_stale(socket, stream, began);
    loop {
        if detach::is_due(stream) {
            detach::look_after(socket, stream);
        }
        if stream.endpoint.has(flag::SENDS_TCP) && lanes::is_given_up(stream) {
            lanes::retreat(socket, stream);
        }
        let waits = waits(stream, flags);
        let held = match turn::lock(socket, stream, flags, sent > 0, limit) {
            Ok(held) => held,
            Err(e) => return finish(sent, e),
        };
        suspend::after(socket, stream, &held, &stream.endpoint.receive.lock);
        if stream.endpoint.has(flag::LEAVING | flag::LEFT) && detach::is_half_left(stream) {
            drop(held);
            if !detach::look_after(socket, stream) && detach::is_half_left(stream) {
                // What goes first has no room.
                let waited = match unable(stream) {
                    Some(e) => Err(e),
                    None if !waits => Err(Errno(libc::EAGAIN)),
                    None => {
                        let how = Wait::new(Event::Write, sent > 0, limit);
                        let left = || !detach::is_half_left(stream);
                        wait::wait(socket, stream, &how, left).map(drop)
                    }
                };
                if let Err(e) = waited {
                    return finish(sent, e);
                }
            }
            continue;
        }
        if socket.phase() != phase::SAN || stream.endpoint.has(flag::LEFT) {
            // The kernel may find no room, which makes an EPOLLOUT edge due.
            stream.endpoint.send.stalls.fetch_add(1, Relaxed);
            return if sent > 0 { Outcome::Done(Ok(sent)) } else { Outcome::Pass };
        }
        if sent > 0 && is_broken(stream) {
            // What was sent is told first; the error keeps for the next call. Behind the end nothing goes.
            return Outcome::Done(Ok(sent));
        }
        let failed = if sent == 0 { unable(stream) } else { None };
        if let Some(e) = failed {
            return finish(sent, e);
        }
        if empty {
            return Outcome::Done(Ok(0));
        }
        let stepped = step(stream);
        drop(held);
        let (moved, done) = match stepped {
            Ok(stepped) => stepped,
            Err(why) => {
                wait::fail(socket, stream, why);
                continue;
            }
        };
        sent += moved.bytes;
        if stream.endpoint.has(flag::GONE) || wait::is_answered_by_reset(stream) {
            wait::break_pipe(stream);
        } else if moved.ring || stream.endpoint.has(flag::ANCHOR_ENDED) {
            // To a peer that is gone the byte brings back TCP's own reset.
            bell::ring(socket);
            if stream.fabric.is_some() && stream.endpoint.has(flag::ANCHOR_ENDED) {
                far::knock(socket, stream);
            }
        }
        if done || (sent > 0 && is_broken(stream)) {
            return Outcome::Done(Ok(sent));
        }
        if let Some(e) = moved.fault {
            return finish(sent, e);
        }
        if !waits {
            bell::make_up(socket, stream);
            if stream.endpoint.has(flag::ASYNC) && happened_before(socket, stream, Event::Write) {
                continue;
            }
            return finish(sent, Errno(libc::EAGAIN));
        }
        let how = Wait::new(Event::Write, sent > 0, limit);
        let ready = || {
            stream.look_for_request();
            wait::writable(stream)
        };
        if let Err(e) = wait::wait(socket, stream, &how, ready) {
            return finish(sent, e);
        }
    }
}

fn is_broken(stream: &Stream) -> bool {
    stream.endpoint.has(flag::RESET | flag::BROKEN_PIPE | flag::SEND_SHUT)
}

/// Why nothing can be sent any more, if so.
pub(super) fn unable(stream: &Stream) -> Option<Errno> {
    const ANY: u32 = flag::SEND_SHUT | flag::RESET | flag::BROKEN_PIPE;
    if !stream.endpoint.has(ANY) {
        return None;
    }
    if stream.endpoint.has(flag::BROKEN_PIPE) {
        stream.endpoint.set(flag::ERROR_REPORTED);
        return Some(Errno(libc::EPIPE));
    }
    if stream.endpoint.has(flag::SEND_SHUT) {
        return Some(Errno(libc::EPIPE));
    }
    reset_error(stream, Err(Errno(libc::EPIPE))).err()
}

/// A receive that must wait although the program gave no room (recv of zero bytes): handled by
/// [`receive`]. This is the other oddity: read and readv of zero bytes return at once.
pub fn read(socket: &Socket, to: Buffers, flags: i32) -> Outcome {
    if to.remaining() == 0 {
        return Outcome::Done(Ok(0));
    }
    receive(socket, to, flags)
}
