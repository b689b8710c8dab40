//! The way back to TCP of a session that both ends use, as docs/protocol.md describes it.
//!
//! Each end does two things, in this order, at any time and without waiting for the other:
//!
//! 1. It *leaves*: from the next byte on it sends over the anchor. The peer reads what this end sent before where it
//!    lies.
//! 2. Once it has read all that lies in the segment it *recalls* the other direction, unless the peer has left as well.
//!    The peer sends again over TCP what it put there in between.
//!
//! Then the socket is the kernel's. The peer does the same as soon as it looks. The ring that comes with the leaving
//! wakes the peer. Over a fabric a frame wakes the peer. There a recall takes an answer of the peer's link, and this
//! end reads nothing before that answer.
//!
//! An end may *pull* when it leaves: it sends again by itself what the peer has not read. On one host it does that where
//! TCP has room. Between hosts it does so only where another program goes on with the connection.

use super::leave::{leave, leave_with_all};
use super::linger;
use super::read_out::{read_out, take_answer};
use crate::provider::shm::CLOSED;
use crate::reason::Reason;
use crate::registry::{self, Provider};
use crate::session::{WayIn, WayOut};
use crate::switch::anchor::ends;
use crate::switch::anchor::link;
use crate::switch::anchor::returning;
use crate::switch::anchor::switchover;
use crate::switch::anchor::watchers;
use crate::switch::endpoint::flag;
use crate::switch::socket::lane::Lane;
use crate::switch::socket::structure::Structure;
use crate::switch::socket::table;
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::Stream;
use crate::sys::{net, poll, thread, time, Fd};
use std::sync::atomic::Ordering::Relaxed;

/// How long a call waits for an end that half left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::switch) enum WaitForRoom {
    /// The call waits until the end has left. Over TCP, too, the program's call waits until the peer reads.
    UntilDone,
    /// The call waits ten seconds, although TCP never lets such a call wait. A peer that is only slow needs less.
    TenSeconds,
    /// The call waits a second. A peer that reads at all lets it wait less.
    Second,
    /// The call does not wait.
    Moment,
}

impl WaitForRoom {
    /// In nanoseconds.
    pub(super) fn time(self) -> u64 {
        match self {
            WaitForRoom::UntilDone => u64::MAX,
            WaitForRoom::TenSeconds => 10_000_000_000,
            WaitForRoom::Second => 1_000_000_000,
            WaitForRoom::Moment => 0,
        }
    }
}

/// Waits for the room that an end which half left needs to leave. It does not wait for a peer that sends in its stead,
/// nor in a signal handler that interrupted its own thread's send. It waits until then (clock, ns) at most.
pub(super) fn finish_leaving(
    socket: &Socket,
    stream: &Stream,
    anchor: Fd,
    why: Reason,
    until: u64,
) {
    let e = stream.endpoint;
    let is_interrupted = || e.send.lock.is_held_by_caller();
    let waits_for_room = || returning::is_half_left(stream) && !returning::is_stood_in_for(stream);
    while waits_for_room() && !is_interrupted() && time::now() < until {
        let mut room = [libc::pollfd { fd: anchor, events: libc::POLLOUT, revents: 0 }];
        let _ = poll::poll(&mut room, Some(returning::NAP), thread::nap_mask());
        return_anchor(socket, stream, anchor, why);
    }
}

/// Goes on with a return that either end began. True if the socket is on TCP now. The caller holds no lock.
#[inline]
pub(in crate::switch) fn look_after(socket: &Socket, stream: &Stream) -> bool {
    returning::is_begun(stream) && advance(socket, stream, Reason::PeerReturned)
}

/// As [`look_after`], where this may be the last look for long, or at all. The bytes that have to go over TCP go as far as
/// there is room now. A process apart sends the rest.
pub(in crate::switch) fn look_after_to_the_end(socket: &Socket, stream: &Stream) -> bool {
    let is_on_tcp = look_after(socket, stream);
    if !is_on_tcp && !stream.is_between_hosts() {
        linger::send_rest_apart(socket, stream);
    }
    is_on_tcp
}

/// Begins the return or goes on with it. True if the socket is on TCP now. The caller holds no lock.
#[cold]
pub(in crate::switch) fn advance(socket: &Socket, stream: &Stream, why: Reason) -> bool {
    let done = advance_alone(socket, stream, why);
    if stream.endpoint.has(flag::ONE_PROCESS) {
        // The other end may be in this process, whose only thread is about to wait for what that end has to send again.
        table::each_socket(&mut |fd, other| {
            let is_another = other.anchor() == fd && !std::ptr::eq(other.address(), socket);
            if !is_another || other.lane() == Lane::Tcp {
                return;
            }
            if let Some(stream) = other.stream() {
                if returning::is_begun(&stream) {
                    advance_alone(&other, &stream, Reason::PeerReturned);
                }
            }
        });
    }
    done
}

fn advance_alone(socket: &Socket, stream: &Stream, why: Reason) -> bool {
    if socket.phase() != phase::SAN {
        return true;
    }
    if switchover::complete_or_retreat(socket, stream) {
        return true;
    }
    if ends::hinted_end(stream) {
        // This end sends nothing again to a peer that is gone: the kernel would tell of that, and not of what came
        // before.
        ends::look(socket, stream);
    }
    let was_half_left = returning::is_half_left(stream);
    if !return_anchor(socket, stream, socket.anchor(), why) {
        if !was_half_left && returning::is_half_left(stream) {
            // The sets that watch the socket look again, so that they sleep no longer than a half-left end allows.
            watchers::look_again(socket);
        }
        return false;
    }
    leave_to_kernel(socket, stream);
    true
}

/// Brings both directions back to TCP as far as that goes now. True if nothing of the SAN is left in the socket.
/// Touches nothing of this process's books, so a vfork child may call this. `anchor` is the socket under any number.
pub(in crate::switch) fn return_anchor(
    socket: &Socket,
    stream: &Stream,
    anchor: Fd,
    why: Reason,
) -> bool {
    let stream = &stream.over(anchor);
    if stream.endpoint.way_in() == WayIn::Asking {
        // The answer may be that reading goes on, whatever becomes of sending.
        take_answer(stream);
    }
    if stream.endpoint.state().is_back() {
        return true;
    }
    let has_left = leave(stream, anchor, why);
    // If a reset is not the kernel's own, the kernel would tell something else.
    let goes_on =
        (has_left || returning::is_half_left(stream)) && !stream.endpoint.has(flag::RESET);
    // There may be no room for what this end sends first, until it reads what the peer sends over TCP.
    goes_on && settle(socket, stream) && has_left
}

/// How long (ns) a peer may take for a step of its own that waits for nothing, and how long this end naps between
/// looks.
const PULL_TIMEOUT: u64 = 5_000_000;
const PULL_NAP: u64 = 20_000;

/// Waits while the peer sends again what this end may have read, and takes that off TCP. None of that may lie unread in the
/// kernel at the close, because the kernel would make a reset of the close.
fn await_pulling_peer(socket: &Socket, stream: &Stream) {
    // True once nothing of that is left to come.
    let pass = || {
        let word = stream.peer().sending.0.direction.state();
        let turn = || !returning::comes_again(stream) || look_after(socket, stream);
        !word.pulled || (word.left && turn())
    };
    if !pass() {
        let until = time::now() + PULL_TIMEOUT;
        while !pass() && time::now() < until {
            time::sleep(PULL_NAP);
            stream.poll();
        }
    }
}

/// Sends, where this may be the last look, what has to go over TCP, as far as there is room now. A process apart sends
/// the rest. True if the socket is on TCP. This waits for no room.
pub(in crate::switch) fn finish_sending(socket: &Socket, stream: &Stream) -> bool {
    await_pulling_peer(socket, stream);
    if !stream.is_between_hosts() && !look_after(socket, stream) {
        leave_with_all(stream, socket.anchor());
    }
    look_after_to_the_end(socket, stream)
}

/// Sends again, before the last close, what the peer wants, as far as there is room now. A process apart sends the
/// rest. True if the socket is on TCP. This waits for no room, and a few milliseconds at most for a peer that pulls.
pub(in crate::switch) fn finish(socket: &Socket, stream: &Stream) -> bool {
    if finish_sending(socket, stream) {
        return true;
    }
    let closed = stream.own().sending.0.direction.close();
    if closed.recalled && finish_sending(socket, stream) {
        return true;
    }
    if stream.endpoint.way_out() == WayOut::Left && stream.has_unread() {
        // TCP does the same where the kernel knows of the bytes.
        let _ = net::reset_at_close(socket.anchor());
    }
    false
}

/// Does step 2. True once it is done.
fn settle(socket: &Socket, stream: &Stream) -> bool {
    let is_read_out = stream.endpoint.way_in().is_read_out();
    (is_read_out || read_out(socket, stream, false)) && take_answer(stream)
}

/// Notes in the books of this process that the socket is the kernel's.
pub(in crate::switch) fn leave_to_kernel(socket: &Socket, stream: &Stream) {
    link::before_kernel(socket, stream);
    let mut structure = Structure::lock();
    if socket.phase() != phase::SAN {
        return;
    }
    let reason = stream.endpoint.returning.load(Relaxed);
    let reason = Reason::from_u32(reason).unwrap_or(Reason::PeerReturned);
    if matches!(reason, Reason::Quiet | Reason::OutOfMemory | Reason::PeerReturned) {
        // The connection may come to the SAN again.
        socket.traffic.returned();
        socket.set_phase(phase::TCP);
    } else {
        socket.set_phase(phase::NATIVE);
    }
    watchers::to_kernel(&mut structure, socket);
    drop(structure);
    let ended = [stream.own(), stream.peer()].map(|side| side.sending.0.finished.load(Relaxed));
    if ended.iter().any(|finished| finished & CLOSED != 0) {
        // The connection ends, and did not go back.
        return;
    }
    socket.set_reason(reason);
    socket.statistics().set_provider(Provider::Tcp);
    registry::count_return(reason);
    log::info!("fd {}: provider=tcp reason={}", socket.anchor(), reason.code());
}
