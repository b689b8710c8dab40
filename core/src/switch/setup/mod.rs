//! How a connection comes to the SAN.
//!
//! connect and accept make a TCP connection and nothing else. Once one has shown that it is busy ([`traffic`]) its ends look
//! for each other ([`board`], [`door`]) and agree ([`moving`]); from then on each direction [turns](super::lanes) when
//! both are ready. Until then everything is TCP's, and nobody waits for anybody.
//!
//! Connections between hosts still agree before TCP connects ([`connect`], [`listener`]). May call the books (socket, table,
//! structure), streams and epoll; knows nothing of transfers.

mod accept;
mod board;
mod connect;
mod door;
mod listener;
mod moving;
pub mod shared;
mod traffic;
mod tuple;

pub(super) use accept::serve;
pub use accept::{accepted, listening, serving};
pub use connect::{connect, establish};
pub(super) use door::Door;
pub use listener::Listener;
pub use moving::before_user_change;
pub(super) use moving::stay_on_tcp;
pub(super) use moving::Prospect;
pub use traffic::Traffic;
pub(super) use traffic::{initialize, note_transfer, Way};

use super::socket::{phase, Socket};
use super::structure::Structure;
use super::table;
use crate::sys::process;
use std::sync::atomic::Ordering::Relaxed;

/// In a fork child, whose sockets on TCP are its parent's as well.
pub(super) fn after_fork_in_child(structure: &mut Structure) {
    if let Some(door) = structure.door.take() {
        door.close();
    }
    table::each_socket_alone(|socket| {
        // Most have none.
        if !socket.is_looked_at.load(Relaxed) {
            return;
        }
        if let Some(prospect) = socket.guarded(structure).prospect.take() {
            prospect.forget();
        }
    });
}

/// Whether a transfer of so many bytes is the switch's. Counts one over TCP, which may be what brings the connection to the
/// SAN. The caller keeps its pin until the transfer is over: while it does, it stays where it is.
#[inline]
pub(super) fn is_on_san(socket: &Socket, way: Way, bytes: usize) -> bool {
    match socket.phase() {
        phase::SAN => true,
        phase::TCP if !socket.traffic.count(way, bytes) => false,
        _ => passes_by(socket),
    }
}

#[cold]
fn passes_by(socket: &Socket) -> bool {
    if socket.phase() == phase::TCP {
        moving::step(socket);
    }
    has_entered(socket)
}

/// Whether it is on the SAN; if not, it stays where it is as long as the caller keeps its pin.
#[inline]
pub(super) fn has_entered(socket: &Socket) -> bool {
    // Another thread is about to decide: nobody who does may be interrupted.
    while socket.phase() == phase::ENTERING {
        process::yield_now();
    }
    socket.phase() == phase::SAN
}
