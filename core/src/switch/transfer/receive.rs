//! recv in all its forms, with TCP's rules for flags, waiting and errors.

use crate::session::transfer::Call;
use crate::switch::anchor::ends;
use crate::switch::anchor::ready;
use crate::switch::anchor::returning;
use crate::switch::back_to_tcp::detach;
use crate::switch::buffers::Buffers;
use crate::switch::endpoint::flag;
use crate::switch::outcome::Outcome;
use crate::switch::setup;
use crate::switch::socket::traffic::{note_transfer, Way};
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::batching::let_sender_ahead;
use crate::switch::stream::counters::Event;
use crate::switch::stream::{Broken, Moved, Posted, Stream, Take};
use crate::switch::transfer::from_tcp;
use crate::switch::transfer::suspend;
use crate::switch::transfer::told::{happened_before, reset_error};
use crate::switch::transfer::turn::{reentered, waits};
use crate::switch::transfer::urgent;
use crate::switch::waiting::ring;
use crate::switch::waiting::wait::{self, Limit, Wait};
use crate::sys::{process, time, Errno};
use std::sync::atomic::Ordering::Relaxed;

/// How long (ns) a receive that may not wait looks again for bytes that the program saw before.
const LOOK_TIME: u64 = 100_000_000;

/// recv in all its forms. `Pass`: the socket is on plain TCP.
#[inline]
pub fn receive(socket: &Socket, mut to: Buffers, flags: i32) -> Outcome {
    if !setup::is_on_san(socket, Way::Receive, to.remaining()) {
        return Outcome::Pass;
    }
    let Some(stream) = socket.stream() else { return Outcome::Pass };
    let began = time::ticks();
    note_transfer(began);
    to.know_time(began);
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Outcome::Pass;
    }
    if flags & libc::MSG_OOB != 0 {
        return urgent::receive(socket, &stream, to, flags);
    }
    let mut got = 0;
    if stream.endpoint.has(flag::RECEIVES_TCP) {
        if let Some(done) = from_tcp::receive(socket, &stream, &mut to, flags, &mut got) {
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
    let_sender_ahead(stream, wanted);
    loop {
        if waited_at.is_some() && receive_at_once(socket, stream, &mut to, flags, &mut got) {
            return Outcome::Done(Ok(got));
        }
        let ended = ends::ended(stream);
        let received = match take {
            Take::Peek => receive_once(socket, stream, &mut to.clone(), take, call, false),
            _ => receive_once(socket, stream, &mut to, take, call, got > 0),
        };
        match received {
            Err(Failure::Busy) => return Outcome::Done(Err(reentered(stream, flags))),
            Err(Failure::Broken(why)) => {
                // Where the bytes of this attempt lie nobody knows.
                ends::fail(socket, stream, why);
                let told = if got > 0 { Ok(got) } else { reset_error(stream, Ok(0)) };
                return Outcome::Done(told);
            }
            Ok(moved) => {
                if moved.ring {
                    ring::ring(socket);
                }
                got = if take == Take::Peek { moved.bytes } else { got + moved.bytes };
                if let Some(e) = moved.fault {
                    return Outcome::Done(if got > 0 { Ok(got) } else { Err(e) });
                }
                if got == wanted && (wanted > 0 || ready::readable(stream)) {
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
            && !returning::is_due(stream)
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
        if returning::is_due(stream) && detach::look_after(socket, stream) {
            return from_tcp::rest_from_kernel(socket, to, got, flags);
        }
        if ended || stream.endpoint.has(flag::RECEIVE_SHUT) {
            if got == 0 && stream.endpoint.has(flag::RESET) {
                return Outcome::Done(reset_error(stream, Ok(0)));
            }
            ends::show_ends(socket, stream);
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
            if ends::ended(stream) {
                continue;
            }
            ring::recover_if_needed(socket, stream);
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
                Take::Peek if got > 0 => stream.arrival_stamp() != stamp || ends::ended(stream),
                _ if hinted => ready::announced(stream),
                _ => posted.as_ref().is_some_and(Posted::is_over) || ready::readable(stream),
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
            return from_tcp::rest_from_kernel(socket, to, got, flags);
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
        ring::ring(socket);
    }
    *got += bytes;
    true
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
        ring::ring(socket);
    }
    posted
}

/// A receive that must wait although the program gave no room (recv of zero bytes): handled by
/// [`receive`]. This is the other oddity: read and readv of zero bytes return at once.
pub fn read(socket: &Socket, to: Buffers, flags: i32) -> Outcome {
    if to.remaining() == 0 {
        return Outcome::Done(Ok(0));
    }
    receive(socket, to, flags)
}
