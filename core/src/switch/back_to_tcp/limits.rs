//! What limits this process is looked at once a second, by who is about to move a connection to the SAN or sweeps through
//! those there. Where segments take too much, because the program or another process has taken more meanwhile, connections
//! go back.

use super::detach;
use crate::provider::shm::budget;
use crate::reason::Reason;
use crate::registry;
use crate::switch::anchor::returning;
use crate::switch::policy;
use crate::switch::socket::{phase, table};
use crate::sys::process::{self, SignalsHeld};
use crate::sys::{time, Fd};

/// Looks if it is time. No lock is held.
#[inline]
pub(in crate::switch) fn check() {
    let may_look = || !process::is_borrowed() && !policy::is_confined();
    if budget::is_due(time::now()) && may_look() {
        look();
    }
}

#[cold]
fn look() {
    let mut grown = 0;
    table::each_socket(0, Fd::MAX - 1, |fd, socket| {
        let stream = socket.stream().filter(|_| socket.anchor() == fd);
        grown += stream.map_or(0, |stream| stream.grown_bytes());
    });
    // It allocates, and so might a handler that comes between.
    let signals = SignalsHeld::new();
    let mut over = budget::refresh(grown);
    drop(signals);
    let (taken, most) = budget::of_memory();
    // Zero would say that nothing limits it.
    registry::set_budget(taken, most.map(|most| most.max(1)));
    table::each_socket(0, Fd::MAX - 1, |fd, socket| {
        if over.is_nothing() || socket.anchor() != fd || socket.phase() != phase::SAN {
            return;
        }
        let Some(stream) = socket.stream().filter(returning::may_begin_later) else { return };
        let cost = stream.segment.cost().and_grown(stream.grown_bytes());
        detach::advance(&socket, &stream, Reason::OutOfMemory);
        over = over.after(cost);
    });
}
