//! What this process knows of listeners that it serves, links that arrived there, and claims of other processes. Under
//! one lock.

use super::shared_backlog::SharedBacklog;
use crate::fabric::link::Link;
use crate::fabric::mailbox::Invitation;
use crate::fabric::reception::Reception;
use crate::fabric::request::Cookie;
use crate::provider::shm::Geometry;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

static STATE: Mutex<State> = Mutex::new(State {
    servings: Vec::new(),
    listening: Vec::new(),
    arrivals: Vec::new(),
    claims: Vec::new(),
    met: Vec::new(),
    lost: Vec::new(),
    searched: 0,
    next: 0,
});

pub(super) struct State {
    pub(super) servings: Vec<Served>,
    pub(super) listening: Vec<Listening>,
    pub(super) arrivals: Vec<Arrival>,
    pub(super) claims: Vec<Claimed>,
    /// Claims that were met, and when.
    pub(super) met: Vec<(Cookie, u64)>,
    /// Addresses whose devices were removed, and clock (ns) of the last look for them.
    pub(super) lost: Vec<IpAddr>,
    pub(super) searched: u64,
    pub(super) next: u64,
}

/// A TCP listener whose connectors are served.
#[derive(Clone, Copy)]
pub(super) struct Served {
    pub(super) number: u64,
    /// Where it is bound; `dual`: of both families.
    pub(super) address: SocketAddr,
    pub(super) dual: bool,
    pub(super) backlog: BacklogRef,
}

/// A listener of one adapter.
pub(super) struct Listening {
    pub(super) serving: u64,
    pub(super) reception: Reception,
    pub(super) backlog: BacklogRef,
}

/// A link that somebody offered and nobody accepted yet.
pub(super) struct Arrival {
    pub(super) serving: u64,
    pub(super) backlog: BacklogRef,
    pub(super) link: Arc<Link>,
    pub(super) from: IpAddr,
    pub(super) geometry: Geometry,
    pub(super) since: u64,
}

/// A backlog, in memory that outlives the [`Serving`](super::serving::Serving).
#[derive(Clone, Copy)]
pub(super) struct BacklogRef(pub(super) *const SharedBacklog);

// SAFETY: it names atomics.
unsafe impl Send for BacklogRef {}

impl BacklogRef {
    pub(super) fn get(&self) -> &SharedBacklog {
        // SAFETY: the promise of `serve`.
        unsafe { &*self.0 }
    }
}

/// Another process accepted a connection, and wants its link.
pub(super) struct Claimed {
    pub(super) serving: u64,
    pub(super) invitation: Invitation,
    pub(super) from: IpAddr,
    pub(super) tuple: Vec<u8>,
    pub(super) since: u64,
}

/// To be held for moments.
pub(super) fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In a fork child: listeners and what arrived there are the parent's, and stay as they are.
pub(in crate::fabric) fn after_fork_in_child() {
    let mut state = state();
    state.servings.clear();
    state.lost.clear();
    std::mem::forget(std::mem::take(&mut state.listening));
    std::mem::forget(std::mem::take(&mut state.arrivals));
    state.claims.clear();
    state.met.clear();
}
