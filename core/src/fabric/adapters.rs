//! The adapters of this process, by their local addresses. An adapter is opened when somebody first asks for it. This
//! module knows no connection.

use super::helper;
use super::link::LinkPort;
use super::port;
use super::source;
use crate::provider::interface::client::*;
use crate::provider::interface::Error;
use crate::sys::lock_order::{LockRank, RankedMutex};
use crate::sys::time;
use std::net::IpAddr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::OnceLock;

/// How long (ns) it is believed that an address has no adapter.
const ABSENCE: u64 = 5_000_000_000;

/// What an adapter lacks that links cannot use.
const LACKS: &str =
    "links need a shared receive queue, and messages that wait for a receive, which iWARP does not have";

/// An adapter's address, and the adapter in use or since when there is none.
type Place = (IpAddr, Result<&'static LinkPort, u64>);

/// What the provider of this process serves.
pub(super) struct Fabric {
    provider: Provider,
    ports: RankedMutex<Vec<Place>>,
    /// A copy of the open ports, readable without waiting for a port that is being opened.
    in_use: RankedMutex<Vec<&'static LinkPort>>,
}

/// What this process found. It is never freed. A fork child looks for itself, because its parent's provider is its
/// parent's.
static FABRIC: AtomicPtr<OnceLock<Option<Fabric>>> = AtomicPtr::new(std::ptr::null_mut());

/// The provider of this process. The first call looks for it.
pub(super) fn fabric() -> Option<&'static Fabric> {
    if !source::may_exist() {
        return None;
    }
    found()
        .get_or_init(|| {
            let library = source::load().inspect_err(|why| log::warn!("no RDMA: {why}")).ok()?;
            if let Some(why) = library.unusable() {
                log::warn!("no RDMA: {why}");
                return None;
            }
            let provider = Provider::open(&library).ok()?;
            let ports = RankedMutex::new(LockRank::Ports, Vec::new());
            let in_use = RankedMutex::new(LockRank::PortsInUse, Vec::new());
            Some(Fabric { provider, ports, in_use })
        })
        .as_ref()
}

/// In a fork child.
pub(super) fn after_fork_in_child() {
    port::after_fork_in_child();
    FABRIC.store(std::ptr::null_mut(), Ordering::Relaxed);
}

/// A port is retired.
pub(super) fn forget(port: &LinkPort) {
    if let Some(fabric) = fabric() {
        let is_it = |one: &Result<&'static LinkPort, u64>| matches!(one, Ok(one) if std::ptr::eq(*one, port));
        fabric.ports.lock().retain(|(_, one)| !is_it(one));
        fabric.in_use.lock().retain(|one| !std::ptr::eq(*one, port));
    }
}

/// The ports in use.
pub(super) fn in_use() -> Vec<&'static LinkPort> {
    present().map_or_else(Vec::new, |fabric| fabric.in_use.lock().clone())
}

/// True if that is so of any port in use.
pub(super) fn any_port(is_one: impl FnMut(&&'static LinkPort) -> bool) -> bool {
    present().is_some_and(|fabric| fabric.in_use.lock().iter().any(is_one))
}

fn present() -> Option<&'static Fabric> {
    found().get()?.as_ref()
}

fn found() -> &'static OnceLock<Option<Fabric>> {
    let mut at = FABRIC.load(Ordering::Acquire);
    if at.is_null() {
        let fresh = Box::into_raw(Box::default());
        match FABRIC.compare_exchange(at, fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => at = fresh,
            Err(other) => {
                // SAFETY: made above; nobody knows it.
                drop(unsafe { Box::from_raw(fresh) });
                at = other;
            }
        }
    }
    // SAFETY: never freed once it is there.
    unsafe { &*at }
}

impl Fabric {
    /// The adapter of a local address, opened when it is first asked for.
    pub(super) fn port(&self, local: IpAddr) -> Option<&'static LinkPort> {
        let mut ports = self.ports.lock();
        let now = time::now();
        ports.retain(|(_, port)| !matches!(port, Err(since) if now - since > ABSENCE));
        if let Some((_, port)) = ports.iter().find(|(ip, _)| *ip == local) {
            return port.ok();
        }
        let adapter = self.provider.open_adapter((local, 0).into());
        let opened = adapter.and_then(|adapter| LinkPort::open(adapter, local));
        if let Ok(port) = opened {
            self.have_watched(port);
        }
        let entry = opened.map_err(|why| {
            let what = match why {
                Error::NotSupported => LACKS.into(),
                why => why.to_string(),
            };
            log::info!("no RDMA from {local}: {what}");
            now
        });
        ports.push((local, entry));
        entry.ok()
    }

    /// The helper looks after it from now on.
    fn have_watched(&self, port: &'static LinkPort) {
        if !helper::start() {
            return;
        }
        self.in_use.lock().push(port);
        if let Some(descriptor) = port.device.descriptor() {
            helper::watch(descriptor);
        }
        if let Some(descriptor) = port.device.removal() {
            helper::watch_removal(descriptor);
        }
        helper::wake();
    }
}
