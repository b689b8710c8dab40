//! Looks at what limits this process. A thread that is about to move a connection to the SAN, or that sweeps through
//! the connections there, looks once a second at most. If segments take too much, because the program or another
//! process has taken more meanwhile, connections go back.

use super::detach;
use crate::provider::shm::budget::{self, Cost};
use crate::reason::Reason;
use crate::registry;
use crate::switch::anchor::returning;
use crate::switch::policy;
use crate::switch::socket::structure::Structure;
use crate::switch::socket::{phase, table, Socket};
use crate::sys::process::{self, SignalsHeld};
use crate::sys::{time, Fd};

/// Looks if it is time. The caller holds no lock.
#[inline]
pub(in crate::switch) fn check() {
    if budget::claim_look(time::now()) {
        look();
    }
}

/// Looks if few descriptors may be left, after the program got a descriptor of this number. The caller holds no lock.
#[inline]
pub(in crate::switch) fn check_at(number: Fd) {
    if budget::is_due_at(number) {
        look();
    }
}

#[cold]
fn look() {
    if process::is_borrowed() || policy::is_confined() {
        return;
    }
    let mut grown = 0;
    table::each_socket(&mut |fd, socket| {
        let stream = socket.stream().filter(|_| socket.anchor() == fd);
        grown += stream.map_or(0, |stream| stream.grown_bytes());
    });
    // `refresh` allocates, and so might a signal handler that comes in between.
    let signals = SignalsHeld::new();
    let mut over = budget::refresh(grown);
    drop(signals);
    let (taken, most) = budget::of_memory();
    // Zero would say that nothing limits the memory.
    registry::set_budget(taken, most.map(|most| most.max(1)));
    table::each_socket(&mut |fd, socket| {
        if !over.is_nothing() && socket.anchor() == fd {
            over = give_up(&socket, over);
        }
    });
}

/// Has a connection go back, or go on with its return. Takes away what a connection that went back has left. Gives the
/// amount that other connections still have to give back.
fn give_up(socket: &Socket, over: Cost) -> Cost {
    let mut cost = Cost::default();
    if let Some(stream) = socket.stream().filter(|_| socket.phase() == phase::SAN) {
        if returning::is_due(&stream) {
            detach::look_after(socket, &stream);
        } else if returning::may_begin_later(&stream) {
            detach::advance(socket, &stream, Reason::OutOfMemory);
        } else {
            return over;
        }
        cost = stream.segment.cost().and_grown(stream.grown_bytes());
    }
    if socket.phase() == phase::TCP && socket.has_end() && !socket.shares_end() {
        socket.clear_end(&mut Structure::lock());
    }
    over.after(cost)
}
