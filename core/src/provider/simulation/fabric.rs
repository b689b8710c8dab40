//! All there is in the simulated fabric, by number, behind one lock.

use super::connection::{SimulatedConnection, SimulatedListening};
use super::pair::{SimulatedPair, SimulatedReceive};
use crate::provider::interface::{Error, ProviderResult};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub(super) struct SimulatedFabric {
    last: u64,
    pub(super) pairs: BTreeMap<u64, SimulatedPair>,
    pub(super) shared: BTreeMap<u64, VecDeque<SimulatedReceive>>,
    pub(super) connections: BTreeMap<u64, SimulatedConnection>,
    pub(super) listeners: BTreeMap<u64, SimulatedListening>,
}

static FABRIC: Mutex<Option<SimulatedFabric>> = Mutex::new(None);

/// The fabric, locked.
pub(super) struct Locked(MutexGuard<'static, Option<SimulatedFabric>>);

pub(super) fn fabric() -> Locked {
    let mut guard = FABRIC.lock().unwrap_or_else(PoisonError::into_inner);
    guard.get_or_insert_with(SimulatedFabric::default);
    Locked(guard)
}

impl std::ops::Deref for Locked {
    type Target = SimulatedFabric;
    fn deref(&self) -> &SimulatedFabric {
        self.0.as_ref().expect("made when it was locked")
    }
}

impl std::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut SimulatedFabric {
        self.0.as_mut().expect("made when it was locked")
    }
}

impl SimulatedFabric {
    /// A number that nothing else has.
    pub(super) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The address itself, or one with a free port.
    pub(super) fn free_address(&self, wanted: SocketAddr) -> ProviderResult<SocketAddr> {
        let taken = |address| {
            self.listeners.values().any(|l| l.local == Some(address))
                || self.connections.values().any(|c| c.local == Some(address))
        };
        if wanted.port() != 0 {
            return if taken(wanted) { Err(Error::AddressInUse) } else { Ok(wanted) };
        }
        (49152..=65535)
            .map(|port| SocketAddr::new(wanted.ip(), port))
            .find(|&address| !taken(address))
            .ok_or(Error::AddressInUse)
    }

    pub(super) fn pair(&mut self, id: u64) -> ProviderResult<&mut SimulatedPair> {
        self.pairs.get_mut(&id).ok_or(Error::InvalidParameter)
    }

    pub(super) fn connection(&mut self, id: u64) -> ProviderResult<&mut SimulatedConnection> {
        self.connections.get_mut(&id).ok_or(Error::InvalidParameter)
    }
}
