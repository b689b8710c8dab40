//! How a connection comes to the SAN.
//!
//! connect and accept make a TCP connection and nothing else. A connection shows that it is busy (`traffic`). Then its
//! ends look for each other (`peer_table`, `offer_socket`), see that they hold the same connection (`identity`, or
//! `apart` where no address tells), and agree (`negotiate`). From then on each direction turns (`anchor/switchover`)
//! when both are ready. Until then everything is TCP's, and nobody waits for anybody.
//!
//! Between hosts the same happens, but the ends look for each other over RDMA (`elsewhere`). This room may call what is
//! known of sockets, streams and the anchor. It moves no bytes and knows nothing of transfers. Others call `advance`
//! before each transfer, `send_shown` for a send, `forget_shown` after a receive, and `end` or `stay_on_tcp` for what
//! must not move.

mod absent;
mod acceptor;
mod apart;
mod callers;
mod connector;
mod elsewhere;
mod enter;
pub(in crate::switch) mod first_segment;
pub(in crate::switch) mod holders;
mod identity;
mod leaving;
pub(in crate::switch) mod lives;
mod negotiate;
mod no_segment;
mod offer_name;
mod offer_socket;
mod pace;
mod peer_table;
mod publish;

pub use acceptor::before_user_change;
pub(in crate::switch) use negotiate::{end, stay_on_tcp};

use crate::switch::back_to_tcp::idle;
use crate::switch::buffers::Buffers;
use crate::switch::policy;
use crate::switch::socket::lane::Lane;
use crate::switch::socket::structure::Structure;
use crate::switch::socket::table;
use crate::switch::socket::{phase, Socket};
use crate::sys::{closing, process, thread, Result};
use offer_socket::OFFER_SOCKET;
use std::sync::atomic::Ordering::Relaxed;

/// Called in a fork child, whose sockets on TCP are its parent's as well.
pub(in crate::switch) fn after_fork_in_child(structure: &mut Structure) {
    if let Some(offers) = OFFER_SOCKET.get(structure).take() {
        offers.leave_to_parent();
    }
    closing::after_fork_in_child();
    table::each_socket_alone(|socket| {
        // Most have none.
        if !socket.is_looked_at.load(Relaxed) {
            return;
        }
        if let Some(negotiation) = socket.guarded(structure).negotiation.take() {
            negotiation.forget();
        }
    });
}

/// The process exits: no connector is to look for it any more.
pub(in crate::switch) fn exiting(structure: &mut Structure) {
    if let Some(offers) = OFFER_SOCKET.get(structure).as_ref().filter(|_| !process::is_borrowed()) {
        offers.exiting();
    }
}

/// The step before a transfer of so many bytes: gives the lane that carries it. On the SAN nothing else happens. The
/// step counts a transfer over TCP. Now and then it is time to take the connection further on its way to the SAN, which
/// may bring it there.
///
/// The caller keeps its pin until the transfer is over. While it does, a socket on TCP stays there. A caller may take
/// the step for a socket on the SAN again in the same call.
#[inline]
pub fn advance(socket: &Socket, bytes: usize) -> Lane {
    match socket.phase() {
        phase::SAN => Lane::San,
        phase::TCP if !socket.traffic.count(bytes) => Lane::Tcp,
        _ => advance_by_negotiation(socket),
    }
}

/// True if a send over TCP is to show its segment ([`send_shown`]).
#[inline(always)]
pub fn may_show(socket: &Socket) -> bool {
    socket.first_segment.wants_numbers() || socket.first_segment.is_shown()
}

/// Sends over TCP so that the kernel shows the segment. `None`, mostly: the caller sends. It also sends the rest, if not all
/// went. Where it cannot, because `all` are to go by one call, this sends the rest, as far as there is room, or nothing where
/// the call waits for room.
#[cold]
#[inline(never)]
pub fn send_shown(socket: &Socket, from: &Buffers, flags: i32, all: bool) -> Option<Result<usize>> {
    let may = first_segment::is_time(socket, from.remaining())
        && !is_on_small_stack()
        && !process::is_borrowed()
        && !policy::is_confined();
    may.then(|| first_segment::send(socket, from, flags, all)).flatten()
}

/// The step after a receive over TCP, and before the program asks for an error: takes away what the kernel may have shown
/// again of a segment. The caller has a pin.
#[inline]
pub fn forget_shown(socket: &Socket) {
    if socket.first_segment.is_shown() {
        first_segment::look_again(socket);
    }
}

/// True in a handler that runs on a stack of its own: that may have no room for more than a transfer.
fn is_on_small_stack() -> bool {
    !policy::is_confined() && thread::alternate_stack().is_some()
}

/// The step where a look is due, or another thread is about to change the lane. Sweeps through the process's connections first,
/// where it is time.
#[cold]
fn advance_by_negotiation(socket: &Socket) -> Lane {
    idle::check();
    if socket.phase() == phase::TCP {
        if is_on_small_stack() {
            socket.traffic.look_after(negotiate::PAUSE);
        } else {
            negotiate::step(socket);
        }
    }
    socket.await_lane()
}

/// Feeds arbitrary bytes to the offer socket, and to the table of entries.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    callers::fuzz(data);
    peer_table::fuzz(data);
}
