//! The second step of the way back to TCP ([`detach`](super::detach)): this end reads nothing more from the segment.
//! This step sends nothing.

use crate::session::{end_reading, read_twice, DirectionState, InEvent, WayIn};
use crate::switch::anchor::ends;
use crate::switch::anchor::link;
use crate::switch::socket::Socket;
use crate::switch::stream::carrier::News;
use crate::switch::stream::counters::{self, CountedEvent};
use crate::switch::stream::{Broken, Stream};
use crate::sys::{net, Errno};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Ends reading from the segment if all was read. `recalls_unread`: ends it also with bytes unread, which come again
/// over TCP. True once reading has ended.
pub(super) fn read_out(socket: &Socket, stream: &Stream, recalls_unread: bool) -> bool {
    let direction = &stream.peer().sending.0.direction;
    let Ok(_held) = stream.lock_receive() else { return false };
    let unread = || stream.available().map(|unread| unread > 0);
    let stays = || !recalls_unread && (look_for_sleepers(stream) || is_over_here(stream));
    let ended = match stream.is_between_hosts() {
        true => ask(stream, recalls_unread, unread),
        false if stays() => Ok(false),
        false => {
            let passes = || pass_what_comes_again(stream);
            end_reading(direction, recalls_unread, unread, || stop(stream), passes)
        }
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

/// Forgets sleepers that died. True if threads of this end sleep here, and the peer has not left. A recall would take
/// the peer's ring from these threads. The peer also rings when it leaves.
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

/// Takes off TCP the bytes that this end has read before. The peer sends them again because it thought them unread.
/// True once all are off. False: not all are there yet. The caller has the receive lock.
fn pass_what_comes_again(stream: &Stream) -> Result<bool, Broken> {
    if stream.look_after_posted() {
        // The peer's bytes in a posted buffer count once this end has taken the buffer back.
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
                // The connection ended, as the kernel tells next.
                _ => break,
            },
        }
    }
    stream.stop_reading();
    Ok(true)
}

/// Gives how many of those bytes were taken off. The kernel also counts bytes that another process of this end took and
/// did not note before it died. (The kernel does not know the count while urgent data is pending, so this asks only
/// where other processes share the end.)
fn passed(stream: &Stream) -> u64 {
    let noted = stream.endpoint.receive.passed.load(Relaxed);
    if !stream.endpoint.is_shared() {
        return noted;
    }
    let before = stream.peer().sending.0.turned_at.load(Relaxed);
    let taken = net::bytes_taken(stream.anchor).map(|taken| taken.saturating_sub(before));
    taken.map_or(noted, |taken| taken.max(noted))
}

/// Publishes how far this end read. From now on the peer rings for all that it puts there, and learns that nobody reads
/// that.
fn stop(stream: &Stream) {
    stream.stop_reading();
    let _ = counters::raise(stream, CountedEvent::Read);
}

/// Asks the peer's link, which decides over a fabric, and ends reading until the link answers.
fn ask(
    stream: &Stream,
    recalls_unread: bool,
    unread: impl FnOnce() -> Result<bool, Broken>,
) -> Result<bool, Broken> {
    // This comes before the look, so that the look sees all that the peer sent before it left.
    let DirectionState { left, pulled, .. } = stream.peer().sending.0.direction.state();
    if left && pulled {
        return pass_what_comes_again(stream);
    }
    if !left && link::is_closed_by_peer(stream) {
        // TCP tells the peer's end in a moment.
        return Ok(false);
    }
    if unread()? && (left || !recalls_unread) {
        return Ok(false);
    }
    if !left {
        stop(stream);
        stream.endpoint.step_in(InEvent::Asked);
        stream.carrier().send(stream, News::Recalls);
    }
    Ok(true)
}

/// Takes the answer of a peer that was asked. True if it is certain that this end reads nothing more from the segment.
/// Over a fabric the peer's link says that, or says that reading goes on.
pub(super) fn take_answer(stream: &Stream) -> bool {
    let e = stream.endpoint;
    if e.way_in() != WayIn::Asking {
        return e.way_in() == WayIn::Back;
    }
    stream.poll();
    let Ok(_held) = stream.lock_receive() else { return false };
    if e.way_in() == WayIn::Asking {
        let answer = match stream.carrier().answer() {
            Some(true) => Some(InEvent::Granted),
            Some(false) => Some(InEvent::Refused),
            None if link::is_closed_by_peer(stream) => Some(InEvent::Refused),
            None => None,
        };
        match answer {
            Some(answer) => drop(e.step_in(answer)),
            None => drop(stream.carrier().send(stream, News::Recalls)),
        }
    }
    e.way_in() == WayIn::Back
}
