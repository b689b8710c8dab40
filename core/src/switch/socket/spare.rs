//! Sockets in no use, for the next connections. A thread takes and gives them back without a lock, so that a signal
//! handler may interrupt that and do the same. A socket that finds no place here goes to the list of
//! [`pool`](super::pool).

use super::Socket;
use std::ptr::{from_ref, null_mut};
use std::sync::atomic::{
    AtomicPtr,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// As many connections can begin, or end, at once before the list is needed.
const PLACES: usize = 128;

static SPARE: [AtomicPtr<Socket>; PLACES] = [const { AtomicPtr::new(null_mut()) }; PLACES];

/// One of them, which is the caller's.
pub(super) fn take() -> Option<&'static Socket> {
    for place in SPARE.iter().filter(|place| !place.load(Relaxed).is_null()) {
        let taken = place.swap(null_mut(), AcqRel);
        // SAFETY: sockets are never freed.
        if let Some(socket) = unsafe { taken.as_ref() } {
            return Some(socket);
        }
    }
    None
}

/// Keeps one that is the caller's; false if there is no room.
pub(super) fn give(socket: &'static Socket) -> bool {
    let socket = from_ref(socket).cast_mut();
    let is_free = |place: &&AtomicPtr<Socket>| place.load(Relaxed).is_null();
    SPARE
        .iter()
        .filter(is_free)
        .any(|place| place.compare_exchange(null_mut(), socket, Release, Acquire).is_ok())
}
