//! Connections on which nothing happens for five seconds go back to TCP, and the library gives their memory back. It
//! also gives back the memory of a session that one end holds for a connection and the other end never comes to use.
//!
//! A thread that is about to sleep, or looks at the clock, sweeps through the process's connections when it is time. No
//! thread wakes up for that. The connections of a process that sleeps for ever stay as they are, unless a peer's
//! process sweeps.

use super::{detach, limits};
use crate::reason::Reason;
use crate::session::WayOut;
use crate::switch::anchor::link;
use crate::switch::anchor::returning;
use crate::switch::socket::negotiation::Negotiation;
use crate::switch::socket::structure::Structure;
use crate::switch::socket::traffic::is_eager;
use crate::switch::socket::{phase, table, Socket};
use crate::switch::stream::Stream;
use crate::sys::{process, time};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The time (ns) between two sweeps. A connection that has not changed from one sweep to the next is idle.
const PERIOD: u64 = 5_000_000_000;
/// If not both ends use a session so long (ns) after it was offered, or taken, the library gives it up.
const GIVEN_UP_AFTER: u64 = 2 * PERIOD;

/// True if, as far as is known, some connection has memory on the SAN, or for its way there.
#[link_section = "sanshim_words"]
static ANY: AtomicBool = AtomicBool::new(false);
/// Clock (ns) of the next sweep.
static NEXT: AtomicU64 = AtomicU64::new(0);
/// When (ticks) a thread last read that clock.
#[link_section = "sanshim_words"]
static ASKED: AtomicU64 = AtomicU64::new(0);
/// The least time (ticks, some 10 ms) between two readings of that clock. The ticks cost less than the clock.
const ASK_INTERVAL: u64 = 30_000_000;

/// Notes that a connection came to the SAN, or has what it needs there.
pub(in crate::switch) fn note_memory() {
    ANY.store(true, Relaxed);
}

/// Sweeps if it is time. The caller holds no lock.
#[inline]
pub(in crate::switch) fn check() {
    if ANY.load(Relaxed) {
        let (now, asked) = (time::ticks(), ASKED.load(Relaxed));
        if now.wrapping_sub(asked) > ASK_INTERVAL {
            ASKED.store(now, Relaxed);
            sweep_if_due(time::now());
        }
    }
}

#[cold]
fn sweep_if_due(now: u64) {
    let next = NEXT.load(Relaxed);
    let is_due = now >= next && !process::is_borrowed();
    if !is_due || NEXT.compare_exchange(next, now + PERIOD, Relaxed, Relaxed).is_err() {
        return;
    }
    limits::check();
    ANY.store(false, Relaxed);
    table::each_socket(&mut |fd, socket| {
        if socket.anchor() != fd {
            return;
        }
        let has_end = socket.has_end() && look_at(&socket);
        let has_session = socket.negotiates.load(Relaxed) && look_at_session(&socket, now);
        if has_end || has_session {
            note_memory();
        }
    });
}

/// Gives up a session that not both ends came to use. True if the connection still has a session that it does not use
/// yet. A connection that makes transfers looks by itself whether its session leads to something.
fn look_at_session(socket: &Socket, now: u64) -> bool {
    let mut structure = Structure::lock();
    let negotiation = &mut socket.guarded(&mut structure).negotiation;
    let agreed = match negotiation.as_deref() {
        Some(Negotiation::Agreed(agreed)) => agreed,
        _ => return false,
    };
    // Between hosts the helper looks after the session.
    if agreed.link.is_some() || now < agreed.since + GIVEN_UP_AFTER {
        return agreed.link.is_none();
    }
    let taken = negotiation.take().map(|negotiation| *negotiation);
    if let Some(Negotiation::Agreed(agreed)) = taken {
        agreed.end();
    }
    socket.negotiates.store(false, Relaxed);
    false
}

/// Has an idle connection go back to TCP, or takes away the memory of one that is back. True if the connection still
/// has memory afterwards.
fn look_at(socket: &Socket) -> bool {
    match socket.phase() {
        phase::SAN => {
            if let Some(stream) = socket.stream() {
                // The peer may have found the connection idle first.
                if !detach::look_after(socket, &stream) && look_if_idle(socket, &stream) {
                    detach::advance(socket, &stream, Reason::Quiet);
                }
            }
            true
        }
        phase::TCP => !socket.shares_end() && !socket.clear_end(&mut Structure::lock()),
        // The last close ends what the socket has.
        _ => false,
    }
}

/// Notes what happened until this sweep. True if nothing happened since the last sweep, and nothing is under way.
fn look_if_idle(socket: &Socket, stream: &Stream) -> bool {
    // Between hosts, an end whose peer has not come would have to wait for the peer's answer.
    let needs_answer = stream.is_between_hosts() && stream.endpoint.way_out() == WayOut::Tcp;
    if needs_answer
        || !link::is_controlled_here(stream)
        || is_eager()
        || stream.endpoint.is_shared()
    {
        return false;
    }
    let (shown, tail) = (stream.statistics, stream.own().sending.0.tail.load(Relaxed));
    let own = shown.sent.bytes.get().rotate_left(30) ^ shown.received.bytes.get() ^ tail;
    let activity = stream.activity_of_peer().rotate_left(10) ^ own;
    socket.traffic.note_activity(activity) && look_if_at_rest(stream)
}

/// Takes in what the peer told, if the receive lock is free. True if nothing is unread or unsent then.
fn look_if_at_rest(stream: &Stream) -> bool {
    let lock = &stream.endpoint.receive.lock;
    let Some(_held) = stream.borrow(lock).filter(|_| returning::may_begin_later(stream)) else {
        return false;
    };
    stream.available() == Ok(0) && stream.peer_consumed_all() && stream.unsent() == 0
}
