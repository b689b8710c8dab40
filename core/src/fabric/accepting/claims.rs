//! Which link belongs to which accepted TCP connection, also where another process than that with the listener accepted
//! it.

use super::arrivals::RECENT;
use super::shared_backlog::SharedBacklog;
use super::state::{state, Arrival, Claimed, State};
use crate::fabric::fork_gate::no_fork;
use crate::fabric::helper;
use crate::fabric::link::Link;
use crate::fabric::mailbox::{self, Invitation, Message};
use crate::fabric::sharing::invitations;
use crate::provider::shm::Geometry;
use crate::sys::{process, time};
use std::net::IpAddr;
use std::sync::Arc;

/// How long (ns) an acceptor waits for the addresses of a link that has arrived.
pub(super) const BINDING: u64 = 200_000_000;
/// Longest wait (ns) for the process that has the listener, and for the connector that it sends.
const PATIENCE: u64 = 500_000_000;
/// How soon (ns) a claim is repeated.
const AGAIN: u64 = 20_000_000;
const PAUSE: u64 = 20_000;

/// A link that belongs to an accepted connection.
pub(crate) struct Claim {
    /// The link. To be attached and confirmed, or refused.
    pub link: Arc<Link>,
    /// How both ends' segments are divided.
    pub geometry: Geometry,
}

impl Claim {
    /// The connection stays on TCP.
    pub(crate) fn refuse(self) {
        self.link.refuse_taken();
        self.link.close(None);
    }
}

impl State {
    /// Where the link of a TCP connection from there is, among those of whom `is_one`; and one that may turn out to be
    /// it. In the opposite order: what is bound in between is found.
    pub(super) fn look_for(
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
    pub(super) fn settle_claims(&mut self) {
        let now = time::now();
        let mut at = 0;
        while at < self.claims.len() {
            let claim = &self.claims[at];
            let is_its = |one: &Arrival| one.serving == claim.serving;
            let (found, expected) = self.look_for(&claim.tuple, claim.from, now, is_its);
            if let Some(found) = found {
                let claim = self.claims.swap_remove(at);
                self.met.push((claim.invitation.cookie, now));
                self.arrivals.swap_remove(found).hand_on(&claim.invitation);
            } else if expected.is_some() && now.saturating_sub(claim.since) < BINDING {
                at += 1;
            } else {
                tell_nobody(&self.claims.swap_remove(at).invitation);
            }
        }
    }
}

/// Tells a process that there is no link for it.
fn tell_nobody(invitation: &Invitation) {
    if let Some((socket, _)) = helper::mailbox() {
        mailbox::send(socket, invitation.mailbox, &Message::Nobody { cookie: invitation.cookie });
    }
}

/// Another process claims a link. By the helper, which settles it then.
pub(in crate::fabric) fn claimed(secret: u64, invitation: &Invitation, from: IpAddr, tuple: &[u8]) {
    let mut state = state();
    let of = state.listening.iter().find(|one| one.backlog.get().knows(secret));
    let Some(serving) = of.map(|one| one.serving) else { return tell_nobody(invitation) };
    let now = time::now();
    state.met.retain(|(_, since)| now.saturating_sub(*since) < RECENT);
    let again = state.claims.iter().any(|one| one.invitation == *invitation)
        || state.met.iter().any(|(cookie, _)| *cookie == invitation.cookie);
    if !again {
        let (invitation, tuple) = (*invitation, tuple.to_vec());
        state.claims.push(Claimed { serving, invitation, from, tuple, since: now });
    }
}

/// The link of a TCP connection that this process accepted, if one waits at another: its connector comes
/// here.
pub(super) fn claim(
    backlog: &SharedBacklog,
    tuple: &[u8],
    from: IpAddr,
    local: IpAddr,
) -> Option<Claim> {
    let server = backlog.server(from)?;
    let gate = no_fork();
    let Some((socket, own)) = helper::mailbox() else {
        log::warn!("a connection over RDMA cannot be taken");
        return None;
    };
    let nowhere = Invitation { number: 0, cookie: [0; 2], mailbox: own, pid: process::pid() };
    let invitation = invitations::invite_offer(local).unwrap_or(nowhere);
    let secret = backlog.secret();
    let message = Message::Claim { secret, invitation, from, tuple: tuple.to_vec() };
    if invitation.number == 0 {
        mailbox::send(socket, server, &message);
        return None;
    }
    drop(gate);
    let (start, mut told) = (time::now(), 0);
    loop {
        let gate = no_fork();
        let now = time::now();
        if now - told > AGAIN {
            told = now;
            if !mailbox::send(socket, server, &message) {
                break;
            }
        }
        match invitations::look_for(invitation.cookie) {
            Ok((link, geometry)) if link.take() => return Some(Claim { link, geometry }),
            Ok((link, _)) => {
                link.close_within(None);
                return None;
            }
            Err(false) => return None,
            Err(true) if now - start > PATIENCE => break,
            Err(true) => {}
        }
        drop(gate);
        time::sleep(PAUSE);
    }
    log::info!("a connection over RDMA did not come from the process that has the listener");
    let _gate = no_fork();
    invitations::revoke(invitation.cookie);
    None
}
