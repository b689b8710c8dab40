//! All ends of this process that look for others. Threads of the program ask for them, and the helper sees to them.

use super::appointment::Appointment;
use super::approach::Approach;
use super::awaiting::{self, Awaited, Listening, AWAITED_FOR};
use crate::fabric::link::LinkPort;
use crate::fabric::{adapters, helper};
use crate::provider::shm::Role;
use crate::reason::Reason;
use crate::sys::lock_order::{LockRank, RankedMutex};
use crate::sys::time;
use std::sync::Arc;

/// What threads asked for and the helper has not seen. A thread holds the lock for moments only.
static ASKED: RankedMutex<Vec<Arc<Appointment>>> = RankedMutex::new(LockRank::Asked, Vec::new());
/// The helper's.
static STATE: RankedMutex<State> = RankedMutex::new(
    LockRank::Meeting,
    State { listening: Vec::new(), awaited: Vec::new(), approaches: Vec::new() },
);

struct State {
    listening: Vec<Listening>,
    awaited: Vec<Awaited>,
    approaches: Vec<Approach>,
}

/// Has the helper see to it. Signals are held back.
pub(super) fn ask(appointment: Arc<Appointment>) {
    ASKED.lock().push(appointment);
    helper::wake();
}

/// In a fork child: all of it is the parent's.
pub(in crate::fabric) fn after_fork_in_child() {
    std::mem::forget(std::mem::take(&mut *ASKED.lock()));
    let mut state = STATE.lock();
    std::mem::forget(std::mem::take(&mut state.listening));
    std::mem::forget(std::mem::take(&mut state.awaited));
    std::mem::forget(std::mem::take(&mut state.approaches));
}

/// The helper's work. True if the helper is to look again in a while, whatever happens.
pub(in crate::fabric) fn progress() -> bool {
    let fresh = std::mem::take(&mut *ASKED.lock());
    let mut state = STATE.lock();
    for appointment in fresh {
        state.begin(appointment);
    }
    let State { listening, awaited, approaches } = &mut *state;
    let again = awaiting::listen(listening, awaited);
    awaiting::progress(listening, awaited);
    approaches.retain_mut(Approach::go_on);
    again || listening.iter().any(|one| one.reception.is_short())
}

/// How long (ns) until there is something to do although nothing happens; `None`: there is nothing.
pub(in crate::fabric) fn next_due() -> Option<u64> {
    let state = STATE.lock();
    let awaited = state.awaited.iter().map(|one| one.appointment.since + AWAITED_FOR);
    let due = awaited.chain(state.approaches.iter().map(Approach::due)).min()?;
    Some(due.saturating_sub(time::now()).max(100_000))
}

/// A port is retired: no end meets another there any more.
pub(in crate::fabric) fn retire(port: &'static LinkPort) {
    let mut state = STATE.lock();
    let is_its = |other: &LinkPort| std::ptr::eq(other, port);
    for mut one in state.awaited.extract_if(.., |one| is_its(one.port)) {
        one.dismiss(Reason::NoDevice);
    }
    for mut one in state.approaches.extract_if(.., |one| is_its(one.port)) {
        one.dismiss(Reason::NoDevice);
    }
    state.listening.retain(|one| !is_its(one.reception.port));
}

impl State {
    fn begin(&mut self, appointment: Arc<Appointment>) {
        let local = appointment.parties.local().ip();
        let Some(port) = adapters::fabric().and_then(|fabric| fabric.port(local)) else {
            return appointment.fail(Reason::NoDevice);
        };
        match appointment.parties.role {
            Role::Connector => self.awaited.push(Awaited::new(appointment, port)),
            Role::Acceptor => self.approaches.push(Approach::new(appointment, port)),
        }
    }
}
