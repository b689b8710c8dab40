//! The second step of the way back to TCP ([`detach`](super::detach)): this end reads nothing more from the segment.
//! This step sends nothing.

use crate::fabric::Link;
use crate::session::{end_reading, read_twice, InEvent, WayIn};
use crate::switch::anchor::ends;
use crate::switch::anchor::link;
use crate::switch::socket::Socket;
use crate::switch::stream::counters::{self, CountedEvent};
use crate::switch::stream::{Broken, Stream};
use crate::sys::{net, Errno};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Ends reading from the segment if all was read, or `recalls_unread`: the rest comes again over TCP. True once it has
/// ended.
pub(super) fn read_out(socket: &Socket, stream: &Stream, recalls_unread: bool) -> bool {
    let direction = &stream.peer().sending.0.direction;
    let Ok(_held) = stream.lock_receive() else { return false };
    let unread = || stream.available().map(|unread| unread > 0);
    let ended = match stream.fabric {
        None if !recalls_unread && (look_for_sleepers(stream) || is_over_here(stream)) => Ok(false),
        None => {
            let passes = || pass_what_comes_again(stream);
            end_reading(direction, recalls_unread, unread, || stop(stream), passes)
        }
        Some(link) => ask(stream, link, recalls_unread, unread),
    };
    match ended {
        Ok(true) => {
            stream.endpoint.step_in(InEvent::ReadOut);
            // All later bytes come over TCP.
            stream.wake_own();
            true
        }
        Ok(false) => false,
        Err(why) => {
            ends::fail(socket, stream, why);
            false
        }
    }
}

/// Forgets sleepers that died; true if threads of this end sleep here, and the peer has not left. A recall would take the
/// peer's ring from them; it rings when it leaves as well.
fn look_for_sleepers(stream: &Stream) -> bool {
    let sleepers = &stream.endpoint.sleepers;
    if !sleepers.any() || stream.peer().sending.0.direction.state().left {
        return false;
    }
    sleepers.forget_the_dead();
    sleepers.any()
}

/// True if the stream ends here: the peer shut its direction down, and has not left. The kernel does not know of the end before
/// the peer looks.
fn is_over_here(stream: &Stream) -> bool {
    stream.is_finished() && !stream.peer().sending.0.direction.state().left
}

/// The peer sends over TCP what it thought unread: takes off what this end has read of that. True once it has; false: not all
/// is there yet. Receive lock.
fn pass_what_comes_again(stream: &Stream) -> Result<bool, Broken> {
    if stream.look_after_posted() {
        // The peer's bytes there count once this end has taken the memory back.
        return Ok(false);
    }
    let receive = &stream.endpoint.receive;
    let from = stream.peer().leaving.0.resent_from.load(Acquire);
    loop {
        let read = receive.total();
        let passed = passed(stream).min(read.checked_sub(from).ok_or(Broken::Position)?);
        match read_twice(read, from, passed).ok_or(Broken::Position)? {
            0 => break,
            left => match net::discard(stream.anchor, left as usize) {
                Ok(taken @ 1..) => receive.passed.store(passed + taken as u64, Relaxed),
                Err(Errno(libc::EAGAIN | libc::EINTR)) => return Ok(false),
                Err(Errno(e)) if ends::is_local(e) => return Ok(false),
                // It ended, as the kernel tells next.
                _ => break,
            },
        }
    }
    stream.stop_reading();
    Ok(true)
}

/// How much of that was taken off. The kernel knows of what another process of this end took that died before it noted it. (It
/// does not know while something urgent is pending, so it is asked only where there are others.)
fn passed(stream: &Stream) -> u64 {
    let noted = stream.endpoint.receive.passed.load(Relaxed);
    if !stream.endpoint.is_shared() {
        return noted;
    }
    let before = stream.peer().sending.0.turned_at.load(Relaxed);
    let taken = net::bytes_taken(stream.anchor).map(|taken| taken.saturating_sub(before));
    taken.map_or(noted, |taken| taken.max(noted))
}

/// Publishes how far this end read. From now on the peer rings for whatever it puts there, and learns that nobody reads
/// it.
fn stop(stream: &Stream) {
    stream.stop_reading();
    let _ = counters::raise(stream, CountedEvent::Read);
}

/// Over a fabric the peer's link decides: asks it, and ends reading until it answers.
fn ask(
    stream: &Stream,
    link: &Link,
    recalls_unread: bool,
    unread: impl FnOnce() -> Result<bool, Broken>,
) -> Result<bool, Broken> {
    // Before the look: what was sent before the peer left is seen by it.
    let left = stream.peer().sending.0.direction.state().left;
    if !left && link::is_closed_by_peer(stream) {
        // Its end is TCP's to tell, in a moment.
        return Ok(false);
    }
    if unread()? && (left || !recalls_unread) {
        return Ok(false);
    }
    if !left {
        stop(stream);
        stream.endpoint.step_in(InEvent::Asked);
        link.ask_again();
    }
    Ok(true)
}

/// Takes the answer of a peer that was asked; true if it is certain that this end reads nothing more here, once it does not.
/// Over a fabric the peer's link says so, or that reading is to go on.
pub(super) fn take_answer(stream: &Stream) -> bool {
    let e = stream.endpoint;
    let Some(link) = stream.fabric.filter(|_| e.way_in() == WayIn::Asking) else {
        return e.way_in() == WayIn::Back;
    };
    stream.poll();
    let Ok(_held) = stream.lock_receive() else { return false };
    if e.way_in() == WayIn::Asking {
        let answer = match link.answer() {
            Some(true) => Some(InEvent::Granted),
            Some(false) => Some(InEvent::Refused),
            None if link::is_closed_by_peer(stream) => Some(InEvent::Refused),
            None => None,
        };
        match answer {
            Some(answer) => drop(e.step_in(answer)),
            None => link.ask_again(),
        }
    }
    e.way_in() == WayIn::Back
}
