//! Receives while the peer still sends over TCP, because its direction has not turned to the SAN. Also receives the
//! rest of a call when the connection goes back to TCP.

use crate::session::transfer::Call;
use crate::session::{InEvent, WayIn};
use crate::switch::anchor::broken;
use crate::switch::anchor::ends;
use crate::switch::anchor::ready;
use crate::switch::anchor::returning;
use crate::switch::anchor::switchover::{self, Taken};
use crate::switch::back_to_tcp::detach;
use crate::switch::buffers::Buffers;
use crate::switch::endpoint::flag;
use crate::switch::outcome::Outcome;
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::counters::CountedEvent;
use crate::switch::stream::{Broken, Stream, Take};
use crate::switch::transfer::send_queue::{reentered, waits};
use crate::switch::transfer::told::reset_error;
use crate::switch::waiting::ring;
use crate::switch::waiting::wait::{self, Limit, Wait};
use crate::sys::{blocking, file, net, poll, Errno, Fd};

/// How long (ns) a thread sleeps between looks for more bytes behind those that it has looked at.
const NAP_OF_LOOKER: u64 = 2_000_000;

/// Receives for an end that [receives over TCP](WayIn::is_over_tcp). `None`: the rest lies in the segment, behind `got`
/// bytes.
#[cold]
pub(super) fn receive(
    socket: &Socket,
    stream: &Stream,
    to: &mut Buffers,
    flags: i32,
    got: &mut usize,
    limit: &Limit,
) -> Option<Outcome> {
    let how = match flags {
        f if f & libc::MSG_PEEK != 0 => Take::Peek,
        f if f & libc::MSG_TRUNC != 0 => Take::Discard,
        _ => Take::Consume,
    };
    loop {
        // The socket may have another number by now.
        let stream = &stream.over(socket.anchor());
        if returning::is_half_left(stream) || stream.endpoint.way_in() == WayIn::Back {
            detach::look_after(socket, stream);
        }
        let Ok(held) = stream.lock_receive() else {
            return Some(Outcome::Done(Err(reentered(stream, flags))));
        };
        if socket.phase() != phase::SAN {
            return Some(rest_from_kernel(socket, to.clone(), *got, flags, limit));
        }
        if !stream.endpoint.way_in().is_over_tcp() {
            return None;
        }
        if *got > 0 && net::is_at_mark(stream.anchor) {
            // A read ends before an urgent byte.
            return Some(Outcome::Done(Ok(*got)));
        }
        let mut rings = false;
        let taken = match how {
            Take::Peek => peek(stream, &mut to.clone(), &mut rings),
            how => switchover::take(stream, to, how),
        };
        drop(held);
        if rings {
            ring::ring(socket);
        }
        let is_back = || stream.endpoint.way_in() == WayIn::Back;
        match taken.unwrap_or_else(|why| {
            ends::fail(socket, stream, why);
            Taken::End(0)
        }) {
            Taken::Over => return None,
            // This end already knows of the reset. The kernel may not know of it, because TCP_USER_TIMEOUT ends a
            // connection in this library. Bytes in the segment would have come before the reset.
            Taken::Nothing | Taken::End(_) | Taken::Cut(_)
                if stream.endpoint.has(flag::RESET) && net::unread(stream.anchor) == Some(0) =>
            {
                let told = if *got > 0 { Ok(*got) } else { reset_error(stream, Ok(0)) };
                return Some(Outcome::Done(told));
            }
            Taken::Bytes(n) if how == Take::Peek && n > 0 => {
                if n == to.remaining() || !looks_on(socket, stream, flags, limit) {
                    return Some(Outcome::Done(Ok(n)));
                }
                continue;
            }
            Taken::Bytes(n) => {
                // The call takes all that is there: a program that gets less than it asked for assumes that nothing is
                // left.
                *got += n;
                // The call leaves an error behind these bytes in the kernel, because the kernel would tell the error
                // only once.
                let is_all = || {
                    is_back()
                        && net::unread(stream.anchor) == Some(0)
                        && (flags & libc::MSG_WAITALL == 0 || has_error(stream.anchor))
                };
                if to.remaining() == 0 || is_all() {
                    return Some(Outcome::Done(Ok(*got)));
                }
                continue;
            }
            Taken::End(0) if is_back() => {
                return Some(Outcome::Done(Ok(*got)));
            }
            Taken::End(error) if matches!(error, libc::EFAULT | libc::EINTR) || is_back() => {
                let told = if *got > 0 { Ok(*got) } else { Err(Errno(error)) };
                return Some(Outcome::Done(told));
            }
            Taken::End(error) => {
                note_end(socket, stream, error);
                return None;
            }
            Taken::Cut(error) => {
                broken::lose_rest(socket, stream, error);
                let told = if *got > 0 { Ok(*got) } else { reset_error(stream, Ok(0)) };
                return Some(Outcome::Done(told));
            }
            Taken::Nothing if *got > 0 && flags & libc::MSG_WAITALL == 0 => {
                return Some(Outcome::Done(Ok(*got)));
            }
            Taken::Nothing => {}
        }
        if let Some(outcome) = pause(socket, stream, (flags, *got), limit) {
            return Some(outcome);
        }
    }
}

/// Looks at the bytes that are there on both sides of the turn. `rings`: the caller has to ring. The caller has the
/// receive lock.
fn peek(stream: &Stream, to: &mut Buffers, rings: &mut bool) -> Result<Taken, Broken> {
    let taken = switchover::take(stream, to, Take::Peek)?;
    let Taken::Bytes(seen) = taken else { return Ok(taken) };
    if to.remaining() == 0 || !switchover::look_for_rest(stream, seen as u64) {
        return Ok(taken);
    }
    let behind = stream.receive(to, Take::Peek, Call { number: 0, directly: false })?;
    *rings = behind.ring;
    Ok(Taken::Bytes(seen + behind.bytes))
}

/// Notes that the kernel's stream ended before the peer turned: nothing comes from the segment.
fn note_end(socket: &Socket, stream: &Stream, error: i32) {
    if error == 0 {
        ends::note_end(socket, stream);
    } else {
        ends::note_error(socket, stream, error);
    }
    stream.endpoint.set(flag::ANCHOR_ENDED);
    stream.endpoint.step_in(InEvent::Turned);
}

/// Waits for more bytes, if the call may wait.
fn pause(
    socket: &Socket,
    stream: &Stream,
    (flags, got): (i32, usize),
    limit: &Limit,
) -> Option<Outcome> {
    let told = |e| Some(Outcome::Done(if got > 0 { Ok(got) } else { Err(e) }));
    if stream.endpoint.has(flag::RECEIVE_SHUT) {
        return Some(Outcome::Done(Ok(got)));
    }
    if !waits(stream, flags) {
        return told(Errno(libc::EAGAIN));
    }
    let how = Wait::new(CountedEvent::Read, got > 0, limit);
    match wait::wait(socket, stream, &how, || ready::poll_readable(stream)) {
        Ok(_) => None,
        Err(e) => told(e),
    }
}

/// Sleeps for a moment in a call that looks at fewer bytes than it wants. Nothing reports more bytes behind those that
/// lie there, so the call looks by the clock. False if the call returns.
#[cold]
fn looks_on(socket: &Socket, stream: &Stream, flags: i32, limit: &Limit) -> bool {
    if !looks_at_all(flags) || !waits(stream, flags) {
        return false;
    }
    let is_over = ends::ended(stream)
        || stream.endpoint.has(flag::RECEIVE_SHUT)
        || net::is_ended_by_peer(socket.anchor());
    let left = limit.left(socket, CountedEvent::Read);
    if is_over || left == Some(0) {
        return false;
    }
    let nap = left.map_or(NAP_OF_LOOKER, |left| left.min(NAP_OF_LOOKER));
    blocking::wait_for(&mut [], Some(nap), limit.mask()).is_ok()
}

/// True if the call looks, and returns only once all bytes that it wants are there.
fn looks_at_all(flags: i32) -> bool {
    const ALL: i32 = libc::MSG_PEEK | libc::MSG_WAITALL;
    flags & ALL == ALL
}

/// Waits for the rest of the time-out of a call that has waited before, because the kernel does not know that rest.
/// Gives the error if nothing came.
fn waits_out(socket: &Socket, limit: &Limit) -> Option<Errno> {
    let left = limit.rest()?;
    let anchor = socket.anchor();
    let mut one = [libc::pollfd { fd: anchor, events: libc::POLLIN, revents: 0 }];
    match blocking::wait_for(&mut one, Some(left), limit.mask()) {
        // The kernel does not report fewer bytes than SO_RCVLOWAT.
        Ok(0) => (net::unread(anchor) == Some(0)).then_some(Errno(libc::EAGAIN)),
        slept => slept.err(),
    }
}

/// True if the kernel has an error of the connection to tell.
fn has_error(anchor: Fd) -> bool {
    poll::poll_one(anchor, 0).is_ok_and(|events| events & libc::POLLERR != 0)
}

/// Goes on with a receive that has `got` bytes, on a socket that returned to TCP.
#[cold]
pub(super) fn rest_from_kernel(
    socket: &Socket,
    mut to: Buffers,
    mut got: usize,
    flags: i32,
    limit: &Limit,
) -> Outcome {
    if got == 0 || looks_at_all(flags) {
        return waits_out(socket, limit).map_or(Outcome::Pass, |why| Outcome::Done(Err(why)));
    }
    let takes_all = flags & (libc::MSG_WAITALL | libc::MSG_PEEK) == libc::MSG_WAITALL;
    let anchor = socket.anchor();
    let waits = flags & libc::MSG_DONTWAIT == 0 && !file::is_nonblocking(anchor);
    while takes_all && to.remaining() > 0 {
        let time = if waits { limit.rest() } else { Some(0) };
        // An urgent byte alone is not reported as data.
        let events = libc::POLLIN | libc::POLLPRI;
        let mut one = [libc::pollfd { fd: anchor, events, revents: 0 }];
        // A read that has bytes ends before an urgent byte. A new read of the kernel's would not know that this call
        // has bytes.
        if blocking::poll(&mut one, time, limit.mask()) != Ok(1) || net::is_at_mark(anchor) {
            break;
        }
        if one[0].revents & libc::POLLERR != 0 && net::unread(anchor) == Some(0) {
            // The next call has to learn of the error, and the kernel tells it only once.
            break;
        }
        match to.with_pieces(usize::MAX, |pieces| net::receive_into(anchor, pieces, 0)) {
            Ok(n) if n > 0 => {
                to.skip(n);
                got += n;
            }
            _ => break,
        }
    }
    Outcome::Done(Ok(got))
}
