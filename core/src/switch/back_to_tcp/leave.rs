//! The first step of the way back to TCP ([`detach`](super::detach)): from the next byte on this end sends over the
//! anchor. The bytes that the peer has not read go there first, if there is room for all of them. Otherwise the peer reads
//! them where they lie. This step waits for nothing and reads nothing.

use super::resend::{self, Resent};
use super::resend_for_peer;
use crate::provider::shm::{BOTH_SHUT, CLOSED, RETURNED};
use crate::reason::Reason;
use crate::session::{DirectionState, OutEvent, WayOut};
use crate::switch::anchor::link;
use crate::switch::anchor::returning;
use crate::switch::endpoint::flag;
use crate::switch::stream::carrier::News;
use crate::switch::stream::Stream;
use crate::sys::{net, poll, time, Fd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// Leaves, unless this end has left before. True once all bytes that go over TCP first are out. False also while the
/// peer's recall may be on its way: the caller tries again.
pub(super) fn leave(stream: &Stream, anchor: Fd, why: Reason) -> bool {
    let e = stream.endpoint;
    if e.way_out() == WayOut::Left {
        return true;
    }
    let Ok(_held) = stream.lock_send() else { return false };
    if e.way_out() == WayOut::Left {
        return true;
    }
    let DirectionState { left, recalled, pulled, .. } = stream.own().sending.0.direction.state();
    let begun = left || pulled;
    let must = begun || recalled;
    if e.has(impossible_after(stream, begun, must)) || !make_turn_known(stream) {
        return false;
    }
    let state = poll::poll_one(anchor, libc::POLLOUT).unwrap_or(0);
    // Then no peer is there to send to, and the kernel tells the program why.
    let gone = state & (libc::POLLERR | libc::POLLHUP) != 0;
    note_reason(stream, why);
    if (!must && awaits_recall(stream, anchor)) || (!begun && !make_end_known(stream)) {
        return false;
    }
    let resent = say_and_resend(stream, anchor, begun, gone);
    note_left(stream, anchor, resent);
    resent == Resent::All
}

/// The most bytes that a close sends again. The peer reads more faster in the segment.
const MOST_AT_CLOSE: u64 = 64 << 10;

/// Sends over TCP, before the last close, what the peer has not read, if there is room for all of it. So the bytes come
/// whatever program the peer executes. This leaves out an end with unread bytes: its close is a reset.
pub(super) fn leave_with_all(stream: &Stream, anchor: Fd) {
    let is_read = || stream.lock_receive().is_ok_and(|_held| stream.available() == Ok(0));
    if !returning::may_begin_later(stream) || stream.peer_consumed_all() || !is_read() {
        return;
    }
    let Ok(_held) = stream.lock_send() else { return };
    if returning::is_half_left(stream) || !returning::may_begin_later(stream) {
        return;
    }
    let state = poll::poll_one(anchor, libc::POLLOUT).unwrap_or(libc::POLLERR);
    if state & (libc::POLLERR | libc::POLLHUP) == 0 && pull(stream, anchor, MOST_AT_CLOSE) {
        let resent = resend::resend(stream, anchor, false);
        // This comes before the peer hears that this end left: a connection that ends did not go back.
        stream.own().sending.0.finished.fetch_or(CLOSED, SeqCst);
        say_left(stream);
        note_left(stream, anchor, resent);
    }
}

/// Notes what became of the resend. The caller has the send lock.
fn note_left(stream: &Stream, anchor: Fd, resent: Resent) {
    let e = stream.endpoint;
    match resent {
        Resent::All => {
            if e.has(flag::SEND_SHUT) {
                let _ = net::shutdown(anchor, libc::SHUT_WR);
            }
            e.step_out(OutEvent::Out);
            // A thread that waits for room here waits for the kernel's room now.
            stream.wake_own();
        }
        Resent::Part => {
            e.step_out(OutEvent::OutInPart);
        }
        Resent::Unknown => lose(stream, anchor),
    }
}

/// Between hosts, tells the peer that this end turned. False until the peer has heard that. Until then the peer might
/// take bytes that go over TCP from now on for bytes from before the turn.
fn make_turn_known(stream: &Stream) -> bool {
    let has_turned = stream.own().sending.0.direction.state().turned;
    !has_turned || stream.carrier().send(stream, News::Turned)
}

/// Between hosts, tells the peer that this end sends nothing more, if that is so. False until the peer has heard that:
/// TCP's end would come before what the link brings. A peer that takes nothing is not waited for long.
fn make_end_known(stream: &Stream) -> bool {
    let until = stream.endpoint.returning_since.load(Relaxed) + link::LEAVING;
    !stream.endpoint.has(flag::SEND_SHUT) || link::flush(stream) || time::now() >= until
}

/// Gives the flags with which an end of a connection cannot leave any more. `begun`: the end has begun to leave.
/// `must`: it has begun, or the peer wants it to leave.
fn impossible_after(stream: &Stream, begun: bool, must: bool) -> u32 {
    match begun || (must && stream.is_between_hosts()) {
        true => returning::ENDED,
        false => returning::OVER,
    }
}

/// True if this end may send again by itself. Between hosts the link may be faster than TCP: a peer that has read all, and
/// closes, would find bytes there that come too late. So an end does that only if its process may be gone when the peer
/// asks, and only if the link has not told the peer of the stream's end.
fn may_pull(stream: &Stream) -> bool {
    !stream.is_between_hosts() || (is_handed_over(stream) && !stream.endpoint.has(flag::SEND_SHUT))
}

/// True if another program goes on with the connection. The helper, or a relative, may be the one that does what an exec
/// has begun.
fn is_handed_over(stream: &Stream) -> bool {
    stream.endpoint.returning.load(Acquire) == Reason::HandedOver.as_u32()
}

/// How long (ns) an end waits for its peer's recall before it leaves.
const RECALL_TIMEOUT: u64 = 100_000_000;

/// True if the peer may be about to recall: it goes to another program at the same time, and this end cannot send by
/// itself all that is unread there. Once this end has left, the peer gets nothing of that over TCP.
fn awaits_recall(stream: &Stream, anchor: Fd) -> bool {
    let unread = stream.unread_by_peer();
    let fits = || net::room_to_send(anchor).is_none_or(|room| unread <= room);
    let sends_it = || may_pull(stream) && fits();
    let is_closed = || stream.peer().sending.0.finished.load(Relaxed) & CLOSED != 0;
    let is_over = || is_closed() || link::look_for_failure(stream);
    let until = stream.endpoint.returning_since.load(Relaxed) + RECALL_TIMEOUT;
    is_handed_over(stream) && unread > 0 && !sends_it() && !is_over() && time::now() < until
}

/// Tells the peer that this end leaves, and sends the bytes that go over TCP first. `begun`: some of them may be out.
/// `gone`: no peer is there. The caller has the send lock, and the direction's claim.
fn say_and_resend(stream: &Stream, anchor: Fd, begun: bool, gone: bool) -> Resent {
    if begun || gone || !pull(stream, anchor, u64::MAX) {
        return leave_and_resend(stream, anchor, begun, gone);
    }
    // The resend comes before the peer turns to TCP: if this process dies meanwhile, the peer reads on in the segment.
    let resent = resend::resend(stream, anchor, false);
    say_left(stream);
    resent
}

/// True if this end sends again by itself what the peer has not read. Then the peer need not ask for it later, whatever
/// becomes of either end.
fn pull(stream: &Stream, anchor: Fd, most: u64) -> bool {
    let e = stream.endpoint;
    // The peer's kernel answers with a reset what comes after the peer shut both directions down.
    let refuses = stream.peer().sending.0.finished.load(Relaxed) & BOTH_SHUT == BOTH_SHUT;
    let may = may_pull(stream) && e.state().among(flag::BOTH_SHUT) != flag::BOTH_SHUT && !refuses;
    if !may || stream.peer_consumed_all() {
        return false;
    }
    let Some(room) = net::room_to_send(anchor) else { return false };
    let has_room = stream.note_pulled().is_ok_and(|bytes| bytes > 0 && bytes <= room.min(most));
    has_room && stream.own().sending.0.direction.pull()
}

/// Tells the peer that what follows comes over TCP. Gives the direction's word as it was before.
fn say_left(stream: &Stream) -> DirectionState {
    let own = &stream.own().sending.0;
    let before = own.direction.leave();
    // This comes before the ring, so that a thread that the ring wakes finds it.
    own.finished.fetch_or(RETURNED, SeqCst);
    stream.carrier().send(stream, News::Left);
    before
}

fn leave_and_resend(stream: &Stream, anchor: Fd, begun: bool, gone: bool) -> Resent {
    let before = say_left(stream);
    // A process that dies from here on leaves the word without the flag: see `recover_sender`.
    if gone {
        Resent::All
    } else if !resend_for_peer::end_standing_in(stream, anchor) {
        Resent::Part
    } else {
        resend::resend(stream, anchor, begun || before.replayed)
    }
}

/// Notes why the connection goes back, for the program that goes on with it. The first reason counts.
pub(super) fn note_reason(stream: &Stream, why: Reason) {
    let e = stream.endpoint;
    if e.returning.load(Relaxed) == 0 {
        e.returning_since.store(time::now(), Relaxed);
        let _ = e.returning.compare_exchange(0, why.as_u32(), Release, Relaxed);
    }
}

/// Ends the connection (D12): a process died while it sent, and nobody knows how much it sent.
#[cold]
fn lose(stream: &Stream, anchor: Fd) {
    stream.endpoint.error.store(libc::ECONNRESET as u32, Relaxed);
    stream.endpoint.set(flag::RESET);
    net::reset(anchor);
}
