//! The turn of a connection's directions from TCP to the SAN, each at a byte of the stream that both ends know.
//!
//! An end that has [entered](super::setup) the SAN sends over TCP until its peer has entered too, then notes how many bytes
//! that were, and [turns](turn). The peer reads as many from the kernel, and then from the segment. Must not decide
//! whether a connection goes there, nor bring it back ([`detach`](super::detach)) but for an end whose peer never came.

use super::buffers::Buffers;
use super::endpoint::flag;
use super::epoll;
use super::options;
use super::socket::{phase, Socket};
use super::stream::{Broken, Moved, Stream, Take};
use super::structure::Structure;
use super::transfer;
use super::turn::{reentered, waits};
use super::wait::{self, Event, Limit, Wait};
use super::Outcome;
use crate::provider::shm::State;
use crate::reason::Reason;
use crate::registry::Provider;
use crate::sys::user::Access;
use crate::sys::{net, poll, process, Errno};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// How often a turn is tried while the receiver takes bytes off at this very moment: it does not wait there.
const ATTEMPTS: u32 = 200;

/// Sends over the SAN from now on, if it did not and the receiver is ready; true if it does. Send lock.
pub(super) fn turn(stream: &Stream) -> bool {
    let (e, sending) = (stream.endpoint, &stream.own().sending.0);
    if !e.has(flag::SENDS_TCP) {
        return true;
    }
    let word = sending.doorbells.state();
    if !word.turned {
        if !word.entered || word.is_final() {
            return false;
        }
        let Some(position) = net::bytes_written(stream.anchor) else { return false };
        sending.turned_at.store(position, Release);
        let turned = (0..ATTEMPTS).any(|attempt| {
            if attempt > ATTEMPTS / 2 {
                process::yield_now();
            }
            sending.doorbells.turn(position)
        });
        if !turned {
            return false;
        }
    }
    e.clear(flag::SENDS_TCP);
    true
}

/// [`turn`], where no lock is held and nobody waits for it.
pub(super) fn try_turn(stream: &Stream) -> bool {
    !stream.endpoint.has(flag::SENDS_TCP)
        || stream.borrow(&stream.endpoint.send.lock).is_some_and(|_held| turn(stream))
}

/// Sends over TCP what the kernel takes at once. Send lock; the direction has not turned.
pub(super) fn send(stream: &Stream, from: &mut Buffers) -> Moved {
    let mut moved = Moved::default();
    while from.remaining() > 0 {
        let (at, length) = match from.piece(from.remaining(), Access::Read) {
            Ok(piece) => piece,
            Err(e) => return Moved { fault: Some(e), ..moved },
        };
        // SAFETY: the kernel checks what is the program's; nothing here reads it.
        let bytes = unsafe { std::slice::from_raw_parts(at, length) };
        match net::send(stream.anchor, bytes, libc::MSG_DONTWAIT) {
            Ok(sent) => {
                from.skip(sent);
                moved.bytes += sent;
                stream.statistics.sent.bytes.add(sent as u64);
            }
            Err(Errno(libc::EAGAIN)) => break,
            Err(e) => return Moved { fault: Some(e), ..moved },
        }
    }
    moved
}

/// Where the next bytes of the stream are.
enum Inbound {
    /// In the kernel, and so are those behind them.
    Tcp,
    /// So many of them in the kernel, then in the segment.
    Before(u64),
    /// In the segment.
    San,
}

/// Receive lock.
fn inbound(stream: &Stream) -> Result<Inbound, Broken> {
    let (e, sending) = (stream.endpoint, &stream.peer().sending.0);
    let word = sending.doorbells.state();
    if !word.turned {
        return Ok(Inbound::Tcp);
    }
    let at = match e.receive.turned_at.load(Relaxed) {
        0 => {
            // Once: the peer can write there at any time.
            let at = sending.turned_at.load(Acquire);
            if at > word.bells {
                return Err(Broken::Doorbells);
            }
            e.receive.turned_at.store(at + 1, Relaxed);
            at
        }
        noted => noted - 1,
    };
    if sending.urgent.load(Acquire) != 0 {
        // A doorbell with an urgent byte: the kernel counts it in its place.
        let _ = net::set_option(stream.anchor, libc::SOL_SOCKET, libc::SO_OOBINLINE, &1i32);
    }
    let left = match net::bytes_taken(stream.anchor) {
        Some(taken) if taken > at => return Err(Broken::Doorbells),
        Some(taken) => at - taken,
        // The kernel's connection is over; of what it still has the doorbells are the last.
        None => {
            let doorbells = word.bells.saturating_sub(at);
            net::unread(stream.anchor).unwrap_or(0).saturating_sub(doorbells)
        }
    };
    if left > 0 {
        return Ok(Inbound::Before(left));
    }
    e.bells_heard.store(at, Relaxed);
    e.clear(flag::RECEIVES_TCP);
    Ok(Inbound::San)
}

/// Whether a read would not wait, as the kernel says; `None`: it is for the segment to say. For an end that [receives
/// over TCP](flag::RECEIVES_TCP).
#[cold]
pub(super) fn readable(stream: &Stream) -> Option<bool> {
    // Who has the lock receives right now and will know better.
    let Some(held) = stream.borrow(&stream.endpoint.receive.lock) else { return Some(true) };
    if !stream.endpoint.has(flag::RECEIVES_TCP) {
        return None;
    }
    let next = inbound(stream);
    drop(held);
    match next {
        Ok(Inbound::San) => None,
        Ok(_) => Some(poll::poll_one(stream.anchor, libc::POLLIN).is_ok_and(|events| events != 0)),
        Err(_) => Some(true),
    }
}

/// True if all that comes is the kernel's to tell, urgent data and the end too: the peer has not turned.
pub(super) fn receives_all_over_tcp(stream: &Stream) -> bool {
    stream.endpoint.has(flag::RECEIVES_TCP) && !stream.peer().sending.0.doorbells.state().turned
}

/// Bytes that the kernel has for such an end. Receive lock.
pub(super) fn unread(stream: &Stream) -> u64 {
    let there = net::unread(stream.anchor).unwrap_or(0);
    match inbound(stream) {
        Ok(Inbound::Tcp) => there,
        Ok(Inbound::Before(left)) => there.min(left),
        _ => 0,
    }
}

/// Changes with what arrives there.
pub(super) fn arrival_stamp(stream: &Stream) -> u64 {
    let unread = net::unread(stream.anchor).unwrap_or(0);
    unread.wrapping_add(net::bytes_taken(stream.anchor).unwrap_or(0))
}

/// What a look at the kernel for bytes came to.
enum Taken {
    Bytes(usize),
    /// None are there.
    Nothing,
    /// The stream ended in the kernel, or failed with this error.
    End(i32),
    /// All that went over TCP is read.
    Over,
}

fn take(stream: &Stream, to: &mut Buffers, take: Take) -> Result<Taken, Broken> {
    let doorbells = &stream.peer().sending.0.doorbells;
    let most = match inbound(stream)? {
        Inbound::San => return Ok(Taken::Over),
        Inbound::Before(left) => left,
        // If it turns at this moment, that is found the next time.
        Inbound::Tcp if doorbells.take() => u64::MAX,
        Inbound::Tcp if doorbells.state().turned => return Ok(Taken::Bytes(0)),
        // Nobody else takes any under this lock.
        Inbound::Tcp => return Err(Broken::Doorbells),
    };
    let most_here = usize::try_from(most).unwrap_or(usize::MAX);
    let received = match take {
        Take::Discard => net::discard(stream.anchor, to.remaining().min(most_here)),
        Take::Peek | Take::Consume => {
            to.piece(to.remaining(), Access::Write).and_then(|(at, length)| {
                let peek = if take == Take::Peek { libc::MSG_PEEK } else { 0 };
                // SAFETY: the program's memory, which only the kernel writes to, and checks.
                let room = unsafe { std::slice::from_raw_parts_mut(at, length.min(most_here)) };
                net::recv(stream.anchor, room, peek | libc::MSG_DONTWAIT)
            })
        }
    };
    if most == u64::MAX {
        doorbells.took();
    }
    Ok(match received {
        Ok(0) if to.remaining() > 0 => Taken::End(0),
        Ok(n) => {
            to.skip(n);
            if take != Take::Peek {
                stream.statistics.received.bytes.add(n as u64);
            }
            Taken::Bytes(n)
        }
        Err(Errno(libc::EAGAIN)) => Taken::Nothing,
        Err(Errno(error)) => Taken::End(error),
    })
}

/// Receives for an end that [receives over TCP](flag::RECEIVES_TCP). `None`: the rest is the segment's, behind `got` bytes.
#[cold]
pub(super) fn receive(
    socket: &Socket,
    stream: &Stream,
    to: &mut Buffers,
    flags: i32,
    got: &mut usize,
) -> Option<Outcome> {
    let limit = Limit::default();
    let how = match flags {
        f if f & libc::MSG_PEEK != 0 => Take::Peek,
        f if f & libc::MSG_TRUNC != 0 => Take::Discard,
        _ => Take::Consume,
    };
    let wanted = to.remaining();
    loop {
        // The number may be another one by now.
        let stream = &stream.over(socket.anchor());
        let Ok(held) = stream.lock_receive() else {
            return Some(Outcome::Done(Err(reentered(stream, flags))));
        };
        if socket.phase() != phase::SAN {
            return Some(rest(socket, to, *got, flags));
        }
        if !stream.endpoint.has(flag::RECEIVES_TCP) {
            return None;
        }
        let taken = take(stream, to, how);
        drop(held);
        match taken.unwrap_or_else(|why| {
            wait::fail(socket, stream, why);
            Taken::End(0)
        }) {
            Taken::Over => return None,
            Taken::Bytes(n) => {
                // As much as there is: who gets less than it asked for takes it that nothing is left.
                *got += n;
                if to.remaining() == 0 || (n > 0 && how == Take::Peek) {
                    return Some(Outcome::Done(Ok(*got)));
                }
                continue;
            }
            Taken::End(error) if error == libc::EFAULT || error == libc::EINTR => {
                let told = if *got > 0 { Ok(*got) } else { Err(Errno(error)) };
                return Some(Outcome::Done(told));
            }
            Taken::End(error) => {
                note_end(socket, stream, error);
                return None;
            }
            Taken::Nothing if *got > 0 && flags & libc::MSG_WAITALL == 0 => {
                return Some(Outcome::Done(Ok(*got)));
            }
            Taken::Nothing => {}
        }
        if let Some(outcome) = pause(socket, stream, (flags, *got, wanted), &limit) {
            return Some(outcome);
        }
    }
}

/// The kernel's stream ended before the peer turned: nothing comes from the segment.
fn note_end(socket: &Socket, stream: &Stream, error: i32) {
    if error == 0 {
        wait::note_end(socket, stream);
    } else {
        wait::note_error(socket, stream, error);
    }
    let word = stream.peer().sending.0.doorbells.state();
    stream.endpoint.bells_heard.store(word.bells, Relaxed);
    stream.endpoint.set(flag::ANCHOR_ENDED);
    stream.endpoint.clear(flag::RECEIVES_TCP);
}

/// Waits for more, if the call does.
fn pause(
    socket: &Socket,
    stream: &Stream,
    (flags, got, wanted): (i32, usize, usize),
    limit: &Limit,
) -> Option<Outcome> {
    let told = |e| Some(Outcome::Done(if got > 0 { Ok(got) } else { Err(e) }));
    if stream.endpoint.has(flag::RECEIVE_SHUT) {
        return Some(Outcome::Done(Ok(got)));
    }
    if wanted == 0 || !waits(stream, flags) {
        return told(Errno(libc::EAGAIN));
    }
    let how = Wait::new(Event::Read, got > 0, limit);
    match wait::wait(socket, stream, &how, || wait::readable(stream)) {
        Ok(_) => None,
        Err(e) => told(e),
    }
}

/// The socket is the kernel's again.
fn rest(socket: &Socket, to: &Buffers, got: usize, flags: i32) -> Outcome {
    transfer::rest_from_kernel(socket, to.clone(), got, flags)
}

/// True if all that lies on the anchor, and will, is the stream's: the peer returned to TCP before it rang a doorbell.
pub(super) fn is_without_doorbells(stream: &Stream) -> bool {
    let word = stream.peer().sending.0.doorbells.state();
    let at = || stream.peer().sending.0.turned_at.load(Acquire);
    word.is_final() && (!word.turned || word.bells == at())
}

/// Takes an end that entered back to plain TCP, if its peer has not entered, and from then on cannot; true if it is
/// there now. No lock is held.
pub(super) fn retreat(socket: &Socket, stream: &Stream) -> bool {
    if stream.fabric.is_some() || !stream.endpoint.has(flag::SENDS_TCP) {
        return false;
    }
    if !stream.segment.withdraw() {
        return false;
    }
    let mut structure = Structure::lock();
    if socket.phase() == phase::SAN {
        options::give_back_sending(stream, stream.anchor);
        options::give_back_receiving(stream, stream.anchor);
        socket.set_phase(phase::TCP);
        epoll::to_kernel(&mut structure, socket);
        socket.set_reason(Reason::Quiet);
        socket.statistics().set_provider(Provider::Tcp);
    }
    true
}

/// Before what cannot go over both lanes: brings a socket on the SAN wholly there, or wholly back. True: it is on TCP.
pub(super) fn decide(socket: &Socket, stream: &Stream) -> bool {
    if !stream.endpoint.has(flag::SENDS_TCP) || stream.fabric.is_some() {
        return false;
    }
    if retreat(socket, stream) {
        return true;
    }
    // The peer has entered: it stands in the way only while it takes bytes.
    for _ in 0..ATTEMPTS {
        if try_turn(stream) {
            return false;
        }
        process::yield_now();
    }
    false
}

/// True if the peer never came, and does not come any more.
pub(super) fn is_given_up(stream: &Stream) -> bool {
    stream.endpoint.has(flag::SENDS_TCP) && stream.segment.state() == State::Withdrawn
}
