//! What is different where the peer is on another host, and a [`Link`] plays its part.
//!
//! A fork child uses such a connection through its parent's link. It
//! [goes back to TCP](crate::switch::back_to_tcp::detach) with the help of both ends' links.

use crate::fabric::{self, Link};
use crate::provider::shm::{AgreementState, CLOSED, FAILED, FINISHED};
use crate::registry;
use crate::session::WayIn;
use crate::switch::anchor::broken;
use crate::switch::anchor::returning;
use crate::switch::endpoint::flag;
use crate::switch::socket::Socket;
use crate::switch::stream::Stream;
use crate::sys::{file, hidden, net, time, Fd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// How long (ns) a sleeper sleeps at a time if its link has failed, or belongs to another process, which may have died.
const LONGEST_NAP: u64 = 500_000_000;
/// How long (ns) a process that exits, or a fork relative that closes, waits for the peer to take
/// what it sent, or for control that is on its way.
pub(in crate::switch) const LINGER: u64 = 5_000_000_000;
pub(in crate::switch) const PAUSE: u64 = 50_000;
/// How long (ns) a write of one of several processes waits to hear of room.
const HEARS_OF_ROOM: u64 = 20_000_000;
/// How long (ns) a process that leaves waits until relatives that use its connections take control.
pub(in crate::switch) const LEAVING: u64 = 1_000_000_000;

/// What `sanctl` shows as the carrier of such a connection.
pub(in crate::switch) fn provider() -> registry::Provider {
    if fabric::is_of_this_host() {
        registry::Provider::Shm
    } else {
        registry::Provider::Verbs
    }
}

/// The link, unless the ends agreed not to use it: then all is TCP's.
fn used<'a>(stream: &Stream<'a>) -> Option<&'a Link> {
    stream.link().filter(|link| !link.is_withdrawn())
}

/// True if this process has the queue pair of the link. On one host, where no link is, it is true as well.
pub(in crate::switch) fn is_controlled_here(stream: &Stream) -> bool {
    stream.link().is_none_or(|link| !link.is_foreign())
}

/// Looks whether the link failed. One that ended because its peer did has failed too.
pub(in crate::switch) fn look_for_failure(stream: &Stream) -> bool {
    stream.link().is_some_and(Link::look_for_failure)
}

/// How long to sleep at most on a connection over a link.
pub(in crate::switch) fn longest_nap(stream: &Stream) -> Option<u64> {
    let link = stream.link()?;
    let may_be_broken = link.has_failed() && !stream.endpoint.has(flag::ANCHOR_ENDED | flag::RESET);
    // Where the anchor is not looked at, it tells nothing of a relative that died either.
    let is_silent = stream.endpoint.has(broken::SHOWS_END);
    (may_be_broken || is_silent || link.is_foreign()).then_some(LONGEST_NAP)
}

/// Notes what TCP cannot tell: that the peer [left bytes unread](is_unread_behind_end), and that the link is broken.
pub(in crate::switch) fn look(socket: &Socket, stream: &Stream) {
    let Some(link) = stream.link() else { return };
    if stream.segment.agreement().state() != AgreementState::Settled {
        // All is TCP's.
        return;
    }
    let is_failed = link.look_for_failure();
    if is_unread_behind_end(stream) {
        broken::break_pipe(stream);
    }
    if !is_failed || stream.endpoint.has(flag::ANCHOR_ENDED | flag::RESET) {
        return;
    }
    if !link.look_for_break() {
        // TCP's end tells of it.
        return;
    }
    let error = link.error();
    log::info!("fd {}: connection ended, its link is broken: {error}", socket.anchor());
    stream.endpoint.error.store(error.0 as u32, Relaxed);
    stream.endpoint.set(flag::RESET | flag::ANCHOR_ENDED);
    registry::set_state(socket.statistics(), registry::State::Failed);
    // The peer, and every thread that sleeps on the anchor, has to learn of it.
    net::reset(socket.anchor());
}

/// [`Stream::has_space`] once more after a look at the fabric.
#[inline]
pub(in crate::switch) fn poll_for_space(stream: &Stream) -> bool {
    stream.poll();
    stream.is_between_hosts() && stream.has_space()
}

/// Before a send of `wanted` bytes that waits for room: if there is no room for all, takes what the peer told of what it
/// read since. (Where TCP has room for all of a write, none of another process's comes in between.) Send lock.
#[inline]
pub(in crate::switch) fn look_for_room(stream: &Stream, wanted: usize) {
    if !stream.is_between_hosts() {
        return;
    }
    let may_fit = wanted <= stream.limit() as usize;
    let lacks_room = || stream.room().is_ok_and(|room| room < wanted as u64);
    if may_fit && lacks_room() {
        stream.carrier().receive_all();
        if stream.endpoint.is_shared() && lacks_room() {
            await_room(stream, lacks_room);
        }
    }
}

/// Waits a moment for the room that the peer has made already, and this end has not heard of.
#[cold]
fn await_room(stream: &Stream, lacks_room: impl Fn() -> bool) {
    let until = time::now() + HEARS_OF_ROOM;
    while lacks_room() && !look_for_failure(stream) && time::now() < until {
        time::sleep(PAUSE);
        stream.carrier().receive_all();
    }
}

/// Another descriptor keeps TCP's end back until the peer has everything.
pub(in crate::switch) fn hold_anchor(socket: &Socket, stream: &Stream) {
    if let (Some(link), Some(anchor)) = (stream.link(), another_anchor(socket)) {
        link.keep_open(anchor);
    }
}

/// Ends both directions of the anchor; the receiving one is shut already. The end of what this end sends may not overtake what goes over a link: a peer that
/// hears that end first takes the stream for ended.
pub(in crate::switch) fn shut_anchor(socket: &Socket, stream: &Stream) {
    if flush(stream) {
        let _ = net::shutdown(socket.anchor(), libc::SHUT_RDWR);
    } else if is_controlled_here(stream) {
        hold_anchor(socket, stream);
    }
}

/// One more descriptor of the anchor, kept from the program.
fn another_anchor(socket: &Socket) -> Option<Fd> {
    let anchor = file::duplicate_high(socket.anchor()).ok()?;
    let _ = file::set_descriptor_flags(anchor, libc::FD_CLOEXEC);
    Some(hidden::keep(anchor))
}

/// Takes in what came before an end that TCP tells, so that it counts before the end.
pub(in crate::switch) fn take_in_before_end(stream: &Stream) {
    if let Some(link) = used(stream) {
        link.catch_up();
    }
}

/// Finds out whether the peer, of which this end awaits an answer, is gone: then none comes.
pub(in crate::switch) fn look_for_answer(stream: &Stream) {
    if let Some(link) = used(stream).filter(|_| stream.endpoint.way_in() == WayIn::Asking) {
        link.look_for_end();
    }
}

/// Looks whether TCP tells an end before which the link is to tell something: that the peer left, and what it sent before.
/// The connection goes back to TCP, or TCP has brought bytes already.
pub(in crate::switch) fn look_for_early_end(stream: &Stream, anchor: Fd) -> bool {
    let Some(link) = used(stream) else { return false };
    let sending = &stream.peer().sending.0;
    let word = sending.direction.state();
    // What TCP brought of a peer that pulled, and died before it left, is to be read in the segment.
    let is_told =
        stream.is_given_up_by_peer() || word.left || word.pulled || link.look_for_failure();
    // The end of a half-close goes through the stream alone. So TCP's end is that of a peer that left since, or is gone.
    let is_half_closed = sending.finished.load(SeqCst) & FINISHED != 0;
    let returns =
        || returning::is_due(stream) || stream.own().sending.0.direction.state().is_final();
    let is_awaited =
        || is_half_closed || returns() || net::unread(anchor).is_some_and(|bytes| bytes > 0);
    if is_told || !is_awaited() {
        return false;
    }
    // If the peer is gone, the link tells nothing more. (TCP's end may not come either, behind bytes that nobody takes.)
    link.look_for_end();
    true
}

/// Before the connection is the kernel's: its end comes only when the peer knows how it went back.
pub(in crate::switch) fn before_kernel(socket: &Socket, stream: &Stream) {
    if is_controlled_here(stream) && !flush(stream) {
        hold_anchor(socket, stream);
    }
}

/// True if the peer closed, or is gone, with bytes unread after its stream had ended in order, and that is not noted
/// yet. (TCP resets then.)
pub(in crate::switch) fn is_unread_behind_end(stream: &Stream) -> bool {
    stream.is_between_hosts()
        && stream.endpoint.has(flag::ANCHOR_ENDED)
        && !stream.endpoint.has(flag::RESET | flag::BROKEN_PIPE)
        && stream.peer().sending.0.finished.load(SeqCst) & (CLOSED | FAILED) != 0
        && !stream.peer_consumed_all()
}

/// True if the peer says that it closed.
pub(in crate::switch) fn is_closed_by_peer(stream: &Stream) -> bool {
    stream.is_between_hosts() && stream.peer().sending.0.finished.load(SeqCst) & CLOSED != 0
}

/// Waits a while until the peer has all that was sent before the connection went back to TCP, and knows where that was; true
/// if it does. The program is about to go on where the link cannot follow, and may end TCP's connection.
pub(in crate::switch) fn deliver_all(stream: &Stream) -> bool {
    let is_used = stream.segment.agreement().state() == AgreementState::Settled;
    let Some(link) = stream.link().filter(|_| is_used) else { return true };
    let until = time::now() + LINGER;
    // A peer that knows all that it needs may end the link before it has the rest.
    let is_delivered = || flush(stream) || (!link.is_foreign() && link.has_returned());
    while !is_delivered() {
        if time::now() >= until {
            return false;
        }
        time::sleep(PAUSE);
    }
    if link.has_returned() || !link.look_for_failure() {
        return true;
    }
    // That the peer ended the link may be heard before what came before it.
    link.catch_up();
    link.has_returned()
}

/// Has the link send all that this end published. True if the peer has it, or never will.
pub(in crate::switch) fn flush(stream: &Stream) -> bool {
    let next = stream.endpoint.session.last_sent().wrapping_add(1);
    stream.link().is_none_or(|link| link.flush(next))
}

/// Waits until the peer has all that this end published, up to [`LINGER`].
pub(in crate::switch) fn wait_for(stream: &Stream) {
    wait_until(stream, time::now() + LINGER);
}

/// Called before a direction that left ends over TCP. Waits until the peer has heard over the link that it left. Otherwise
/// the peer takes TCP's end for that of the connection, and loses what the link still brings. Waits [`LEAVING`] at most,
/// because a peer may take nothing.
pub(in crate::switch) fn wait_for_word(stream: &Stream) {
    wait_until(stream, time::now() + LEAVING);
}

/// The same, until that time (clock, ns).
pub(in crate::switch) fn wait_until(stream: &Stream, until: u64) {
    while !flush(stream) && time::now() < until {
        time::sleep(PAUSE);
    }
}

/// Waits until control of the link comes to this process, which is about to leave, or will not. Asks for the time `until`
/// which to wait only if control is on its way.
pub(in crate::switch) fn settle_control(stream: &Stream, until: impl Fn() -> u64) {
    let Some(link) = stream.link() else { return };
    while link.withdraw_wish() && !link.look_for_failure() && time::now() < until() {
        time::sleep(PAUSE);
    }
}

/// Relatives go on with the connection: one of them takes control of its link, at best. (D12: otherwise it ends.) Waits until
/// that time (clock, ns), and up to [`LINGER`] longer for control that is on its way.
pub(in crate::switch) fn leave_control(stream: &Stream, until: u64) {
    let Some(link) = stream.link() else { return };
    while link.offer_control(time::now() < until) && time::now() < until + LINGER {
        time::sleep(PAUSE);
    }
}

/// True if the link is on its way to another process.
pub(in crate::switch) fn is_moving(stream: &Stream) -> bool {
    stream.link().is_some_and(Link::is_moving)
}

/// The process is exiting: fork relatives can use the link no more.
pub(in crate::switch) fn abandon(stream: &Stream) {
    if let Some(link) = stream.link() {
        link.abandon();
    }
}
