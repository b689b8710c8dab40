//! This process's own listeners, one for each adapter. Peers come there because this process invited them: it takes
//! control of their links.

use crate::fabric::adapters;
use crate::fabric::fork_gate::no_fork;
use crate::fabric::helper;
use crate::fabric::link::{Link, LinkPort};
use crate::fabric::mailbox::{Invitation, MailboxAddress};
use crate::fabric::reception::Reception;
use crate::fabric::request::{self, Cookie, Purpose, MAGIC};
use crate::provider::interface::client::*;
use crate::sys::lock_order::{LockRank, RankedMutex};
use crate::sys::process::{self, SignalsHeld};
use crate::sys::time;
use std::net::IpAddr;
use std::sync::Arc;

/// Connection requests that wait for the helper.
const BACKLOG: u32 = 256;
/// How long (ns) the helper looks by itself for control that was asked for; then it is told, when the peer comes.
const SOON: u64 = 5_000_000_000;

static STATE: RankedMutex<State> = RankedMutex::new(
    LockRank::Invitations,
    State { listening: Vec::new(), expected: Vec::new(), early: Vec::new() },
);

struct State {
    listening: Vec<Reception>,
    expected: Vec<Expected>,
    /// Came before control was given.
    early: Vec<Early>,
}

/// A peer that came, with its cookie, and the port to which it came.
type Early = (&'static LinkPort, Cookie, Connector);

/// Control of a link.
struct Expected {
    cookie: Cookie,
    /// Clock (ns) when it was last asked for.
    since: u64,
    link: Arc<Link>,
}

/// In a fork child: all of it is the parent's.
pub(in crate::fabric) fn after_fork_in_child() {
    let mut state = STATE.lock();
    std::mem::forget(std::mem::take(&mut state.listening));
    std::mem::forget(std::mem::take(&mut state.expected));
    std::mem::forget(std::mem::take(&mut state.early));
}

/// Invites a peer to the adapter that has the address `local`: this process wants control of a relative's link, which
/// is to come there.
pub(in crate::fabric) fn invite(link: &Arc<Link>, local: IpAddr) -> Option<Invitation> {
    let _held = SignalsHeld::new();
    let _gate = no_fork();
    invite_within(link, local)
}

/// [`invite`], called by a thread that keeps the process from forking.
pub(in crate::fabric) fn invite_within(link: &Arc<Link>, local: IpAddr) -> Option<Invitation> {
    let known = STATE.lock().expected.iter_mut().find(|one| one.is_of(link)).map(|one| {
        one.since = time::now();
        one.cookie
    });

    let port = adapters::fabric()?.port(local)?;
    let (_, mailbox) = helper::mailbox()?;
    // The link has what it needs before this process asks for anything.
    port.prepare().inspect_err(|why| log::warn!("no RDMA: {why}; see 'ulimit -l'")).ok()?;
    let mut state = STATE.lock();
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
        state.expected.push(Expected { cookie, since: time::now(), link: link.clone() });
        cookie
    });
    Some(Invitation { number, cookie, mailbox, pid: process::pid() })
}

/// This process wants it no more.
pub(in crate::fabric) fn revoke_of(link: &Link) {
    STATE.lock().expected.retain(|one| !one.is_of(link));
}

impl Expected {
    fn is_of(&self, link: &Link) -> bool {
        std::ptr::eq(&*self.link, link)
    }

    fn is_soon(&self) -> bool {
        time::now() - self.since < SOON
    }
}

/// A port is retired: no peer comes there any more. Called by the helper.
pub(in crate::fabric) fn retire(port: &'static LinkPort) {
    let mut state = STATE.lock();
    state.listening.retain(|one| !std::ptr::eq(one.port, port));
    state.early.retain(|(one, ..)| !std::ptr::eq(*one, port));
}

/// The work of the helper whose mailbox that is. True if something is under way.
pub(in crate::fabric) fn progress(mailbox: MailboxAddress) -> bool {
    let mut state = STATE.lock();
    let state = &mut *state;
    let mut came = std::mem::take(&mut state.early);
    state.take_requests(&mut came);
    for (port, cookie, connector) in came {
        state.take_control(mailbox, port, cookie, connector);
    }
    state.expected.retain(|one| !one.link.look_for_failure());
    !state.early.is_empty()
        || state.listening.iter().any(Reception::is_short)
        || state.expected.iter().any(Expected::is_soon)
}

impl State {
    /// Hands the peers that `came` to those that expected them.
    fn take_requests(&mut self, came: &mut Vec<Early>) {
        for one in &mut self.listening {
            let port = one.port;
            for connector in one.come() {
                let data = connector.private_data().ok().and_then(|data| request::decode(&data));
                match data {
                    Some((_, Purpose::Invited(cookie)))
                        if self.expected.iter().any(|one| one.cookie == cookie) =>
                    {
                        came.push((port, cookie, connector));
                    }
                    _ => drop(connector.reject(&MAGIC)),
                }
            }
        }
    }

    /// The peer of a link came: takes control of it, or keeps the peer until that was given.
    fn take_control(
        &mut self,
        mailbox: MailboxAddress,
        port: &'static LinkPort,
        cookie: Cookie,
        connector: Connector,
    ) {
        let Some(at) = self.expected.iter().position(|one| one.cookie == cookie) else {
            let _ = connector.reject(&MAGIC);
            return;
        };
        match self.expected[at].link.take_control(port, mailbox, connector) {
            Err((_, Some(connector))) => self.early.push((port, cookie, connector)),
            Err((why, None)) => {
                log::warn!("control of a connection cannot be taken: {why}");
                self.expected.swap_remove(at);
            }
            Ok(()) => drop(self.expected.swap_remove(at)),
        }
    }
}
