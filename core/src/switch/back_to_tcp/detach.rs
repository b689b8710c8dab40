//! The way back to TCP of a session both ends use (design 6), as docs/protocol.md describes it.
//!
//! Each end does three things, in this order, at any time and without waiting for the other:
//!
//! 1. It *leaves*: from the next byte on it sends over the anchor. What it sent before is read by
//!    the peer where it lies.
//! 2. Once it has read all that lies in the segment it *recalls* the other direction, unless the
//!    peer has left as well: what the peer put there in between, the peer sends again over TCP.
//! 3. When the doorbells promised until then are off the anchor, the socket is the kernel's.
//!
//! The peer does the same as soon as it looks: the doorbell that comes with the leaving wakes it. Over a fabric a frame does,
//! no doorbell goes with it, and recalling takes an answer of the peer's link, before which nothing is read.

use crate::provider::shm::RETURNED;
use crate::reason::Reason;
use crate::registry::{self, Provider};
use crate::session::Rung;
use crate::switch::anchor::doorbell;
use crate::switch::anchor::ends;
use crate::switch::anchor::link;
use crate::switch::anchor::options;
use crate::switch::anchor::returning;
use crate::switch::anchor::switchover;
use crate::switch::anchor::untaken_offer;
use crate::switch::anchor::watchers;
use crate::switch::back_to_tcp::resend::{self, Resent};
use crate::switch::back_to_tcp::resend_for_peer;
use crate::switch::endpoint::flag;
use crate::switch::socket::structure::Structure;
use crate::switch::socket::table;
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::counters::{self, Event};
use crate::switch::stream::Stream;
use crate::sys::lock::Acquired;
use crate::sys::thread::own_tid;
use crate::sys::{file, net, poll, thread, time, Fd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// How long an end that [half left](is_half_left) is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::switch) enum WaitForRoom {
    /// Until it has left: nobody goes on with it afterwards.
    UntilDone,
    /// A second: longer than who reads at all lets it wait.
    Second,
    /// Not beyond what anything else takes.
    Moment,
}

impl WaitForRoom {
    fn time(self) -> u64 {
        match self {
            WaitForRoom::UntilDone => u64::MAX,
            WaitForRoom::Second => 1_000_000_000,
            WaitForRoom::Moment => 0,
        }
    }
}

/// Waits until an end that half left has left. Not in a signal handler that interrupted its own thread's send.
fn finish_leaving(socket: &Socket, stream: &Stream, anchor: Fd, why: Reason, wait: WaitForRoom) {
    let (e, until) = (stream.endpoint, time::now().saturating_add(wait.time()));
    let is_interrupted =
        || e.send.lock.is_held_by_caller() || e.doorbell_lock.holder() == own_tid();
    while returning::is_half_left(stream) && !is_interrupted() && time::now() < until {
        let mut room = [libc::pollfd { fd: anchor, events: libc::POLLOUT, revents: 0 }];
        let _ = poll::poll(&mut room, Some(returning::NAP), thread::nap_mask());
        return_anchor(socket, stream, anchor, why);
    }
}

/// True if urgent data may be the kernel's to tell: no doorbell is left that is urgent there. Takes them off for that
/// where the peer has left. No lock is held.
pub(in crate::switch) fn tells_urgent_data(socket: &Socket) -> bool {
    if let Some(stream) = socket.stream().filter(returning::is_kernels) {
        doorbell::take_off(socket, &stream, socket.anchor());
    }
    returning::may_tell_urgent_data(socket)
}

/// Goes on with a return that either end began; true if the socket is on TCP now. No lock is held.
#[inline]
pub(in crate::switch) fn look_after(socket: &Socket, stream: &Stream) -> bool {
    (returning::is_due(stream) || returning::is_recalled(stream))
        && advance(socket, stream, Reason::PeerReturned)
}

/// As [`look_after`], where it may be the last look for long, or at all: what is to go over TCP goes now.
pub(in crate::switch) fn look_after_to_the_end(
    socket: &Socket,
    stream: &Stream,
    wait: WaitForRoom,
) -> bool {
    look_after(socket, stream);
    finish_leaving(socket, stream, socket.anchor(), Reason::PeerReturned, wait);
    look_after(socket, stream)
}

/// Begins the return or goes on with it; true if the socket is on TCP now. No lock is held.
#[cold]
pub(in crate::switch) fn advance(socket: &Socket, stream: &Stream, why: Reason) -> bool {
    let done = advance_alone(socket, stream, why);
    if stream.endpoint.has(flag::ONE_PROCESS) {
        // The other end may be in this process, whose only thread is about to wait for what that end
        // is to send again.
        table::each_socket(0, Fd::MAX - 1, |fd, other| {
            let is_another = other.anchor() == fd && !std::ptr::eq(other.address(), socket);
            if !is_another || !is_on_san(&other) {
                return;
            }
            if let Some(stream) = other.stream() {
                if returning::is_due(&stream) || returning::is_recalled(&stream) {
                    advance_alone(&other, &stream, Reason::PeerReturned);
                }
            }
        });
    }
    done
}

fn is_on_san(socket: &Socket) -> bool {
    socket.phase() == phase::SAN && !socket.is_pending()
}

fn advance_alone(socket: &Socket, stream: &Stream, why: Reason) -> bool {
    if socket.phase() != phase::SAN {
        return true;
    }
    if socket.is_pending() {
        return untaken_offer::withdraw(socket);
    }
    if switchover::complete_or_retreat(socket, stream) {
        return true;
    }
    let was_half_left = returning::is_half_left(stream);
    if !return_anchor(socket, stream, socket.anchor(), why) {
        if !was_half_left && returning::is_half_left(stream) {
            // Sets that watch it sleep no longer than that allows.
            watchers::look_again(socket);
        }
        return false;
    }
    leave_to_kernel(socket, stream);
    true
}

/// Brings both directions back to TCP as far as that goes now; true if nothing of the SAN is left
/// in the socket. Touches nothing of this process's books, so a vfork child may call it; `anchor` is
/// the socket under any number.
pub(in crate::switch) fn return_anchor(
    socket: &Socket,
    stream: &Stream,
    anchor: Fd,
    why: Reason,
) -> bool {
    if stream.endpoint.has(flag::ASKS) {
        // It may be that reading is to go on, whatever becomes of sending.
        is_answered(stream);
    }
    stream.endpoint.has(flag::NATIVE)
        || (leave(stream, anchor, why) && settle(socket, stream, anchor))
}

/// Stops reading from the segment for a program that cannot: what was not read yet comes again over
/// TCP, as soon as the peer looks. [`return_after_recall`] follows; false if it cannot. The peer's direction is
/// recalled before ours is left, because the peer follows at once and then sends nothing again.
pub(in crate::switch) fn recall_unread(socket: &Socket, stream: &Stream, why: Reason) -> bool {
    let e = stream.endpoint;
    if socket.is_pending() || e.has(flag::READ_OUT) {
        return true;
    }
    // Who is gone sends nothing again.
    ends::look(socket, stream);
    let is_read_out = !e.has(returning::OVER) && read_out(socket, stream, true);
    if is_read_out {
        // Whoever goes on with it.
        note_reason(stream, why);
    }
    is_read_out
}

fn note_reason(stream: &Stream, why: Reason) {
    let _ = stream.endpoint.returning.compare_exchange(0, why.as_u32(), Relaxed, Relaxed);
}

/// Like [`return_anchor`], after [`recall_unread`].
fn return_after_recall(
    socket: &Socket,
    stream: &Stream,
    anchor: Fd,
    why: Reason,
    wait: WaitForRoom,
) -> bool {
    if socket.is_pending() {
        // Its books are changed at once, so the descriptor must be the one in them.
        return file::identity(anchor) == file::identity(socket.anchor())
            && untaken_offer::withdraw(socket);
    }
    finish_leaving(socket, stream, anchor, why, wait);
    return_anchor(socket, stream, anchor, why)
}

/// How long (ns), with pauses, it is tried again where something is under way.
const LONGEST_PAUSE: u64 = 200_000_000;
/// The same where the peer has to answer.
const LONGEST_PAUSE_BETWEEN_HOSTS: u64 = 2_000_000_000;
const PAUSE: u64 = 1_000_000;

/// Brings a connection back to TCP for who can not read from the segment; false if it has to stay.
/// The socket need not be in this process's books; `anchor` is it under any number.
pub(in crate::switch) fn bring_back(
    socket: &Socket,
    stream: &Stream,
    anchor: Fd,
    why: Reason,
    wait: WaitForRoom,
) -> bool {
    let longest = if stream.fabric.is_some() { LONGEST_PAUSE_BETWEEN_HOSTS } else { LONGEST_PAUSE };
    let mut paused = 0;
    loop {
        if socket.phase() != phase::SAN || switchover::complete_or_retreat(socket, stream) {
            return link::has_all(stream);
        }
        if recall_unread(socket, stream, why)
            && (socket.is_pending() || is_answered(stream))
            && return_after_recall(socket, stream, anchor, why, wait)
        {
            return link::has_all(stream);
        }
        if leave_ended(stream, anchor, why) {
            return true;
        }
        let is_offered = socket.is_pending() && stream.fabric.is_some();
        if !is_under_way(stream) || is_offered || paused >= longest {
            return false;
        }
        time::sleep(PAUSE);
        paused += PAUSE;
    }
}

/// Leaves a connection that ended to the kernel if all that came was read, and the program was told of an error: then
/// what the kernel says of the anchor, behind the doorbells, is all there is to learn.
fn leave_ended(stream: &Stream, anchor: Fd, why: Reason) -> bool {
    let e = stream.endpoint;
    let is_told = !e.has(flag::RESET) || e.has(flag::ERROR_REPORTED);
    let is_under_way = returning::is_half_left(stream) || returning::is_kernels(stream);
    if !e.has(flag::ANCHOR_ENDED) || !is_told || is_under_way {
        return false;
    }
    let Ok(_held) = stream.lock_receive() else { return false };
    let is_on_tcp = switchover::receives_all_over_tcp(stream);
    if stream.available() != Ok(0) || !(is_on_tcp || doorbell::take_all(stream, anchor)) {
        return false;
    }
    note_reason(stream, why);
    options::give_back_sending(stream, anchor);
    options::give_back_receiving(stream, anchor);
    if e.has(flag::SEND_SHUT) {
        let _ = net::shutdown(anchor, libc::SHUT_WR);
    }
    e.set(flag::LEFT | flag::READ_OUT | flag::NO_MORE_DOORBELLS | flag::NATIVE);
    true
}

/// True if a return has begun, or may begin later.
fn is_under_way(stream: &Stream) -> bool {
    stream.endpoint.has(flag::LEFT | flag::READ_OUT) || returning::may_begin_later(stream)
}

/// Before the last close: whatever the peer wants again it gets now; true if the socket is on TCP.
pub(in crate::switch) fn finish(socket: &Socket, stream: &Stream) -> bool {
    if look_after_to_the_end(socket, stream, WaitForRoom::UntilDone) {
        return true;
    }
    let closed = stream.own().sending.0.doorbells.close();
    if closed.recalled && look_after_to_the_end(socket, stream, WaitForRoom::UntilDone) {
        return true;
    }
    let unread = || stream.lock_receive().is_ok_and(|_held| stream.available() != Ok(0));
    if stream.endpoint.has(flag::LEFT) && unread() {
        // As TCP does where the kernel knows of the bytes.
        let _ = net::reset_at_close(socket.anchor());
    }
    false
}

/// Step 1; true once done.
pub(in crate::switch) fn leave(stream: &Stream, anchor: Fd, why: Reason) -> bool {
    let e = stream.endpoint;
    if e.has(flag::LEFT) {
        return true;
    }
    let Ok(_held) = stream.lock_send() else { return false };
    if e.has(flag::LEFT) {
        return true;
    }
    let own = &stream.own().sending.0;
    let Rung { left: begun, recalled, .. } = own.doorbells.state();
    let must = begun || recalled;
    let over = match stream.fabric {
        Some(_) if must => returning::ENDED,
        _ if begun => returning::ENDED,
        _ => returning::OVER,
    };
    if e.has(over) {
        return false;
    }
    let state = poll::poll_one(anchor, libc::POLLOUT).unwrap_or(0);
    // Then there is nobody to send to, and the kernel tells the program why.
    let gone = state & (libc::POLLERR | libc::POLLHUP) != 0;
    // The last doorbell must not have to wait for a peer that reads nothing.
    if !must && !gone && state & libc::POLLOUT == 0 {
        return false;
    }
    let Ok(how) = e.doorbell_lock.lock() else { return false };
    if how == Acquired::FromTheDead {
        doorbell::recount_sent(stream, anchor);
    }
    note_reason(stream, why);
    options::give_back_sending(stream, anchor);
    let before = match stream.fabric {
        None => own.doorbells.leave(),
        Some(_) => own.doorbells.leave_silently(),
    };
    // Before the last doorbell: whoever it wakes finds it.
    own.finished.fetch_or(RETURNED, SeqCst);
    // A process that dies from here on leaves the word without the flag: see `recover_sender`.
    let resent = if gone {
        Resent::All
    } else if !resend_for_peer::is_over(stream) {
        Resent::Unknown
    } else {
        resend::resend(stream, anchor, begun || before.replayed)
    };
    e.doorbell_lock.unlock();
    if let Some(link) = stream.fabric {
        link.tell_return();
    }
    match resent {
        Resent::All => {
            if e.has(flag::SEND_SHUT) {
                let _ = net::shutdown(anchor, libc::SHUT_WR);
            }
            e.set(flag::LEFT);
        }
        Resent::Part => {
            e.set(flag::LEAVING);
        }
        Resent::Unknown => lose(stream, anchor),
    }
    resent == Resent::All
}

/// A process died while it sent, and nobody knows how much: the connection ends (D12).
#[cold]
fn lose(stream: &Stream, anchor: Fd) {
    stream.endpoint.error.store(libc::ECONNRESET as u32, Relaxed);
    stream.endpoint.set(flag::RESET);
    net::reset(anchor);
}

/// Steps 2 and 3; true once done.
fn settle(socket: &Socket, stream: &Stream, anchor: Fd) -> bool {
    let e = stream.endpoint;
    if !e.has(flag::READ_OUT) && !read_out(socket, stream, false) {
        return false;
    }
    if !is_answered(stream) {
        return false;
    }
    doorbell::take_off(socket, stream, anchor);
    if !e.has(flag::NO_MORE_DOORBELLS) {
        return false;
    }
    if e.set(flag::NATIVE) {
        options::give_back_receiving(stream, anchor);
    }
    true
}

/// Ends reading from the segment if all was read, or may be abandoned; true once it has ended.
fn read_out(socket: &Socket, stream: &Stream, recalls_unread: bool) -> bool {
    let doorbells = &stream.peer().sending.0.doorbells;
    let Ok(_held) = stream.lock_receive() else { return false };
    loop {
        // Before the look: what was sent before the peer left, or closed, is seen by it.
        let Rung { left, closed, .. } = doorbells.state();
        if !left && link::is_closed_by_peer(stream) {
            // Its end is TCP's to tell, in a moment.
            return false;
        }
        let unread = match stream.available() {
            Ok(unread) => unread,
            Err(why) => {
                ends::fail(socket, stream, why);
                return false;
            }
        };
        if unread > 0 && (left || closed || !recalls_unread) {
            return false;
        }
        if !left {
            stream.stop_reading();
            // Whatever the peer still puts there, it rings for, and learns that nobody reads it.
            let _ = counters::raise(stream, Event::Read);
            if let Some(link) = stream.fabric {
                stream.endpoint.set(flag::READ_OUT | flag::ASKS);
                link.ask_again();
                return true;
            }
            let before = doorbells.recall(closed);
            if before.left || before.closed != closed {
                continue;
            }
        }
        stream.endpoint.set(flag::READ_OUT);
        return true;
    }
}

/// True if it is certain that this end reads nothing more here, once it does not. Over a fabric the peer's link says so, or
/// that reading is to go on.
fn is_answered(stream: &Stream) -> bool {
    let e = stream.endpoint;
    let Some(link) = stream.fabric.filter(|_| e.has(flag::ASKS)) else {
        return e.has(flag::READ_OUT);
    };
    stream.poll();
    let Ok(_held) = stream.lock_receive() else { return false };
    match link.answer().filter(|_| e.has(flag::ASKS)) {
        Some(true) => {
            e.clear(flag::ASKS);
        }
        Some(false) => {
            e.clear(flag::READ_OUT | flag::ASKS);
        }
        None if link::is_closed_by_peer(stream) => {
            e.clear(flag::READ_OUT | flag::ASKS);
        }
        None if e.has(flag::ASKS) => link.ask_again(),
        None => {}
    }
    e.flags() & (flag::READ_OUT | flag::ASKS) == flag::READ_OUT
}

/// The books of this process: the socket is the kernel's.
pub(in crate::switch) fn leave_to_kernel(socket: &Socket, stream: &Stream) {
    link::before_kernel(socket, stream);
    let mut structure = Structure::lock();
    if socket.phase() != phase::SAN {
        return;
    }
    let reason = stream.endpoint.returning.load(Relaxed);
    let reason = Reason::from_u32(reason).unwrap_or(Reason::PeerReturned);
    let may_come_again = matches!(reason, Reason::Quiet | Reason::PeerReturned);
    if may_come_again && stream.fabric.is_none() {
        socket.traffic.returned();
        socket.set_phase(phase::TCP);
    } else {
        socket.set_phase(phase::NATIVE);
    }
    watchers::to_kernel(&mut structure, socket);
    drop(structure);
    socket.set_reason(reason);
    socket.statistics().set_provider(Provider::Tcp);
    registry::count_return(reason);
    log::info!("fd {}: provider=tcp reason={}", socket.anchor(), reason.code());
}
