//! The time stamp of a connection's first segment. The ends of a connection agree on it whatever addresses they see.
//! The library asks for it only where ends in different network namespaces may find each other.

use crate::switch::policy;
use crate::switch::socket::Socket;
use crate::sys::{syn, time, Fd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const MILLISECOND: u64 = 1_000_000;

/// The program has the kernel keep first segments for itself. To read one takes it away.
static ARE_THE_PROGRAMS: AtomicBool = AtomicBool::new(false);

/// The program sets the option by which the kernel keeps them.
pub(in crate::switch) fn leave_to_program() {
    ARE_THE_PROGRAMS.store(true, Relaxed);
}

/// Connections will be accepted on this one.
pub(in crate::switch) fn keep(listener: Fd) {
    if policy::crosses_namespaces() && !ARE_THE_PROGRAMS.load(Relaxed) {
        syn::keep(listener);
    }
}

/// Notes it: the kernel has just begun to make a connection, which the call that made it began at that time (clock, ns).
pub(in crate::switch) fn note(socket: &Socket, began: u64) {
    let passed = time::now().saturating_sub(began) / MILLISECOND;
    let stamp = syn::stamp_now(socket.anchor()).map(|now| now.wrapping_sub(passed as u32));
    socket.first_stamp.store(stamp.unwrap_or(0), Relaxed);
}

/// The stamp of a connection that this process made.
pub(super) fn of_connected(socket: &Socket) -> Option<u32> {
    Some(socket.first_stamp.load(Relaxed)).filter(|stamp| *stamp != 0)
}

/// The stamp of a connection that this process accepted. The kernel tells it once.
pub(super) fn of_accepted(socket: &Socket) -> Option<u32> {
    let is_ours = policy::crosses_namespaces() && !ARE_THE_PROGRAMS.load(Relaxed);
    let noted = of_connected(socket);
    let found = noted.or_else(|| is_ours.then(|| syn::stamp_of_kept(socket.anchor()))?);
    socket.first_stamp.store(found.unwrap_or(0), Relaxed);
    found
}
