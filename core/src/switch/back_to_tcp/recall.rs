//! Connections that go back to TCP for a program, or process, that cannot read from the segment. This end recalls what
//! was not read yet, and the peer sends that again over TCP. [`handing_on`](crate::switch::handing_on) knows which
//! program or process goes on, and why.

use super::detach::{finish_leaving, return_anchor, WaitForRoom};
use super::leave::note_reason;
use super::read_out::{read_out, take_answer};
use crate::reason::Reason;
use crate::session::{InEvent, OutEvent, WayOut};
use crate::switch::anchor::ends;
use crate::switch::anchor::link;
use crate::switch::anchor::returning;
use crate::switch::anchor::switchover;
use crate::switch::endpoint::flag;
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::Stream;
use crate::sys::{net, time, Fd};

/// Stops reading from the segment for a program that cannot read there. Unread bytes come again over TCP as soon as the
/// peer looks. [`return_after_recall`] follows. False if this end cannot stop reading. This end recalls the peer's
/// direction before it leaves its own, because the peer follows at once and then sends nothing again.
pub(in crate::switch) fn recall_unread(socket: &Socket, stream: &Stream, why: Reason) -> bool {
    let e = stream.endpoint;
    if e.way_in().is_read_out() {
        return true;
    }
    ends::look(socket, stream);
    let is_read_out = comes_again(stream) && read_out(socket, stream, true);
    if is_read_out {
        // The reason is for the program that goes on with the connection.
        note_reason(stream, why);
    }
    is_read_out
}

/// Like [`return_anchor`], after [`recall_unread`].
fn return_after_recall(
    socket: &Socket,
    stream: &Stream,
    anchor: Fd,
    why: Reason,
    until: u64,
) -> bool {
    finish_leaving(socket, stream, anchor, why, until);
    return_anchor(socket, stream, anchor, why)
}

/// How long (ns), with pauses, this end tries again at least where something is under way.
const LONGEST_PAUSE: u64 = 200_000_000;
/// The same time where the peer has to answer.
const LONGEST_PAUSE_BETWEEN_HOSTS: u64 = 2_000_000_000;
/// The first of the pauses (ns), and the longest that they grow to: a peer that never answers makes no work.
const FIRST_PAUSE: u64 = 1_000_000;
const LAST_PAUSE: u64 = 100_000_000;

/// How long (ns), with naps, a peer that sleeps may take to tell TCP that it shut its direction down.
const END_TIMEOUT: u64 = 5_000_000;
const END_NAP: u64 = 20_000;

/// Waits until the kernel knows the end of the stream, or until then (clock, ns). The program could learn of that end
/// here, and from now on only the kernel tells it.
fn await_end(stream: &Stream, anchor: Fd, until: u64) {
    while stream.is_finished() && !net::is_ended_by_peer(anchor) && time::now() < until {
        time::sleep(END_NAP);
    }
}

/// Brings a connection back to TCP for a program that cannot read from the segment. False if it has to stay. The socket
/// need not be in this process's books. `anchor` is the socket under any number. `began`: when the program's call began to
/// bring connections back (clock, ns). All of them together have the time that one has, so that peers which do not read
/// hold the call up no longer the more they are.
pub(in crate::switch) fn bring_back(
    socket: &Socket,
    stream: &Stream,
    anchor: Fd,
    why: Reason,
    (wait, began): (WaitForRoom, u64),
) -> bool {
    let stream = &stream.over(anchor);
    let longest =
        if stream.is_between_hosts() { LONGEST_PAUSE_BETWEEN_HOSTS } else { LONGEST_PAUSE };
    let until = |time: u64| began.saturating_add(time);
    let mut pause = FIRST_PAUSE;
    loop {
        // This comes before the try: after that time nothing keeps this end from leaving.
        let is_last = time::now() >= until(longest.max(wait.time()));
        if socket.phase() != phase::SAN || switchover::complete_or_retreat(socket, stream) {
            return link::deliver_all(stream);
        }
        // The peer may recall, or answer.
        stream.poll();
        if recall_unread(socket, stream, why)
            && take_answer(stream)
            && return_after_recall(socket, stream, anchor, why, until(wait.time()))
        {
            // Connections of a call that does not wait share this time, too.
            let from = time::now().min(until(wait.time()));
            await_end(stream, anchor, from + END_TIMEOUT);
            return link::deliver_all(stream);
        }
        if leave_ended(stream, anchor, why) {
            return true;
        }
        if is_last || !is_under_way(stream) {
            return false;
        }
        time::sleep(pause);
        // A peer that answers does so within a few pauses.
        pause = (pause + pause / 4).min(LAST_PAUSE);
    }
}

/// Leaves a connection that ended to the kernel, if all that came was read and the program was told of any error. Then
/// the program can learn only what the kernel says of the anchor.
fn leave_ended(stream: &Stream, anchor: Fd, why: Reason) -> bool {
    let e = stream.endpoint;
    let is_told = !e.has(returning::ENDED) || e.has(flag::ERROR_REPORTED);
    let is_under_way = returning::is_half_left(stream) || returning::is_kernels(stream);
    if !e.has(flag::ANCHOR_ENDED) || !is_told || is_under_way {
        return false;
    }
    let Ok(_held) = stream.lock_receive() else { return false };
    if stream.available() != Ok(0) {
        return false;
    }
    note_reason(stream, why);
    if e.has(flag::SEND_SHUT) {
        let _ = net::shutdown(anchor, libc::SHUT_WR);
    }
    if e.has(flag::ERROR_REPORTED) {
        // The program is told of an error once.
        net::forget_error(anchor);
    }
    e.step_out(OutEvent::Out);
    e.step_in(InEvent::ReadOut);
    true
}

/// True if the peer sends again what is recalled, and this end's kernel takes it. A peer that is gone sends nothing.
fn comes_again(stream: &Stream) -> bool {
    !stream.endpoint.has(returning::OVER) && !is_refused(stream)
}

/// True if this end's kernel would answer with a reset what the peer sends again: this end shut both directions down.
fn is_refused(stream: &Stream) -> bool {
    let is_shut = stream.endpoint.state().among(flag::BOTH_SHUT) == flag::BOTH_SHUT;
    !stream.is_between_hosts() && is_shut && stream.has_unread()
}

/// True if a return has begun, or may begin later.
fn is_under_way(stream: &Stream) -> bool {
    let state = stream.endpoint.state();
    if !state.way_in().is_read_out() && !comes_again(stream) && stream.has_unread() {
        return false;
    }
    state.way_out() == WayOut::Left
        || state.way_in().is_read_out()
        || returning::may_begin_later(stream)
}
