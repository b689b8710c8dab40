//! Asking for a link before TCP connects.
//!
//! The connector asks at the port number of the TCP listener, in the provider's own space of numbers: a peer
//! without the shim, or without a device, refuses or does not answer, which is remembered.

use super::adapters;
use super::fork_gate::{no_fork, Gate};
use super::link::{Link, Port};
use super::request::{self, MAGIC};
use super::source;
use crate::provider::interface::client::*;
use crate::provider::interface::{routing, Error, Started};
use crate::provider::shm::Geometry;
use crate::reason::Reason;
use crate::registry::SilentHosts;
use crate::sys::process::SignalsHeld;
use crate::sys::{poll, time};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Longest wait (ns) for the answer of a host that has answered before, and of any other: most of those have no
/// RDMA, and their users are not to notice.
const ANSWER: u64 = 500_000_000;
const FIRST_ANSWER: u64 = 200_000_000;
/// How long (ns) a refusal is remembered, and how long that nobody answered.
const REFUSED_FOR: u64 = 2_000_000_000;
const SILENT_FOR: u64 = 60_000_000_000;
/// Numbers of the pending operations.
const CONNECT: u64 = 1;
const COMPLETE: u64 = 2;

/// What must not be asked again before some time: an address, its port zero for all of a host.
static SILENT: Mutex<Vec<(SocketAddr, u64, Reason)>> = Mutex::new(Vec::new());
/// Hosts that have answered, be it that nobody listens.
static ANSWERED: Mutex<Vec<IpAddr>> = Mutex::new(Vec::new());

/// A link to whoever listens at `target`, connected and not yet bound to a TCP connection, whose `source` may be given.
///
/// # Errors
/// Why there is none.
pub(crate) fn connect(
    target: SocketAddr,
    source: Option<IpAddr>,
    geometry: &Geometry,
) -> Result<Arc<Link>, Reason> {
    if target.ip().is_loopback() && !source::is_of_this_host() {
        return Err(Reason::NoDevice);
    }
    // A signal handler that connects must not meet our own locks.
    let _held = SignalsHeld::new();
    let gate = no_fork();
    let Some(fabric) = adapters::fabric() else { return Err(Reason::NoDevice) };
    let routed = routing::local_address_for(target).ok().map(|local| local.ip());
    let local = source.or(routed).ok_or(Reason::NoDevice)?;
    let port = fabric.port(local).ok_or(Reason::NoDevice)?;
    let whole_host = SocketAddr::new(target.ip(), 0);
    if let Some(reason) = silent(target).or_else(|| silent(whole_host)) {
        return Err(reason);
    }
    let others = SilentHosts::of_this_user().filter(|_| !source::is_of_this_host());
    let is_silent = |others: &SilentHosts| others.contains(target.ip(), SILENT_FOR);
    if !has_answered(target.ip()) && others.as_ref().is_some_and(is_silent) {
        return Err(Reason::Unreachable);
    }
    let patience = if has_answered(target.ip()) { ANSWER } else { FIRST_ANSWER };
    let asked = ask(gate, port, target, geometry, patience);
    let _gate = no_fork();
    if matches!(asked, Ok(_) | Err(Error::ConnectionRefused)) {
        note_answer(target.ip());
    }
    match asked {
        Ok(link) => Ok(link),
        Err(Error::ConnectionRefused) => {
            remember(target, REFUSED_FOR, Reason::NoListener);
            Err(Reason::NoListener)
        }
        Err(why @ (Error::InsufficientResources | Error::AccessDenied)) => {
            log::warn!("no RDMA to {target}: {why}; see 'ulimit -l'");
            Err(Reason::OutOfMemory)
        }
        Err(Error::DeviceRemoved) => Err(Reason::NoDevice),
        Err(why) => {
            log::info!("no RDMA to {target}: {why}");
            if routed != Some(local) {
                // From where others come, it may answer.
                return Err(Reason::Unreachable);
            }
            // Of this host only that one process is silent, stopped as it may be.
            let (whom, how_long) = match source::is_of_this_host() {
                true => (target, REFUSED_FOR),
                false => (whole_host, SILENT_FOR),
            };
            remember(whom, how_long, Reason::Unreachable);
            if let Some(others) = others {
                others.note(target.ip(), SILENT_FOR);
            }
            Err(Reason::Unreachable)
        }
    }
}

fn answered() -> MutexGuard<'static, Vec<IpAddr>> {
    ANSWERED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn has_answered(host: IpAddr) -> bool {
    answered().contains(&host)
}

fn note_answer(host: IpAddr) {
    let mut known = answered();
    if !known.contains(&host) {
        known.push(host);
    }
}

fn silent(target: SocketAddr) -> Option<Reason> {
    let now = time::now();
    let mut known = SILENT.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|(_, until, _)| *until > now);
    known.iter().find(|(address, _, _)| *address == target).map(|(_, _, reason)| *reason)
}

fn remember(target: SocketAddr, how_long: u64, reason: Reason) {
    let mut known = SILENT.lock().unwrap_or_else(PoisonError::into_inner);
    known.push((target, time::now() + how_long, reason));
}

/// `gate` is not held while the peer's answer is waited for.
fn ask(
    gate: Gate,
    port: &'static Port,
    target: SocketAddr,
    geometry: &Geometry,
    patience: u64,
) -> Result<Arc<Link>, Error> {
    let mut gate = Some(gate);
    let deadline = time::now() + patience;
    let link = Link::new(port, port.device.objects()?.adapter.create_connector()?)?;
    let connected = (|| {
        let connector = link.connector();
        let data = request::encode(geometry, request::NEW);
        let started = connector.connect(link.pair(), target, &data, CONNECT)?;
        finish(&mut gate, connector, started, deadline)?;
        // Another program may listen at this number over RDMA.
        if !connector.private_data()?.starts_with(&MAGIC) {
            return Err(Error::ConnectionRefused);
        }
        let started = connector.complete_connect(COMPLETE)?;
        finish(&mut gate, connector, started, deadline)
    })();
    if let Err(why) = connected {
        link.end();
        return Err(why);
    }
    Ok(link)
}

/// Waits for an operation of a connector.
fn finish(
    gate: &mut Option<Gate>,
    connector: &Connector,
    started: Started,
    deadline: u64,
) -> Result<(), Error> {
    if started == Started::Done {
        return Ok(());
    }
    loop {
        if let Some(reported) = connector.next_result() {
            return reported.result;
        }
        let left = deadline.saturating_sub(time::now());
        if left == 0 {
            return Err(Error::TimedOut);
        }
        let fd = connector.descriptor();
        let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        *gate = None;
        let _ = poll::poll(&mut fds, Some(left), None);
        *gate = Some(no_fork());
    }
}
