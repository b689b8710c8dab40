//! Which link belongs to which accepted TCP connection (design 2).
//!
//! A connector asks for a link ([`super::connect`]) before it connects over TCP, and binds it to the two addresses
//! once TCP's source port is known. The acceptor finds the link by them when it has accepted; that one
//! arrived, bound or not yet, tells it that there is something to wait for.

use super::board::Board;
use super::link::{stage, Link};
use super::mailbox::{self, Address, Berth, Message};
use super::port::Port;
use super::reception::Reception;
use super::request::{self, Cookie, MAGIC};
use super::{fabric, generation, helper, no_fork, Fabric};
use crate::provider::interface::client::*;
use crate::provider::interface::{Error, Info, Started};
use crate::provider::shm::Geometry;
use crate::sys::process::SignalsHeld;
use crate::sys::time;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How long (ns) an acceptor waits for the addresses of a link that has arrived, with a nap between two looks; of one that
/// takes longer, because the host is busy, no more counts: who brings the addresses gets no processor either.
const BINDING: u64 = 200_000_000;
const NAP: u64 = 20_000;
const MOST_COUNTED: u64 = 1_000_000;
/// And by the clock: signals are held meanwhile.
const LONGEST: u64 = 2_000_000_000;
/// How long ago a link has arrived at most whose addresses are still to be expected.
const RECENT: u64 = 1_000_000_000;
/// How long an arrived link waits to be accepted after its TCP connection is gone unnoticed.
const WAITING: u64 = 600_000_000_000;
/// Connection requests that wait for the helper.
const BACKLOG: u32 = 1024;
/// How often (ns) it is looked whether a device that was removed is there again.
const SEARCH: u64 = 5_000_000_000;
/// Numbers of the pending operations.
const ACCEPT: u64 = 1;
const ENDED: u64 = 2;

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

struct State {
    servings: Vec<Served>,
    listening: Vec<Listening>,
    arrivals: Vec<Arrival>,
    claims: Vec<Claimed>,
    /// Claims that were met, and when.
    met: Vec<(Cookie, u64)>,
    /// Addresses whose devices were removed, and clock (ns) of the last look for them.
    lost: Vec<IpAddr>,
    searched: u64,
    next: u64,
}

/// A TCP listener whose connectors are served.
#[derive(Clone, Copy)]
struct Served {
    number: u64,
    /// Where it is bound; `dual`: of both families.
    address: SocketAddr,
    dual: bool,
    board: Place,
}

/// A listener of one adapter.
struct Listening {
    serving: u64,
    reception: Reception,
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
    state.servings.clear();
    state.lost.clear();
    std::mem::forget(std::mem::take(&mut state.listening));
    std::mem::forget(std::mem::take(&mut state.arrivals));
    state.claims.clear();
    state.met.clear();
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
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
    let served = Served { number, address, dual, board };
    state().servings.push(served);
    let mut any = false;
    for local in served.addresses(fabric) {
        any |= fabric.port(local).is_some_and(|port| served.listen_at(port));
    }
    if !any {
        state().servings.retain(|one| one.number != number);
    }
    any.then_some(serving)
}

impl Served {
    fn families(&self) -> u32 {
        if self.dual {
            Info::IPV4 | Info::IPV6
        } else if self.address.is_ipv4() {
            Info::IPV4
        } else {
            Info::IPV6
        }
    }

    /// True if connectors of that adapter are served.
    fn covers(&self, local: IpAddr) -> bool {
        let ip = self.address.ip();
        let family = if local.is_ipv4() { Info::IPV4 } else { Info::IPV6 };
        if ip.is_unspecified() {
            self.families() & family != 0
        } else {
            ip.to_canonical() == local
        }
    }

    /// The adapters' addresses.
    fn addresses(&self, fabric: &Fabric) -> Vec<IpAddr> {
        if !self.address.ip().is_unspecified() {
            return vec![self.address.ip().to_canonical()];
        }
        let all = fabric.provider.addresses().unwrap_or_default();
        all.into_iter().map(|address| address.ip()).filter(|ip| self.covers(*ip)).collect()
    }

    /// Listens at one adapter; false if that cannot be.
    fn listen_at(&self, port: &'static Port) -> bool {
        let is_there =
            |one: &Listening| one.serving == self.number && std::ptr::eq(one.reception.port, port);
        if state().listening.iter().any(is_there) {
            return true;
        }
        let at = SocketAddr::new(port.local, self.address.port());
        match Reception::open(port, at, BACKLOG) {
            Ok(reception) => {
                let descriptor = reception.descriptor();
                let (serving, board) = (self.number, self.board);
                let one = Listening { serving, reception, board };
                let mut state = state();
                if port.is_retired() {
                    return false;
                }
                if state.servings.iter().all(|one| one.number != serving) {
                    // It was dropped meanwhile.
                    return true;
                }
                state.listening.push(one);
                drop(state);
                helper::watch(descriptor);
                true
            }
            Err(why) => {
                log::info!("not listening over RDMA at {}: {why}", port.local);
                false
            }
        }
    }
}

/// A port is retired: nobody comes there any more, until its device is there again. By the helper.
pub(super) fn retire(port: &'static Port) {
    let mut state = state();
    let before = state.listening.len();
    state.listening.retain(|one| !std::ptr::eq(one.reception.port, port));
    if state.listening.len() < before && !state.lost.contains(&port.local) {
        state.lost.push(port.local);
        state.searched = time::now();
    }
}

/// How long (ns) until [`search`] is due; `None`: nothing is lost.
pub(super) fn next_search() -> Option<u64> {
    let state = state();
    let passed = time::now().saturating_sub(state.searched);
    (!state.lost.is_empty()).then_some(SEARCH.saturating_sub(passed).max(1_000_000))
}

/// Looks whether devices that were removed are there again, and listens there if so. By the helper.
pub(super) fn search() {
    let (lost, servings) = {
        let mut state = state();
        if state.lost.is_empty() || time::now() - state.searched < SEARCH {
            return;
        }
        state.searched = time::now();
        (std::mem::take(&mut state.lost), state.servings.clone())
    };
    let Some(fabric) = fabric() else { return };
    for local in lost {
        let mut wanted = servings.iter().filter(|one| one.covers(local)).peekable();
        if wanted.peek().is_none() {
            continue;
        }
        fabric.look_again(local);
        let Some(port) = fabric.port(local) else {
            state().lost.push(local);
            continue;
        };
        if wanted.filter(|one| !one.listen_at(port)).count() > 0 {
            state().lost.push(local);
        }
    }
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
        state.servings.retain(|one| one.number != self.number);
        let (gone, kept) = state.listening.drain(..).partition(|l| l.serving == self.number);
        state.listening = kept;
        let (late, kept) = state.arrivals.drain(..).partition(|a| a.serving == self.number);
        state.arrivals = kept;
        drop(state);
        let (gone, late): (Vec<Listening>, Vec<Arrival>) = (gone, late);
        drop(gone);
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
    if state.listening.is_empty() && state.arrivals.is_empty() && state.claims.is_empty() {
        return false;
    }
    for one in &mut state.listening {
        while let Some(connector) = one.reception.next() {
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
    !state.arrivals.is_empty() || state.listening.iter().any(|one| one.reception.is_short())
}

/// Takes a connection request.
fn welcome(one: &Listening, connector: Connector) -> Result<Arrival, Error> {
    let asked = connector.private_data().ok().and_then(|data| request::decode(&data));
    let Some((geometry, _)) = asked.filter(|(_, cookie)| *cookie == request::NEW) else {
        connector.reject(&MAGIC)?;
        return Err(Error::ConnectionRefused);
    };
    let from = connector.peer_address()?.ip().to_canonical();
    let link = Link::new(one.reception.port, connector)?;
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
    /// Where the link of a TCP connection from there is, among those of whom `is_one`; and one that may turn out to be it. In
    /// the opposite order: what is bound in between is found.
    fn look_for(
        &self,
        tuple: &[u8],
        from: IpAddr,
        now: u64,
        is_one: impl Fn(&Arrival) -> bool,
    ) -> (Option<usize>, Option<&Arrival>) {
        let expected = self.arrivals.iter().find(|one| is_one(one) && one.may_become(from, now));
        let found = self.arrivals.iter().position(|one| is_one(one) && one.is_of(tuple, from));
        (found, expected)
    }

    /// Gives the links that other processes claimed to them, once it is known which those are.
    fn settle_claims(&mut self) {
        let now = time::now();
        let mut at = 0;
        while at < self.claims.len() {
            let claim = &self.claims[at];
            let is_its = |one: &Arrival| one.serving == claim.serving;
            let (found, expected) = self.look_for(&claim.tuple, claim.from, now, is_its);
            if let Some(found) = found {
                let claim = self.claims.swap_remove(at);
                self.met.push((claim.berth.cookie, now));
                self.arrivals.swap_remove(found).hand_on(&claim.berth);
            } else if expected.is_some() && now.saturating_sub(claim.since) < BINDING {
                at += 1;
            } else {
                tell_nobody(&self.claims.swap_remove(at).berth);
            }
        }
    }
}

/// Tells a process that there is no link for it.
fn tell_nobody(berth: &Berth) {
    if let Some((socket, _)) = helper::mailbox() {
        mailbox::send(socket, berth.mailbox, &Message::Nobody { cookie: berth.cookie });
    }
}

/// Another process claims a link. By the helper, which settles it then.
pub(super) fn claimed(secret: u64, berth: &Berth, from: IpAddr, tuple: &[u8]) {
    let mut state = state();
    let of = state.listening.iter().find(|one| one.board.board().knows(secret));
    let Some(serving) = of.map(|one| one.serving) else { return tell_nobody(berth) };
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
    let (mut looked, mut waited) = (start, 0);
    loop {
        let gate = no_fork();
        let mut state = state();
        if !state.listening.iter().any(|one| std::ptr::eq(one.board.0, board)) {
            drop((state, gate));
            return board.claim(tuple, from, local);
        }
        let (found, expected) = state.look_for(tuple, from, start, |_| true);
        let expected = expected.map(|one| one.link.clone());
        if let Some(found) = found {
            let (link, geometry) = state.arrivals.swap_remove(found).leave();
            drop(state);
            if !link.take() {
                link.close_within(None);
                return None;
            }
            return Some(Claim { link, geometry });
        }
        drop(state);
        let link = expected?;
        let now = time::now();
        waited += (now - looked).min(MOST_COUNTED);
        looked = now;
        if waited > BINDING || now - start > LONGEST {
            return None;
        }
        link.poll();
        drop(gate);
        time::sleep(NAP);
    }
}
