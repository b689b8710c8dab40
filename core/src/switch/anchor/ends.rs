//! What the anchor tells of the connection's end, and what TCP would make of it. This module takes nothing off the
//! anchor.

use crate::provider::shm::{BOTH_SHUT, CLOSED, FAILED, FINISHED};
use crate::registry;
use crate::session::WayOut;
use crate::switch::anchor::behind;
use crate::switch::anchor::broken::{break_pipe, lose_rest};
use crate::switch::anchor::link;
use crate::switch::anchor::refusal;
use crate::switch::anchor::returning;
use crate::switch::anchor::user_timeout;
use crate::switch::endpoint::flag;
use crate::switch::socket::Socket;
use crate::switch::stream::{Broken, Stream};
use crate::sys::{net, poll};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Ends the connection because the peer broke the protocol.
#[cold]
pub(in crate::switch) fn fail(socket: &Socket, stream: &Stream, why: Broken) {
    if stream.endpoint.set(flag::RESET) {
        log::error!("fd {}: connection reset, the peer broke the protocol: {why}", socket.anchor());
        stream.endpoint.error.store(libc::ECONNRESET as u32, Relaxed);
        registry::set_state(socket.statistics(), registry::State::Failed);
        // Every thread that sleeps on the anchor has to learn of it, the peer's too.
        let _ = net::shutdown(socket.anchor(), libc::SHUT_RDWR);
    }
}

/// True if the peer's end does not wake a thread that sleeps on the anchor. The thread has to look for that end.
pub(in crate::switch) fn hears_no_end(stream: &Stream) -> bool {
    let is_deaf =
        || stream.endpoint.has(flag::RECEIVE_SHUT) && !stream.endpoint.has(flag::ANCHOR_ENDED);
    is_deaf() || behind::may_be(stream)
}

/// True if nothing more will come: the peer shut its direction down, or its anchor ended.
/// To be asked before the stream is looked at: what was sent before the end comes first.
#[inline]
pub(in crate::switch) fn ended(stream: &Stream) -> bool {
    // Over a fabric what lies here unread then comes again.
    let is_told = |finished| {
        finished & FINISHED != 0
            && !(stream.is_between_hosts() && stream.endpoint.way_in().is_read_out())
    };
    is_told(stream.peer().sending.0.finished.load(Acquire))
        || stream.endpoint.has(flag::ANCHOR_ENDED | flag::RESET)
}

/// True if the peer says it closed and what that means is not noted yet.
#[inline]
pub(in crate::switch) fn hinted_end(stream: &Stream) -> bool {
    stream.peer().sending.0.finished.load(Relaxed) & (CLOSED | FAILED) != 0
        && (!stream.endpoint.has(flag::ANCHOR_ENDED)
            || is_reset_by_close(stream)
            || link::is_unread_behind_end(stream))
}

/// True if the peer shut both directions down, and closed since with something unread: TCP resets at that close.
fn is_reset_by_close(stream: &Stream) -> bool {
    const GONE: u32 = BOTH_SHUT | CLOSED;
    stream.peer().sending.0.finished.load(Acquire) & GONE == GONE
        && !stream.endpoint.has(flag::RESET | flag::BROKEN_PIPE | flag::SEND_SHUT)
        && !stream.peer_consumed_all()
}

/// True if only the kernel tells of a reset behind the end of the stream. It tells of this end, whose direction never
/// turned.
#[inline]
pub(in crate::switch) fn may_be_reset_by_tcp(stream: &Stream) -> bool {
    let state = stream.endpoint.state();
    state.has(flag::ANCHOR_ENDED)
        && !state.has(flag::RESET | flag::BROKEN_PIPE)
        && state.way_out() == WayOut::Tcp
}

/// Ends the connection if that is due by what this end knows without the kernel.
#[inline]
pub(in crate::switch) fn look_here(socket: &Socket, stream: &Stream) {
    if stream.endpoint.has(flag::TIMED | flag::RECEIVE_SHUT) {
        user_timeout::look(socket, stream);
        refusal::look(socket, stream);
    }
}

/// Asks the kernel whether the anchor ended, without draining it.
#[cold]
pub(in crate::switch) fn look(socket: &Socket, stream: &Stream) {
    look_here(socket, stream);
    link::look(socket, stream);
    let Ok(events) = poll::poll_one(socket.anchor(), libc::POLLIN | libc::POLLRDHUP) else {
        return;
    };
    if events & (libc::POLLERR | libc::POLLHUP | libc::POLLRDHUP | libc::POLLIN) == 0
        || is_our_own_end(socket, stream, events)
    {
        return;
    }
    if events & (libc::POLLERR | libc::POLLHUP | libc::POLLRDHUP) == 0 {
        behind::look(socket, stream);
    }
    link::take_in_before_end(stream);
    if returning::is_kernels(stream) {
        // The kernel's end comes after the bytes that this end still has to read. The kernel tells it later.
        returning::follow(stream);
        return link::look_for_answer(stream);
    }
    if link::look_for_early_end(stream, socket.anchor()) {
        return;
    }
    // The kernel keeps what is known already, for the program that goes on with the connection.
    if events & libc::POLLERR != 0 && !stream.endpoint.has(flag::RESET | flag::BROKEN_PIPE) {
        let e = net::option(socket.anchor(), libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(0);
        note_error(socket, stream, e);
    }
    if events & (libc::POLLRDHUP | libc::POLLHUP) != 0 {
        note_end(socket, stream);
    }
}

/// True if the kernel shows these events of the anchor only because this end shut its receiving direction down.
fn is_our_own_end(socket: &Socket, stream: &Stream, events: i16) -> bool {
    stream.endpoint.has(flag::RECEIVE_SHUT)
        && events & (libc::POLLERR | libc::POLLHUP) == 0
        && !net::is_ended_by_peer(socket.anchor())
        && net::unread(socket.anchor()) == Some(0)
}

/// True if an error of a system call on the anchor says nothing of the connection: this process has closed the descriptor, or
/// has no memory for the call.
pub(in crate::switch) fn is_local(error: i32) -> bool {
    const LOCAL: [i32; 6] =
        [libc::EBADF, libc::ENOTSOCK, libc::EINVAL, libc::EFAULT, libc::ENOMEM, libc::ENOBUFS];
    LOCAL.contains(&error)
}

/// Notes what the kernel said of the connection. An error of [this process](is_local) does not concern the connection.
pub(in crate::switch) fn note_error(socket: &Socket, stream: &Stream, error: i32) {
    match error {
        0 => {}
        e if is_local(e) => {}
        // The end of the stream came before the reset: it stays the end of the stream. (The kernel does not know of an end that
        // went through the stream.)
        e if e == libc::EPIPE || e == libc::ECONNRESET && has_finished(stream) => {
            note_end(socket, stream);
            if !stream.endpoint.has(flag::RESET) {
                break_pipe(stream);
            }
        }
        e => lose_rest(socket, stream, e),
    }
}

/// True if the end of the peer's stream went through the segment.
pub(in crate::switch) fn has_finished(stream: &Stream) -> bool {
    stream.peer().sending.0.finished.load(Acquire) & FINISHED != 0
}

/// Has the kernel reset a connection that TCP would have reset. The kernel of an end that closed, or shut both
/// directions down, answers with a reset what is sent there. So that end learns of it. The kernel then tells every
/// later caller, another program among them, what TCP would tell.
#[cold]
pub(in crate::switch) fn reset_anchor(socket: &Socket, stream: &Stream) {
    if stream.is_between_hosts() && !stream.is_given_up_by_peer() {
        // A process of the peer's end may read on over TCP, and the link has not told that. It would read the byte.
        net::reset(socket.anchor());
    } else if net::is_ended_by_peer(socket.anchor()) {
        let _ = net::send(socket.anchor(), &[0], libc::MSG_DONTWAIT);
    }
}

/// The anchor's stream ended: the peer closed or died. With bytes it never read, TCP would have
/// sent a reset instead.
pub(in crate::switch) fn note_end(socket: &Socket, stream: &Stream) {
    if stream.endpoint.has(flag::ANCHOR_ENDED) && !is_reset_by_close(stream) {
        return;
    }
    // After our own shutdown the kernel shows an end that need not be the peer's.
    if stream.endpoint.has(flag::RECEIVE_SHUT) && !net::is_ended_by_peer(socket.anchor()) {
        return;
    }
    let finished = stream.peer().sending.0.finished.load(Acquire);
    // A peer that shut both directions down, and did not close, answers only what comes afterwards.
    let keeps_unread = finished & (BOTH_SHUT | CLOSED) == BOTH_SHUT;
    // Behind both ends a reset finds nobody.
    let is_over = finished & FINISHED != 0 && stream.endpoint.has(flag::SEND_SHUT);
    let is_reset = !keeps_unread && !is_over && !stream.peer_consumed_all();
    if !stream.endpoint.has(flag::RESET) && is_reset {
        // TCP's reset, which behind the end of the stream is told as a broken pipe.
        if finished & FINISHED != 0 {
            break_pipe(stream);
        } else {
            stream.endpoint.error.store(libc::ECONNRESET as u32, Relaxed);
            stream.endpoint.set(flag::RESET);
        }
        reset_anchor(socket, stream);
        registry::set_state(socket.statistics(), registry::State::Failed);
    }
    stream.endpoint.set(flag::ANCHOR_ENDED);
    show_ends(socket, stream);
}

/// Publishes which directions have ended.
#[cold]
pub(in crate::switch) fn show_ends(socket: &Socket, stream: &Stream) {
    use registry::State;
    if stream.endpoint.has(flag::RESET) {
        return;
    }
    let state = match (stream.endpoint.has(flag::SEND_SHUT), ended(stream)) {
        (false, false) => State::Established,
        (true, false) => State::FinWait,
        (false, true) => State::CloseWait,
        (true, true) => State::Closing,
    };
    registry::set_state(socket.statistics(), state);
}

/// Looks whether the connection is over in both directions, or broken: then TCP has no peer any more.
pub(in crate::switch) fn look_for_close(socket: &Socket, stream: &Stream) -> bool {
    look(socket, stream);
    let is_ended = || ended(stream) || net::is_ended_by_peer(socket.anchor());
    stream.endpoint.has(flag::RESET | flag::BROKEN_PIPE)
        || (stream.endpoint.has(flag::SEND_SHUT) && is_ended())
        || net::is_closed(socket.anchor())
}

/// Looks whether the connection was reset since this end shut its receiving direction down: the peer closed with something
/// unread, or sent something after both were shut. Nothing but the kernel tells that.
#[inline]
pub(in crate::switch) fn look_behind_shutdown(socket: &Socket, stream: &Stream) {
    let state = stream.endpoint.state();
    if state.has(flag::RECEIVE_SHUT) && !state.has(flag::RESET) {
        look(socket, stream);
    }
}

/// True if TCP would answer with a reset what is sent over the SAN now: the peer closed, is gone, or shut both directions
/// down. The kernel knows of a direction that has not turned: a peer that never entered may have ended its own alone.
pub(in crate::switch) fn answers_with_reset(stream: &Stream) -> bool {
    let finished = || stream.peer().sending.0.finished.load(Relaxed);
    let state = stream.endpoint.state();
    let is_over = || state.has(flag::ANCHOR_ENDED) || finished() & BOTH_SHUT == BOTH_SHUT;
    state.way_out() != WayOut::Tcp && is_over()
}

/// True if what is sent now is lost: the peer's kernel answers it with a reset. Between hosts a peer may say that it shut both
/// directions down before its kernel's end comes. Then the peer finds in the stream what it [refuses](super::refusal).
pub(in crate::switch) fn loses(stream: &Stream) -> bool {
    let is_closed = || stream.peer().sending.0.finished.load(Relaxed) & CLOSED != 0;
    answers_with_reset(stream)
        && (!stream.is_between_hosts()
            || stream.endpoint.has(flag::ANCHOR_ENDED)
            || is_closed()
            || net::is_ended_by_peer(stream.anchor))
}
