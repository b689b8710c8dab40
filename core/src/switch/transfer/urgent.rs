//! Urgent data (S8): the stream carries the byte, and the mark where it is. The byte goes over the anchor as well, as a
//! doorbell at which the kernel raises SIGURG.

use crate::reason::Reason;
use crate::switch::anchor::doorbell;
use crate::switch::anchor::ends;
use crate::switch::anchor::ready;
use crate::switch::anchor::returning;
use crate::switch::anchor::switchover;
use crate::switch::anchor::untaken_offer;
use crate::switch::back_to_tcp::detach;
use crate::switch::buffers::Buffers;
use crate::switch::endpoint::flag;
use crate::switch::outcome::Outcome;
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::counters::Event;
use crate::switch::stream::Stream;
use crate::switch::transfer::send as sending;
use crate::switch::transfer::told;
use crate::switch::transfer::turn;
use crate::switch::waiting::ring;
use crate::switch::waiting::wait::{self, Limit, Wait};
use crate::sys::{net, poll, process, time, Errno};
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
    if socket.is_pending() && untaken_offer::withdraw(socket) {
        // Over both ways it might overtake the rest.
        return Outcome::Pass;
    }
    if switchover::complete_or_retreat(socket, stream) {
        return Outcome::Pass;
    }
    let length = from.remaining();
    let mut last = 0u8;
    let mut rest = from.clone();
    rest.skip(length - 1);
    // SAFETY: one byte remains, and there is room for one.
    if let Err(e) = unsafe { rest.copy_out(&mut last, 1) } {
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

fn send_last(socket: &Socket, stream: &Stream, byte: u8, flags: i32) -> Outcome {
    let limit = Limit::default();
    let mut since = 0;
    let held = loop {
        let held = match turn::lock(socket, stream, flags, false, &limit) {
            Ok(held) => held,
            Err(e) => return Outcome::Done(Err(e)),
        };
        if socket.phase() != phase::SAN || stream.endpoint.has(flag::LEFT) {
            return Outcome::Pass;
        }
        if let Some(e) = told::unable(stream) {
            return Outcome::Done(Err(e));
        }
        if stream.room() == Ok(0) {
            let ring = stream.stall();
            drop(held);
            if ring {
                ring::ring(socket);
            }
            if !turn::waits(stream, flags) {
                stream.endpoint.send.stalls.fetch_add(1, Relaxed);
                return Outcome::Done(Err(Errno(libc::EAGAIN)));
            }
            let how = Wait::new(Event::Write, false, &limit);
            let ready = || {
                stream.look_for_request();
                ready::writable(stream)
            };
            if let Err(e) = wait::wait(socket, stream, &how, ready) {
                return Outcome::Done(Err(e));
            }
            continue;
        }
        if !returning::leaves_first(stream) {
            break held;
        }
        // What was sent before goes before it there.
        drop(held);
        if !detach::advance(socket, stream, Reason::PeerReturned) {
            let now = time::now();
            since = if since == 0 { now } else { since };
            if now - since < MOMENT {
                process::yield_now();
            } else if turn::waits(stream, flags) {
                time::sleep(PAUSE);
            } else {
                return Outcome::Done(Err(Errno(libc::EAGAIN)));
            }
        }
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

/// recv with MSG_OOB. `Pass`: the kernel knows of it.
pub(in crate::switch) fn receive(
    socket: &Socket,
    stream: &Stream,
    mut to: Buffers,
    flags: i32,
) -> Outcome {
    if socket.is_pending() || switchover::receives_all_over_tcp(stream) {
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
    // SAFETY: one byte is there, and there is room for one.
    Outcome::Done(unsafe { to.copy_in(&byte, 1) }.map(|()| 1))
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
