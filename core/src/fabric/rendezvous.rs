//! Which links belong to which TCP connections (design 2).
//!
//! The connector asks for a link at the port number of the TCP listener, in rdma_cm's own space of
//! numbers, before it connects over TCP: a peer without the shim, or without a device, refuses or does
//! not answer, which is remembered. Once TCP's source port is known the link is bound to the two
//! addresses. The acceptor finds the link by them when it has accepted; that one arrived, bound or
//! not yet, tells it that there is something to wait for.

use super::helper;
use super::link::{stage, Link};
use super::port::Port;
use super::{fabric, frame, generation, no_fork, Fabric};
use crate::provider::interface::client::*;
use crate::provider::interface::{routing, Error, Info, Started};
use crate::provider::shm::Geometry;
use crate::reason::Reason;
use crate::sys::process::SignalsHeld;
use crate::sys::{poll, time};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLockReadGuard};

/// Begins what a connection request carries.
const MAGIC: [u8; 8] = *b"sanshim\x02";
/// Longest wait for an answer, in nanoseconds.
const ANSWER: u64 = 500_000_000;
/// How long a refusal is remembered, and how long that nobody answered.
const REFUSED_FOR: u64 = 2_000_000_000;
const SILENT_FOR: u64 = 60_000_000_000;
/// How long an acceptor waits for the addresses of a link that has arrived.
const BINDING: u64 = 200_000_000;
/// How long ago a link has arrived at most whose addresses are still to be expected.
const RECENT: u64 = 1_000_000_000;
/// How long an arrived link waits to be accepted after its TCP connection is gone unnoticed.
const WAITING: u64 = 600_000_000_000;
/// Connection requests that wait for the helper.
const BACKLOG: u32 = 1024;
/// Numbers of the pending operations.
const CONNECT: u64 = 1;
const COMPLETE: u64 = 2;
const ACCEPT: u64 = 3;
const ENDED: u64 = 4;

/// What must not be asked again before some time: an address, its port zero for all of a host.
static SILENT: Mutex<Vec<(SocketAddr, u64, Reason)>> = Mutex::new(Vec::new());
static STATE: Mutex<State> =
    Mutex::new(State { listening: Vec::new(), arrivals: Vec::new(), next: 0 });

struct State {
    listening: Vec<Listening>,
    arrivals: Vec<Arrival>,
    next: u64,
}

/// A listener of one adapter.
struct Listening {
    serving: u64,
    port: Arc<Port>,
    listener: Listener,
    /// Takes the next request.
    connector: Connector,
    contested: Contested,
}

/// A link that somebody offered and nobody accepted yet.
struct Arrival {
    serving: u64,
    link: Arc<Link>,
    from: IpAddr,
    geometry: Geometry,
    since: u64,
}

/// Where it stands, in memory that outlives the [`Serving`], that other processes accept as well.
#[derive(Clone, Copy)]
struct Contested(*const AtomicU32);

// SAFETY: it names an atomic.
unsafe impl Send for Contested {}

impl Contested {
    fn is_set(self) -> bool {
        // SAFETY: the promise of `serve`.
        unsafe { (*self.0).load(Ordering::Relaxed) != 0 }
    }
}

/// A link that belongs to an accepted connection.
pub struct Claim {
    /// The link. To be attached and confirmed, or refused.
    pub link: Arc<Link>,
    /// How both ends' segments are divided.
    pub geometry: Geometry,
}

impl Claim {
    /// The connection stays on TCP.
    pub fn refuse(self) {
        self.link.refuse_taken();
        self.link.close(None);
    }
}

/// A TCP listener whose connectors are served, until it is dropped.
pub struct Serving {
    number: u64,
    /// The process it is of ([`super::generation`]).
    owner: u32,
}

/// In a fork child: listeners and what arrived there are the parent's, and stay as they are.
pub(super) fn after_fork_in_child() {
    let mut state = state();
    std::mem::forget(std::mem::take(&mut state.listening));
    std::mem::forget(std::mem::take(&mut state.arrivals));
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a segment is divided whose ends are on different hosts: nothing is resized, since nothing but
/// frames has a size there.
pub fn geometry_of(shm: Geometry) -> Geometry {
    let largest = (frame::LARGEST - frame::HEADER) as u32 / 64 * 64;
    let message_size = shm.message_size.min(largest);
    Geometry {
        message_size,
        largest_message: message_size,
        largest_send_buffer: shm.send_buffer,
        ..shm
    }
}

/// What a connection request carries.
fn request_data(geometry: &Geometry) -> Vec<u8> {
    let mut data = MAGIC.to_vec();
    for word in [frame::VERSION, geometry.buffers, geometry.message_size, geometry.send_buffer] {
        data.extend_from_slice(&word.to_le_bytes());
    }
    data
}

/// The geometry in a request; `None` if it is not one of ours.
fn understand(data: &[u8]) -> Option<Geometry> {
    let rest = data.strip_prefix(&MAGIC)?;
    let word = |i: usize| Some(u32::from_le_bytes(rest.get(4 * i..4 * i + 4)?.try_into().ok()?));
    if word(0)? != frame::VERSION {
        return None;
    }
    let (message_size, send_buffer) = (word(2)?, word(3)?);
    let geometry = Geometry {
        buffers: word(1)?,
        message_size,
        send_buffer,
        largest_message: message_size,
        largest_send_buffer: send_buffer,
    };
    let geometry = geometry.check().ok()?;
    (geometry_of(geometry) == geometry).then_some(geometry)
}

/// A link to whoever listens at `target`, connected and not yet bound to a TCP connection.
///
/// # Errors
/// Why there is none.
pub fn connect(target: SocketAddr, geometry: &Geometry) -> Result<Arc<Link>, Reason> {
    if target.ip().is_loopback() {
        return Err(Reason::NoDevice);
    }
    // A signal handler that connects must not meet our own locks.
    let _held = SignalsHeld::new();
    let gate = no_fork();
    let Some(fabric) = fabric() else { return Err(Reason::NoDevice) };
    let local = routing::local_address_for(target).map_err(|_| Reason::NoDevice)?;
    let port = fabric.port(local.ip()).ok_or(Reason::NoDevice)?;
    let whole_host = SocketAddr::new(target.ip(), 0);
    if let Some(reason) = silent(target).or_else(|| silent(whole_host)) {
        return Err(reason);
    }
    match ask(gate, &port, target, geometry) {
        Ok(link) => Ok(link),
        Err(Error::ConnectionRefused) => {
            remember(target, REFUSED_FOR, Reason::NoListener);
            Err(Reason::NoListener)
        }
        Err(why @ (Error::InsufficientResources | Error::AccessDenied)) => {
            log::warn!("no RDMA to {target}: {why}; see 'ulimit -l'");
            Err(Reason::OutOfMemory)
        }
        Err(why) => {
            log::info!("no RDMA to {target}: {why}");
            remember(whole_host, SILENT_FOR, Reason::Unreachable);
            Err(Reason::Unreachable)
        }
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
    gate: RwLockReadGuard<'static, ()>,
    port: &Arc<Port>,
    target: SocketAddr,
    geometry: &Geometry,
) -> Result<Arc<Link>, Error> {
    let mut gate = Some(gate);
    let deadline = time::now() + ANSWER;
    let link = Link::new(port, port.adapter.create_connector()?)?;
    let connected = (|| {
        let connector = &link.connector;
        let started = connector.connect(link.pair(), target, &request_data(geometry), CONNECT)?;
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
    gate: &mut Option<RwLockReadGuard<'static, ()>>,
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

/// Serves the connectors of a TCP listener bound to `address` (`dual`: of both families).
/// `contested` is set when other processes accept from the listener too: then nobody is served,
/// because who has a link could not know who accepts its TCP connection.
///
/// # Safety
/// `contested` stays valid until the result is dropped.
pub unsafe fn serve(address: SocketAddr, dual: bool, contested: &AtomicU32) -> Option<Serving> {
    let _held = SignalsHeld::new();
    let _gate = no_fork();
    let fabric = fabric()?;
    let number = {
        let mut state = state();
        state.next += 1;
        state.next
    };
    let serving = Serving { number, owner: generation() };
    let mut any = false;
    for local in addresses_of(fabric, address, dual) {
        let Some(port) = fabric.port(local) else { continue };
        match listen(&port, SocketAddr::new(local, address.port())) {
            Ok((listener, connector)) => {
                let descriptor = listener.descriptor();
                let contested = Contested(contested);
                state().listening.push(Listening {
                    serving: number,
                    port,
                    listener,
                    connector,
                    contested,
                });
                helper::watch(descriptor);
                any = true;
            }
            Err(why) => log::info!("not listening over RDMA at {local}: {why}"),
        }
    }
    any.then_some(serving)
}

/// The adapters' addresses that a listener serves.
fn addresses_of(fabric: &Fabric, address: SocketAddr, dual: bool) -> Vec<IpAddr> {
    if !address.ip().is_unspecified() {
        return vec![address.ip().to_canonical()];
    }
    let families = if dual {
        Info::IPV4 | Info::IPV6
    } else if address.is_ipv4() {
        Info::IPV4
    } else {
        Info::IPV6
    };
    let all = fabric.provider.addresses().unwrap_or_default();
    all.into_iter()
        .filter(|a| families & if a.is_ipv4() { Info::IPV4 } else { Info::IPV6 } != 0)
        .map(|a| a.ip())
        .collect()
}

fn listen(port: &Port, at: SocketAddr) -> Result<(Listener, Connector), Error> {
    let listener = port.adapter.create_listener()?;
    listener.bind(at)?;
    listener.listen(BACKLOG)?;
    let connector = port.adapter.create_connector()?;
    // The helper takes what is done at once as well as what comes.
    let _ = listener.get_connection_request(&connector, ACCEPT)?;
    Ok((listener, connector))
}

impl Drop for Serving {
    fn drop(&mut self) {
        if self.owner != generation() {
            // In a fork child: the parent's.
            return;
        }
        let _held = SignalsHeld::new();
        let _gate = no_fork();
        let mut state = state();
        let (gone, kept) = state.listening.drain(..).partition(|l| l.serving == self.number);
        state.listening = kept;
        let (late, kept) = state.arrivals.drain(..).partition(|a| a.serving == self.number);
        state.arrivals = kept;
        drop(state);
        let (gone, late): (Vec<Listening>, Vec<Arrival>) = (gone, late);
        for one in gone {
            helper::forget(one.listener.descriptor());
        }
        for one in late {
            one.dismiss();
        }
    }
}

impl Arrival {
    /// Tells the connector that nobody takes it, and ends it when that is told.
    fn dismiss(self) {
        helper::forget(self.link.connector.descriptor());
        self.link.refuse();
        self.link.close_within(None);
    }
}

/// What the helper does; true if something is under way.
pub(super) fn progress() -> bool {
    let mut state = state();
    let state = &mut *state;
    if state.listening.is_empty() && state.arrivals.is_empty() {
        return false;
    }
    for one in &mut state.listening {
        while let Some(reported) = one.listener.next_result() {
            let Ok(next) = one.port.adapter.create_connector() else { break };
            let connector = std::mem::replace(&mut one.connector, next);
            let _ = one.listener.get_connection_request(&one.connector, ACCEPT);
            if reported.result.is_err() {
                continue;
            }
            match welcome(one, connector) {
                Ok(arrival) => state.arrivals.push(arrival),
                Err(why) => log::info!("a connector over RDMA was not served: {why}"),
            }
        }
    }
    let contested: Vec<u64> =
        state.listening.iter().filter(|l| l.contested.is_set()).map(|l| l.serving).collect();
    let mut at = 0;
    while at < state.arrivals.len() {
        let one = &state.arrivals[at];
        let mut over = one.link.has_failed()
            || one.link.stage() >= stage::OPEN
            || contested.contains(&one.serving)
            || time::now() - one.since > WAITING;
        while let Some(reported) = one.link.connector.next_result() {
            match reported.request {
                ACCEPT if reported.result.is_ok() => {
                    over |= !matches!(
                        one.link.connector.notify_disconnect(ENDED),
                        Ok(Started::Pending)
                    );
                }
                _ => over = true,
            }
        }
        if over {
            state.arrivals.swap_remove(at).dismiss();
        } else {
            at += 1;
        }
    }
    !state.arrivals.is_empty()
}

/// Takes a connection request.
fn welcome(one: &Listening, connector: Connector) -> Result<Arrival, Error> {
    let geometry = connector.private_data().ok().and_then(|data| understand(&data));
    let Some(geometry) = geometry.filter(|_| !one.contested.is_set()) else {
        connector.reject(&MAGIC)?;
        return Err(Error::ConnectionRefused);
    };
    let from = connector.peer_address()?.ip().to_canonical();
    let link = Link::new(&one.port, connector)?;
    let accepted = link.connector.accept(link.pair(), &MAGIC, ACCEPT);
    if let Err(why) = accepted {
        link.end();
        return Err(why);
    }
    helper::watch(link.connector.descriptor());
    Ok(Arrival { serving: one.serving, link, from, geometry, since: time::now() })
}

/// The link of an accepted TCP connection from `from`, with the addresses that its connector binds
/// it to; waits a moment for one that has arrived and is not bound. `None`: there is none.
pub fn accept(tuple: &[u8], from: IpAddr) -> Option<Claim> {
    if !super::may_exist() {
        return None;
    }
    let _held = SignalsHeld::new();
    let start = time::now();
    loop {
        let gate = no_fork();
        let mut state = state();
        let found = state.arrivals.iter().position(|a| {
            let bound = a.from == from && a.link.stage() == stage::BOUND;
            bound && a.link.binding.get().is_some_and(|binding| binding.as_slice() == tuple)
        });
        if let Some(found) = found {
            let Arrival { link, geometry, .. } = state.arrivals.swap_remove(found);
            drop(state);
            helper::forget(link.connector.descriptor());
            if !link.take() {
                link.close_within(None);
                return None;
            }
            return Some(Claim { link, geometry });
        }
        let expected = state.arrivals.iter().find(|a| {
            a.from == from
                && a.link.stage() == stage::OFFERED
                && start.saturating_sub(a.since) < RECENT
        });
        let port = expected?.link.port().clone();
        drop(state);
        if time::now() - start > BINDING {
            return None;
        }
        port.poll();
        drop(gate);
        time::sleep(20_000);
    }
}
