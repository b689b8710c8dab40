//! What the program's threads and the helper know of an end that looks for its other end.

use crate::fabric::link::Link;
use crate::proof::FirstNumbers;
use crate::provider::shm::{Geometry, Role};
use crate::reason::Reason;
use crate::sys::time;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, OnceLock};

/// The addresses of a TCP connection, and which end of it is here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parties {
    /// Which end this is.
    pub(crate) role: Role,
    /// The connector's address.
    pub(crate) connector: SocketAddr,
    /// The acceptor's address.
    pub(crate) acceptor: SocketAddr,
    /// What proves which connection it is.
    pub(crate) numbers: FirstNumbers,
    /// The other end has sent something over TCP.
    pub(crate) has_peer_sent: bool,
}

impl Parties {
    /// This end's address.
    pub(super) fn local(&self) -> SocketAddr {
        match self.role {
            Role::Connector => self.connector,
            Role::Acceptor => self.acceptor,
        }
    }
}

/// What both threads know. The thread that lets go of it last dismisses a link that no thread took.
pub(super) struct Appointment {
    pub(super) parties: Parties,
    pub(super) geometry: Geometry,
    /// Clock (ns) when it was asked for.
    pub(super) since: u64,
    /// The acceptor's number, if that was not known at first: see [`FirstNumbers`].
    acceptors: OnceLock<u32>,
    result: OnceLock<Result<Arc<Link>, Reason>>,
    is_taken: AtomicBool,
    is_wanted: AtomicBool,
}

impl Appointment {
    pub(super) fn new(parties: Parties, geometry: Geometry) -> Self {
        Appointment {
            parties,
            geometry,
            since: time::now(),
            acceptors: OnceLock::new(),
            result: OnceLock::new(),
            is_taken: AtomicBool::new(false),
            is_wanted: AtomicBool::new(true),
        }
    }

    /// By a thread of the program: what came of it. A link is its from now on.
    pub(super) fn take(&self) -> Option<Result<Arc<Link>, Reason>> {
        let result = self.result.get()?.clone();
        self.is_taken.store(true, Relaxed);
        Some(result)
    }

    /// By a thread of the program: the acceptor has sent something since, and that is its number.
    pub(super) fn note_acceptors(&self, number: u32) {
        let _ = self.acceptors.set(number);
    }

    /// By the helper: what proves by now which connection it is.
    pub(super) fn numbers(&self) -> FirstNumbers {
        let FirstNumbers { connectors, acceptors } = self.parties.numbers;
        FirstNumbers { connectors, acceptors: acceptors.or(self.acceptors.get().copied()) }
    }

    /// A thread of the program calls this: it waits no more.
    pub(super) fn call_off(&self) {
        self.is_wanted.store(false, Release);
    }

    /// By the helper: a link stands.
    pub(super) fn meet(&self, link: Arc<Link>) {
        let _ = self.result.set(Ok(link));
    }

    /// By the helper: nothing comes of it.
    pub(super) fn fail(&self, why: Reason) {
        let _ = self.result.set(Err(why));
    }

    /// True once it is known what comes of it.
    pub(super) fn is_decided(&self) -> bool {
        self.result.get().is_some()
    }

    /// False once no thread waits for it any more.
    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Acquire)
    }
}

impl Drop for Appointment {
    fn drop(&mut self) {
        if let Some(Ok(link)) = self.result.take().filter(|_| !self.is_taken.load(Relaxed)) {
            link.refuse();
            link.close_within(None);
        }
    }
}
