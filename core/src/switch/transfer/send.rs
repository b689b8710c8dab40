//! send in all its forms, with TCP's rules for flags, waiting and errors.

use crate::switch::anchor::ends;
use crate::switch::anchor::link;
use crate::switch::anchor::ready;
use crate::switch::anchor::returning;
use crate::switch::anchor::switchover;
use crate::switch::back_to_tcp::detach;
use crate::switch::buffers::Buffers;
use crate::switch::endpoint::flag;
use crate::switch::outcome::Outcome;
use crate::switch::setup;
use crate::switch::socket::traffic::{note_transfer, Way};
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::counters::Event;
use crate::switch::stream::{Broken, Moved, Stream};
use crate::switch::transfer::rdma;
use crate::switch::transfer::suspend;
use crate::switch::transfer::told::{happened_before, unable};
use crate::switch::transfer::turn::{self, waits};
use crate::switch::transfer::urgent;
use crate::switch::waiting::ring;
use crate::switch::waiting::wait::{self, Limit, Wait};
use crate::sys::{net, process, time, Errno};
use std::sync::atomic::Ordering::Relaxed;

/// send in all its forms. `Pass`: the socket is on plain TCP.
#[inline]
pub fn send(socket: &Socket, mut from: Buffers, flags: i32) -> Outcome {
    if !setup::is_on_san(socket, Way::Send, from.remaining()) {
        return Outcome::Pass;
    }
    let Some(stream) = socket.stream() else { return Outcome::Pass };
    if flags & libc::MSG_OOB != 0 && from.remaining() > 0 {
        return urgent::send(socket, &stream, from, flags);
    }
    let (wanted, began) = (from.remaining(), time::ticks());
    note_transfer(began);
    from.know_time(began);
    if socket.phase() == phase::SAN && !wait::is_stale(&stream, began) {
        if let Some(ring) = stream.send_at_once(&from) {
            if ring {
                ring::ring(socket);
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
            if !switchover::turn(stream) {
                return Ok((switchover::send(stream, &mut from), from.remaining() == 0));
            }
            link::look_for_room(stream, from.remaining(), waits(stream, flags));
            // The rest of a large send too: its waits are a part of what that cost.
            let moved = if wanted < stream.endpoint.threshold() as usize {
                stream.send(&mut from)
            } else {
                let limit = waits(stream, flags).then_some(&limit);
                rdma::send(socket, stream, &mut from, limit, began)
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
pub(super) fn send_from(
    socket: &Socket,
    length: usize,
    flags: i32,
    mut fill: impl FnMut(*mut u8, usize) -> Result<usize, Errno>,
) -> Outcome {
    if !setup::is_on_san(socket, Way::Send, length) {
        return Outcome::Pass;
    }
    let Some(stream) = socket.stream() else { return Outcome::Pass };
    if switchover::complete_or_retreat(socket, &stream) {
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
            if !switchover::turn(stream) {
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
        if returning::is_due(stream) {
            detach::look_after(socket, stream);
        }
        if stream.endpoint.has(flag::SENDS_TCP) && switchover::is_given_up(stream) {
            switchover::retreat(socket, stream);
        }
        let waits = waits(stream, flags);
        let held = match turn::lock(socket, stream, flags, sent > 0, limit) {
            Ok(held) => held,
            Err(e) => return finish(sent, e),
        };
        suspend::after(socket, stream, &held, &stream.endpoint.receive.lock);
        if stream.endpoint.has(flag::LEAVING | flag::LEFT) && returning::is_half_left(stream) {
            drop(held);
            if !detach::look_after(socket, stream) && returning::is_half_left(stream) {
                // What goes first has no room.
                let waited = match unable(stream) {
                    Some(e) => Err(e),
                    None if !waits => Err(Errno(libc::EAGAIN)),
                    None => {
                        let how = Wait::new(Event::Write, sent > 0, limit);
                        let left = || !returning::is_half_left(stream);
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
                ends::fail(socket, stream, why);
                continue;
            }
        };
        sent += moved.bytes;
        if stream.endpoint.has(flag::GONE) || ends::is_answered_by_reset(stream) {
            ends::break_pipe(stream);
        } else if moved.ring || stream.endpoint.has(flag::ANCHOR_ENDED) {
            // To a peer that is gone the byte brings back TCP's own reset.
            ring::ring(socket);
            if stream.fabric.is_some() && stream.endpoint.has(flag::ANCHOR_ENDED) {
                link::provoke_reset(socket, stream);
            }
        }
        if done || (sent > 0 && is_broken(stream)) {
            return Outcome::Done(Ok(sent));
        }
        if let Some(e) = moved.fault {
            return finish(sent, e);
        }
        if !waits {
            ring::recover_if_needed(socket, stream);
            if stream.endpoint.has(flag::ASYNC) && happened_before(socket, stream, Event::Write) {
                continue;
            }
            return finish(sent, Errno(libc::EAGAIN));
        }
        let how = Wait::new(Event::Write, sent > 0, limit);
        let ready = || {
            stream.look_for_request();
            ready::writable(stream)
        };
        if let Err(e) = wait::wait(socket, stream, &how, ready) {
            return finish(sent, e);
        }
    }
}

fn is_broken(stream: &Stream) -> bool {
    stream.endpoint.has(flag::RESET | flag::BROKEN_PIPE | flag::SEND_SHUT)
}
