//! Which links belong to which TCP connections (design 2).
//!
//! The connector asks for a link at the port number of the TCP listener, in rdma_cm's own space of
//! numbers, before it connects over TCP: a peer without the shim, or without a device, refuses or does
//! not answer, which is remembered. Once TCP's source port is known the link is bound to the two
//! addresses. The acceptor finds the link by them when it has accepted; that one arrived, bound or
//! not yet, tells it that there is something to wait for.

use super::board::Board;
use super::link::{stage, Link};
use super::mailbox::{self, Address, Berth, Message};
use super::port::Port;
use super::request::{self, Cookie, MAGIC};
use super::{fabric, generation, helper, no_fork, Fabric};
use crate::provider::interface::client::*;
use crate::provider::interface::{routing, Error, Info, Started};
use crate::provider::shm::Geometry;
use crate::reason::Reason;
use crate::sys::process::SignalsHeld;
use crate::sys::{poll, time};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLockReadGuard};

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
static STATE: Mutex<State> = Mutex::new(State {
    listening: Vec::new(),
    arrivals: Vec::new(),
    claims: Vec::new(),
    met: Vec::new(),
    next: 0,
});

struct State {
    listening: Vec<Listening>,
    arrivals: Vec<Arrival>,
    claims: Vec<Claimed>,
    /// Claims that were met, and when.
    met: Vec<(Cookie, u64)>,
    next: u64,
}

/// A listener of one adapter.
struct Listening {
    serving: u64,
    port: &'static Port,
    listener: Listener,
    /// Takes the next request.
    connector: Connector,
    board: Place,
}

/// A link that somebody offered and nobody accepted yet.
struct Arrival {
    serving: u64,
    board: Place,
    link: Arc<Link>,
    from: IpAddr,
    geometry: Geometry,
    since: u64,
}

/// A board, in memory that outlives the [`Serving`].
#[derive(Clone, Copy)]
struct Place(*const Board);

// SAFETY: it names atomics.
unsafe impl Send for Place {}

impl Place {
    fn board(&self) -> &Board {
        // SAFETY: the promise of `serve`.
        unsafe { &*self.0 }
    }
}

/// Another process accepted a connection, and wants its link.
struct Claimed {
    serving: u64,
    berth: Berth,
    from: IpAddr,
    tuple: Vec<u8>,
    since: u64,
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
    board: Place,
    mailbox: Address,
}

// SAFETY: it names atomics.
unsafe impl Sync for Serving {}

/// In a fork child: listeners and what arrived there are the parent's, and stay as they are.
pub(super) fn after_fork_in_child() {
    let mut state = state();
    std::mem::forget(std::mem::take(&mut state.listening));
    std::mem::forget(std::mem::take(&mut state.arrivals));
    state.claims.clear();
    state.met.clear();
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
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
    match ask(gate, port, target, geometry) {
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
    port: &'static Port,
    target: SocketAddr,
    geometry: &Geometry,
) -> Result<Arc<Link>, Error> {
    let mut gate = Some(gate);
    let deadline = time::now() + ANSWER;
    let link = Link::new(port, port.adapter.create_connector()?)?;
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
/// Of the processes that accept from the listener, which share `board`, one at a time does.
///
/// # Safety
/// `board` stays valid until the result is dropped.
pub unsafe fn serve(address: SocketAddr, dual: bool, board: &Board) -> Option<Serving> {
    let _held = SignalsHeld::new();
    let _gate = no_fork();
    let fabric = fabric()?;
    let number = {
        let mut state = state();
        state.next += 1;
        state.next
    };
    let (_, mailbox) = helper::mailbox()?;
    let board = Place(board);
    let serving = Serving { number, owner: generation(), board, mailbox };
    board.board().begin(mailbox);
    let mut any = false;
    for local in addresses_of(fabric, address, dual) {
        let Some(port) = fabric.port(local) else { continue };
        match listen(port, SocketAddr::new(local, address.port())) {
            Ok((listener, connector)) => {
                let descriptor = listener.descriptor();
                state().listening.push(Listening {
                    serving: number,
                    port,
                    listener,
                    connector,
                    board,
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

fn listen(port: &'static Port, at: SocketAddr) -> Result<(Listener, Connector), Error> {
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
        self.board.board().end(self.mailbox);
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
    /// It waits no more.
    fn leave(self) -> (Arc<Link>, Geometry) {
        self.board.board().leaves(self.from);
        helper::forget(self.link.connector().descriptor());
        (self.link, self.geometry)
    }

    /// Tells the connector that nobody takes it, and ends it when that is told.
    fn dismiss(self) {
        let (link, _) = self.leave();
        link.refuse();
        link.close_within(None);
    }

    /// Sends the connector to the process that accepted its TCP connection.
    fn hand_on(self, berth: &Berth) {
        if berth.number == 0 {
            return self.dismiss();
        }
        let (link, _) = self.leave();
        if !link.move_to(berth) {
            link.refuse();
        }
        link.close_within(None);
    }

    fn is_of(&self, tuple: &[u8], from: IpAddr) -> bool {
        let bound = self.from == from && self.link.stage() == stage::BOUND;
        bound && self.link.binding.get().is_some_and(|binding| binding.as_slice() == tuple)
    }

    /// True if the addresses of a link from there are still to come.
    fn may_become(&self, from: IpAddr, now: u64) -> bool {
        self.from == from
            && self.link.stage() == stage::OFFERED
            && now.saturating_sub(self.since) < RECENT
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
    state.settle_claims();
    let mut at = 0;
    while at < state.arrivals.len() {
        let one = &state.arrivals[at];
        let mut over = one.link.has_failed()
            || one.link.stage() >= stage::OPEN
            || time::now() - one.since > WAITING;
        while let Some(reported) = one.link.connector().next_result() {
            match reported.request {
                ACCEPT if reported.result.is_ok() => {
                    over |= !matches!(
                        one.link.connector().notify_disconnect(ENDED),
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
    let asked = connector.private_data().ok().and_then(|data| request::decode(&data));
    let Some((geometry, _)) = asked.filter(|(_, cookie)| *cookie == request::NEW) else {
        connector.reject(&MAGIC)?;
        return Err(Error::ConnectionRefused);
    };
    let from = connector.peer_address()?.ip().to_canonical();
    let link = Link::new(one.port, connector)?;
    one.board.board().arrives(from);
    let accepted = link.connector().accept(link.pair(), &MAGIC, ACCEPT);
    if let Err(why) = accepted {
        one.board.board().leaves(from);
        link.end();
        return Err(why);
    }
    helper::watch(link.connector().descriptor());
    let (serving, board) = (one.serving, one.board);
    Ok(Arrival { serving, board, link, from, geometry, since: time::now() })
}

impl State {
    /// Gives the links that other processes claimed to them, once it is known which those are.
    fn settle_claims(&mut self) {
        let now = time::now();
        let mut at = 0;
        while at < self.claims.len() {
            let claim = &self.claims[at];
            let found = self.arrivals.iter().position(|one| {
                one.serving == claim.serving && one.is_of(&claim.tuple, claim.from)
            });
            if let Some(found) = found {
                let claim = self.claims.swap_remove(at);
                self.met.push((claim.berth.cookie, now));
                self.arrivals.swap_remove(found).hand_on(&claim.berth);
            } else if now.saturating_sub(claim.since) < BINDING
                && self.arrivals.iter().any(|one| one.may_become(claim.from, now))
            {
                at += 1;
            } else {
                let claim = self.claims.swap_remove(at);
                if let Some((socket, _)) = helper::mailbox() {
                    let nobody = Message::Nobody { cookie: claim.berth.cookie };
                    mailbox::send(socket, claim.berth.mailbox, &nobody);
                }
            }
        }
    }
}

/// Another process claims a link. By the helper, which settles it then.
pub(super) fn claimed(secret: u64, berth: &Berth, from: IpAddr, tuple: &[u8]) {
    let mut state = state();
    let of = state.listening.iter().find(|one| one.board.board().knows(secret));
    let Some(serving) = of.map(|one| one.serving) else { return };
    let now = time::now();
    state.met.retain(|(_, since)| now.saturating_sub(*since) < RECENT);
    let again = state.claims.iter().any(|one| one.berth == *berth)
        || state.met.iter().any(|(cookie, _)| *cookie == berth.cookie);
    if !again {
        let (berth, tuple) = (*berth, tuple.to_vec());
        state.claims.push(Claimed { serving, berth, from, tuple, since: now });
    }
}

/// The link of a TCP connection from `from` that was accepted at `local`, with the addresses that its
/// connector binds it to; waits a moment for one that has arrived and is not bound. `None`: there is none.
pub fn accept(tuple: &[u8], from: IpAddr, local: IpAddr, board: &Board) -> Option<Claim> {
    if !super::may_exist() {
        return None;
    }
    let _held = SignalsHeld::new();
    let start = time::now();
    loop {
        let gate = no_fork();
        let mut state = state();
        if !state.listening.iter().any(|one| std::ptr::eq(one.board.0, board)) {
            drop((state, gate));
            return board.claim(tuple, from, local);
        }
        let found = state.arrivals.iter().position(|one| one.is_of(tuple, from));
        if let Some(found) = found {
            let (link, geometry) = state.arrivals.swap_remove(found).leave();
            drop(state);
            if !link.take() {
                link.close_within(None);
                return None;
            }
            return Some(Claim { link, geometry });
        }
        let expected = state.arrivals.iter().find(|one| one.may_become(from, start));
        let port = expected?.link.port();
        drop(state);
        if time::now() - start > BINDING {
            return None;
        }
        port.poll();
        drop(gate);
        time::sleep(20_000);
    }
}
