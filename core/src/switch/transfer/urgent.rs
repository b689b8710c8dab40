//! Urgent data (S8): the stream carries the byte, and the mark where it is. The byte goes over the anchor as well, as a
//! doorbell at which the kernel raises SIGURG.

use crate::reason::Reason;
use crate::switch::anchor::doorbell;
use crate::switch::anchor::ends;
use crate::switch::anchor::returning;
use crate::switch::anchor::switchover;
use crate::switch::back_to_tcp::detach;
use crate::switch::buffers::Buffers;
use crate::switch::endpoint::flag;
use crate::switch::outcome::Outcome;
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::{Held, Stream};
use crate::switch::transfer::send as sending;
use crate::switch::transfer::send_queue;
use crate::switch::transfer::told;
use crate::switch::waiting::ring;
use crate::switch::waiting::wait::Limit;
use crate::sys::{net, poll, process, time, Errno};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;

/// How long (ns) it is tried at once what takes a moment, before a call sleeps or gives up.
const MOMENT: u64 = 100_000_000;
/// Between two attempts then (ns).
const PAUSE: u64 = 1_000_000;

/// send with MSG_OOB: the last byte is urgent, the others go before it. `Pass`: over TCP.
pub(in crate::switch) fn send(
    socket: &Socket,
    stream: &Stream,
    from: Buffers,
    flags: i32,
) -> Outcome {
    if switchover::complete_or_retreat(socket, stream) {
        return Outcome::Pass;
    }
    let length = from.remaining();
    let mut last = 0u8;
    let mut rest = from.clone();
    rest.skip(length - 1);
    if let Err(e) = rest.copy_to_slice(std::slice::from_mut(&mut last)) {
        return Outcome::Done(Err(e));
    }
    let mut before = from;
    before.truncate(length - 1);
    if length > 1 {
        match sending::send(socket, before, flags & !libc::MSG_OOB) {
            Outcome::Done(Ok(sent)) if sent == length - 1 => {}
            other => return other,
        }
    }
    match send_last(socket, stream, last, flags) {
        Outcome::Done(Ok(_)) => Outcome::Done(Ok(length)),
        // The rest is sent; what is wrong the next call tells.
        Outcome::Done(Err(_)) if length > 1 => Outcome::Done(Ok(length - 1)),
        Outcome::Pass if length > 1 => {
            let dont_wait = flags & libc::MSG_DONTWAIT;
            let sent = net::send(socket.anchor(), &[last], libc::MSG_OOB | dont_wait);
            Outcome::Done(Ok(length - usize::from(sent.is_err())))
        }
        Outcome::Done(Err(e)) => {
            if e == Errno(libc::EPIPE) && flags & libc::MSG_NOSIGNAL == 0 {
                process::raise_sigpipe();
            }
            Outcome::Done(Err(e))
        }
        Outcome::Pass => Outcome::Pass,
    }
}

/// Sends the urgent byte, and marks it.
fn send_last(socket: &Socket, stream: &Stream, byte: u8, flags: i32) -> Outcome {
    let held = match lock_with_room(socket, stream, flags) {
        ControlFlow::Continue(held) => held,
        ControlFlow::Break(outcome) => return outcome,
    };
    // The mark before the byte: nobody takes that for an ordinary one.
    stream.mark_urgent(byte);
    let one = [libc::iovec { iov_base: (&raw const byte).cast_mut().cast(), iov_len: 1 }];
    let sent = Buffers::new(&one).map(|mut from| stream.send(&mut from));
    // Before the lock is given up: if this process dies now, who comes next rings. And nobody leaves before.
    let ring = stream.signal_read();
    let (listens, failed) = match &sent {
        Ok(Ok(_)) => doorbell::ring_urgent(socket, stream, byte),
        _ => (true, None),
    };
    drop(held);
    if !listens {
        detach::look_after(socket, stream);
    }
    let ring = match sent {
        Ok(Ok(moved)) => ring | moved.ring,
        Ok(Err(why)) => {
            ends::fail(socket, stream, why);
            return Outcome::Done(Err(Errno(libc::ECONNRESET)));
        }
        Err(e) => return Outcome::Done(Err(e)),
    };
    if ring {
        ring::ring(socket);
    }
    Outcome::Done(failed.map_or(Ok(1), Err))
}

/// The send lock, once there is room for a byte and nothing is to leave before it. Else what becomes of the call.
fn lock_with_room<'a>(
    socket: &Socket,
    stream: &'a Stream,
    flags: i32,
) -> ControlFlow<Outcome, Held<'a>> {
    let (limit, fail) = (Limit::default(), |e| ControlFlow::Break(Outcome::Done(Err(e))));
    let mut since = None;
    loop {
        let held = match send_queue::lock(socket, stream, flags, false, &limit) {
            Ok(held) => held,
            Err(e) => return fail(e),
        };
        if socket.phase() != phase::SAN || stream.endpoint.has(flag::LEFT) {
            return ControlFlow::Break(Outcome::Pass);
        }
        if let Some(e) = told::unable(stream) {
            return fail(e);
        }
        let is_full = stream.room() == Ok(0);
        if !is_full && !returning::leaves_first(stream) {
            return ControlFlow::Continue(held);
        }
        let ring = is_full && stream.stall();
        drop(held);
        if ring {
            ring::ring(socket);
        }
        let waited = match is_full {
            true => await_room(socket, stream, flags, &limit),
            false => let_leave(socket, stream, flags, &mut since),
        };
        if let Err(e) = waited {
            return fail(e);
        }
    }
}

/// Waits until there is room, if the call may wait.
fn await_room(socket: &Socket, stream: &Stream, flags: i32, limit: &Limit) -> Result<(), Errno> {
    if send_queue::waits(stream, flags) {
        return sending::wait_for_room(socket, stream, false, limit);
    }
    stream.endpoint.send.stalls.fetch_add(1, Relaxed);
    Err(Errno(libc::EAGAIN))
}

/// This end is leaving for TCP, where what was sent before goes before the byte: sees to that. `since`: when the
/// call first found it so.
fn let_leave(
    socket: &Socket,
    stream: &Stream,
    flags: i32,
    since: &mut Option<u64>,
) -> Result<(), Errno> {
    if detach::advance(socket, stream, Reason::PeerReturned) {
        return Ok(());
    }
    let now = time::now();
    if now - *since.get_or_insert(now) < MOMENT {
        process::yield_now();
    } else if send_queue::waits(stream, flags) {
        time::sleep(PAUSE);
    } else {
        return Err(Errno(libc::EAGAIN));
    }
    Ok(())
}

/// recv with MSG_OOB. `Pass`: the kernel knows of it.
pub(in crate::switch) fn receive(
    socket: &Socket,
    stream: &Stream,
    mut to: Buffers,
    flags: i32,
) -> Outcome {
    if switchover::receives_all_over_tcp(stream) {
        return Outcome::Pass;
    }
    if stream.endpoint.has(flag::URGENT_INLINE) {
        return Outcome::Done(Err(Errno(libc::EINVAL)));
    }
    let keep = flags & libc::MSG_PEEK != 0;
    let Some(byte) = stream.read_urgent(keep).or_else(|| await_mark(socket, stream, keep)) else {
        // What is a doorbell there was read before.
        if detach::tells_urgent_data(socket) {
            return Outcome::Pass;
        }
        return Outcome::Done(Err(Errno(libc::EINVAL)));
    };
    if to.remaining() == 0 {
        return Outcome::Done(Ok(0));
    }
    if flags & libc::MSG_TRUNC != 0 {
        return Outcome::Done(Ok(1));
    }
    Outcome::Done(to.copy_from_slice(&[byte]).map(|()| 1))
}

/// Between hosts the mark may come after the signal: they go different ways.
#[cold]
fn await_mark(socket: &Socket, stream: &Stream, keep: bool) -> Option<u8> {
    stream.fabric?;
    let end = time::now() + MOMENT;
    while poll::poll_one(socket.anchor(), libc::POLLPRI) == Ok(libc::POLLPRI) && time::now() < end {
        stream.poll();
        if let Some(byte) = stream.read_urgent(keep) {
            return Some(byte);
        }
        process::yield_now();
    }
    None
}
