//! Moves control of a direction to another process while the session is suspended (D4), where the configuration wants
//! that. On shared memory the token alone would do. The steps are here because a provider needs them if its connections
//! belong to one process.
//!
//! The process that has just got the token runs the steps, also in place of the process that had the token before: the
//! state of both lies in the same memory. The process has both locks meanwhile. A peer whose program is busy elsewhere
//! does not answer. The peer need not answer, since nothing is under way there: after [`PATIENCE`] the session goes on
//! as if the peer had answered.

use crate::registry::{self, Event};
use crate::switch::anchor::ends;
use crate::switch::anchor::returning;
use crate::switch::endpoint::control::ControlLock;
use crate::switch::endpoint::flag;
use crate::switch::policy;
use crate::switch::socket::Socket;
use crate::switch::stream::{Broken, Held, Stream};
use crate::switch::waiting::ring;
use crate::sys::{process, time};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// How long (ns) this end waits for the peer. That is much longer than a peer that looks takes to answer, and no longer
/// than a program that waits for nothing may be held up.
const PATIENCE: u64 = 2_000_000;
/// How long (ns) this end looks for the answer without sleeping, and how long it naps between looks after that.
const SPIN: u64 = 20_000;
const NAP: u64 = 50_000;

/// True once this process has logged that control came by a suspended session.
static SAID: AtomicBool = AtomicBool::new(false);

/// Suspends the session and resumes it, if another process had control before. A thread calls this after it took
/// control of a direction for a transfer.
#[inline]
pub(in crate::switch) fn after(socket: &Socket, stream: &Stream, held: &Held, other: &ControlLock) {
    if held.swapped {
        swap(socket, stream, other);
    }
}

#[cold]
fn swap(socket: &Socket, stream: &Stream, other: &ControlLock) {
    if !policy::swaps_by_suspension()
        || stream.is_between_hosts()
        || !stream.endpoint.has(flag::ESTABLISHED)
        || stream.endpoint.has(returning::OVER)
        || ends::hinted_end(stream)
        || returning::is_begun(stream)
    {
        return;
    }
    let started = time::now();
    let until = started + PATIENCE;
    let mut borrowed = None;
    if !pause_until(until, || {
        borrowed = stream.borrow(other);
        borrowed.is_some()
    }) {
        // Operations of the other direction are under way, or the process that has that direction is stopped.
        return;
    }
    let before = stream.endpoint.suspension.completed();
    let suspended = suspend(socket, stream, until);
    if stream.resume() {
        ring::ring(socket);
    }
    drop(borrowed);
    if stream.endpoint.suspension.completed() != before {
        if !SAID.swap(true, Relaxed) {
            log::info!("fd {}: control came by a suspended session", socket.anchor());
        }
        socket.statistics().suspensions.add(1);
        let took = time::now() - started;
        socket.statistics().suspended.add(took);
        registry::note(socket.statistics(), Event::Suspended(took));
    }
    if let Err(why) = suspended {
        ends::fail(socket, stream, why);
    }
}

/// Returns once the session is suspended, or will not be.
fn suspend(socket: &Socket, stream: &Stream, until: u64) -> Result<(), Broken> {
    let suspension = &stream.endpoint.suspension;
    let mut looked = Ok(());
    pause_until(until, || {
        looked = stream.look_for_suspension();
        if looked.is_ok()
            && (!suspension.is_asking() || suspension.gave_way())
            && stream.ask_to_suspend() == Some(true)
        {
            ring::ring(socket);
        }
        looked.is_err() || suspension.is_suspended()
    });
    looked
}

/// Looks until `done` says so, or the time `until` has come. True if `done` said so.
fn pause_until(until: u64, mut done: impl FnMut() -> bool) -> bool {
    let spins_until = time::now() + SPIN;
    while !done() {
        match time::now() {
            now if now >= until => return false,
            now if now < spins_until => process::yield_now(),
            _ => time::sleep(NAP),
        }
    }
    true
}
