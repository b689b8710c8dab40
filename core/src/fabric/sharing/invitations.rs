//! This process's own listeners, one for each adapter, for connections that come because it invited them: of links that
//! it takes control of, and of offers whose TCP connection it accepted while another process has the listener.

use crate::fabric::adapters;
use crate::fabric::fork_gate::no_fork;
use crate::fabric::helper;
use crate::fabric::link::{Link, Port};
use crate::fabric::mailbox::{Address, Invitation};
use crate::fabric::reception::Reception;
use crate::fabric::request::{self, Cookie, MAGIC};
use crate::provider::interface::client::*;
use crate::provider::interface::Started;
use crate::provider::shm::Geometry;
use crate::sys::process::{self, SignalsHeld};
use crate::sys::time;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Connection requests that wait for the helper.
const BACKLOG: u32 = 256;
/// The pending operation of connectors.
const ACCEPT: u64 = 1;
/// How long (ns) the helper looks by itself for control that was asked for; then it is told, when the peer comes.
const SOON: u64 = 5_000_000_000;

static STATE: Mutex<State> =
    Mutex::new(State { listening: Vec::new(), expected: Vec::new(), early: Vec::new() });

struct State {
    listening: Vec<Reception>,
    expected: Vec<Expected>,
    /// Came before control was given.
    early: Vec<Early>,
}

/// A peer, to whom it came, and with what cookie.
type Early = (&'static Port, Cookie, Connector);

struct Expected {
    cookie: Cookie,
    /// Clock (ns) when it was last asked for.
    since: u64,
    what: What,
}

enum What {
    /// Control of a link.
    Control(Arc<Link>),
    /// An offer.
    Offer(Offer),
}

/// How an offer's coming goes.
enum Offer {
    Expected,
    /// Here, and being connected.
    Comes(Arc<Link>, Geometry),
    /// Connected.
    Here(Arc<Link>, Geometry),
    /// There is none, or it did not come.
    Nobody,
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In a fork child: all of it is the parent's.
pub(in crate::fabric) fn after_fork_in_child() {
    let mut state = state();
    std::mem::forget(std::mem::take(&mut state.listening));
    std::mem::forget(std::mem::take(&mut state.expected));
    std::mem::forget(std::mem::take(&mut state.early));
}

/// Where a relative's link is to come to, whose adapter has the address `local`: this process wants control of
/// it.
pub(in crate::fabric) fn invite(link: &Arc<Link>, local: IpAddr) -> Option<Invitation> {
    let _held = SignalsHeld::new();
    let _gate = no_fork();
    invite_within(link, local)
}

/// [`invite`] by who keeps the process from forking.
pub(in crate::fabric) fn invite_within(link: &Arc<Link>, local: IpAddr) -> Option<Invitation> {
    let known = state().expected.iter_mut().find(|one| one.is_control_of(link)).map(|one| {
        one.since = time::now();
        one.cookie
    });
    make(local, known, || What::Control(link.clone()))
}

/// This process wants it no more.
pub(in crate::fabric) fn revoke_of(link: &Link) {
    state().expected.retain(|one| !one.is_control_of(link));
}

/// Where the offer of a connection that this process accepted is to come to. The process may not fork.
pub(in crate::fabric) fn invite_offer(local: IpAddr) -> Option<Invitation> {
    make(local, None, || What::Offer(Offer::Expected))
}

fn make(local: IpAddr, known: Option<Cookie>, what: impl FnOnce() -> What) -> Option<Invitation> {
    let port = adapters::fabric()?.port(local)?;
    let (_, mailbox) = helper::mailbox()?;
    // What it needs, it is to have before anything is asked for.
    port.prepare().inspect_err(|why| log::warn!("no RDMA: {why}; see 'ulimit -l'")).ok()?;
    let mut state = state();
    let number = match state.listening.iter().find(|one| std::ptr::eq(one.port, port)) {
        Some(one) => one.number().ok()?,
        None => {
            let opened = Reception::open(port, (port.device.local, 0).into(), BACKLOG)
                .and_then(|one| one.number().map(|number| (one, number)));
            let (one, number) = opened
                .inspect_err(|why| log::info!("no listener for invited peers: {why}"))
                .ok()?;
            if port.device.is_retired() {
                return None;
            }
            helper::watch(one.descriptor());
            state.listening.push(one);
            number
        }
    };
    let cookie = known.unwrap_or_else(|| {
        let cookie = request::cookie();
        state.expected.push(Expected { cookie, since: time::now(), what: what() });
        cookie
    });
    Some(Invitation { number, cookie, mailbox, pid: process::pid() })
}

/// Whether what was expected with a cookie has come. `Ok`: it is here. `Err(true)`: not yet; `Err(false)`: it
/// will not.
pub(in crate::fabric) fn look_for(cookie: Cookie) -> Result<(Arc<Link>, Geometry), bool> {
    let mut state = state();
    let at = state.expected.iter().position(|one| one.cookie == cookie).ok_or(false)?;
    match state.expected[at].what {
        What::Offer(Offer::Here(..)) => match state.expected.swap_remove(at).what {
            What::Offer(Offer::Here(link, geometry)) => Ok((link, geometry)),
            _ => Err(false),
        },
        What::Offer(Offer::Expected | Offer::Comes(..)) => Err(true),
        _ => {
            state.expected.swap_remove(at);
            Err(false)
        }
    }
}

/// Nobody waits any more: who comes is refused.
pub(in crate::fabric) fn revoke(cookie: Cookie) {
    let mut state = state();
    let Some(at) = state.expected.iter().position(|one| one.cookie == cookie) else { return };
    let gone = state.expected.swap_remove(at);
    drop(state);
    gone.dismiss();
}

/// The process that has the listener says that there is none.
pub(in crate::fabric) fn nobody(cookie: Cookie) {
    let mut state = state();
    if let Some(one) = state.expected.iter_mut().find(|one| one.cookie == cookie) {
        if matches!(one.what, What::Offer(Offer::Expected)) {
            one.what = What::Offer(Offer::Nobody);
        }
    }
}

impl Expected {
    fn is_control_of(&self, link: &Link) -> bool {
        matches!(&self.what, What::Control(one) if std::ptr::eq(&**one, link))
    }

    fn is_soon(&self) -> bool {
        match self.what {
            What::Control(_) => time::now() - self.since < SOON,
            What::Offer(Offer::Nobody) => false,
            What::Offer(_) => true,
        }
    }

    fn dismiss(self) {
        if let What::Offer(Offer::Comes(link, _) | Offer::Here(link, _)) = self.what {
            helper::forget(link.connector().descriptor());
            link.refuse();
            link.close_within(None);
        }
    }
}

/// A port is retired: nobody comes there any more. By the helper.
pub(in crate::fabric) fn retire(port: &'static Port) {
    let mut state = state();
    state.listening.retain(|one| !std::ptr::eq(one.port, port));
    state.early.retain(|(one, ..)| !std::ptr::eq(*one, port));
}

/// What the helper, whose mailbox that is, does; true if something is under way.
pub(in crate::fabric) fn progress(mailbox: Address) -> bool {
    let mut state = state();
    let state = &mut *state;
    let mut came = std::mem::take(&mut state.early);
    state.take_requests(&mut came);
    for (port, cookie, connector) in came {
        state.take_control(mailbox, port, cookie, connector);
    }
    for one in &mut state.expected {
        if let What::Offer(offer) = &mut one.what {
            offer.progress();
        }
    }
    state.expected.retain(|one| match &one.what {
        What::Control(link) => !link.is_failed_by_peer(),
        What::Offer(_) => true,
    });
    !state.early.is_empty()
        || state.listening.iter().any(Reception::is_short)
        || state.expected.iter().any(Expected::is_soon)
}

impl State {
    /// Looks who came: offers are accepted, and whose link is to be controlled here are put to those that `came`.
    fn take_requests(&mut self, came: &mut Vec<Early>) {
        for one in &mut self.listening {
            while let Some(connector) = one.next() {
                let data = connector.private_data().ok().and_then(|data| request::decode(&data));
                let is_expected = |(_, cookie): &(Geometry, Cookie)| {
                    self.expected.iter().any(|e| e.cookie == *cookie)
                };
                let Some((geometry, cookie)) = data.filter(is_expected) else {
                    let _ = connector.reject(&MAGIC);
                    continue;
                };
                let expected = self.expected.iter_mut().find(|one| one.cookie == cookie);
                match expected.map(|one| &mut one.what) {
                    Some(What::Offer(offer)) => {
                        *offer = Offer::accept(one.port, connector, geometry)
                    }
                    _ => came.push((one.port, cookie, connector)),
                }
            }
        }
    }

    /// The peer of a link came: takes control of it, or keeps the peer until that was given.
    fn take_control(
        &mut self,
        mailbox: Address,
        port: &'static Port,
        cookie: Cookie,
        connector: Connector,
    ) {
        let Some(at) = self.expected.iter().position(|one| one.cookie == cookie) else {
            let _ = connector.reject(&MAGIC);
            return;
        };
        let What::Control(link) = &self.expected[at].what else { return };
        match link.take_control(port, mailbox, connector) {
            Err((_, Some(connector))) => self.early.push((port, cookie, connector)),
            Err((why, None)) => {
                log::warn!("control of a connection cannot be taken: {why}");
                self.expected.swap_remove(at);
            }
            Ok(()) => drop(self.expected.swap_remove(at)),
        }
    }
}

impl Offer {
    fn accept(port: &'static Port, connector: Connector, geometry: Geometry) -> Self {
        let made = Link::new(port, connector).and_then(|link| {
            link.is_bound();
            let accepted = link.connector().accept(link.pair(), &MAGIC, ACCEPT);
            accepted.map(|started| (link, started))
        });
        match made {
            Ok((link, started)) => {
                helper::watch(link.connector().descriptor());
                match started {
                    Started::Done => Offer::Here(link, geometry),
                    Started::Pending => Offer::Comes(link, geometry),
                }
            }
            Err(why) => {
                log::info!("an offer did not come: {why}");
                Offer::Nobody
            }
        }
    }

    /// Looks whether it is connected by now.
    fn progress(&mut self) {
        let Offer::Comes(link, geometry) = self else { return };
        let Some(reported) = link.connector().next_result() else { return };
        helper::forget(link.connector().descriptor());
        *self = match reported.result {
            Ok(()) => Offer::Here(link.clone(), *geometry),
            Err(_) => Offer::Nobody,
        };
    }
}
