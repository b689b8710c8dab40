//! Links that connectors offered and nobody accepted yet: they arrive, connect, learn of their TCP connection, and
//! leave.

use super::state::{state, Arrival, Listening};
use crate::fabric::helper;
use crate::fabric::link::{stage, Link};
use crate::fabric::mailbox::Invitation;
use crate::fabric::request::{self, MAGIC};
use crate::provider::interface::client::*;
use crate::provider::interface::{Error, Started};
use crate::provider::shm::Geometry;
use crate::sys::time;
use std::net::IpAddr;
use std::sync::Arc;

/// How long ago a link has arrived at most whose addresses are still to be expected.
pub(super) const RECENT: u64 = 1_000_000_000;
/// How long an arrived link waits to be accepted after its TCP connection is gone unnoticed.
const WAITING: u64 = 600_000_000_000;
/// Numbers of the pending operations.
const ACCEPT: u64 = 1;
const ENDED: u64 = 2;

impl Arrival {
    /// True if nobody will accept it any more. Notes that it is connected, or broke.
    fn is_over(&self) -> bool {
        let link = &self.link;
        let mut over =
            link.has_failed() || link.stage() >= stage::OPEN || time::now() - self.since > WAITING;
        while let Some(reported) = link.connector().next_result() {
            match reported.request {
                ACCEPT if reported.result.is_ok() => {
                    let watched = link.connector().notify_disconnect(ENDED);
                    over |= !matches!(watched, Ok(Started::Pending));
                }
                _ => over = true,
            }
        }
        over
    }

    /// It waits no more.
    pub(super) fn leave(self) -> (Arc<Link>, Geometry) {
        self.backlog.get().leaves(self.from);
        helper::forget(self.link.connector().descriptor());
        (self.link, self.geometry)
    }

    /// Tells the connector that nobody takes it, and ends it when that is told.
    pub(super) fn dismiss(self) {
        let (link, _) = self.leave();
        link.refuse();
        link.close_within(None);
    }

    /// Sends the connector to the process that accepted its TCP connection.
    pub(super) fn hand_on(self, invitation: &Invitation) {
        if invitation.number == 0 {
            return self.dismiss();
        }
        let (link, _) = self.leave();
        if !link.move_to(invitation) {
            link.refuse();
        }
        link.close_within(None);
    }

    pub(super) fn is_of(&self, tuple: &[u8], from: IpAddr) -> bool {
        let bound = self.from == from && self.link.stage() == stage::BOUND;
        bound && self.link.binding.get().is_some_and(|binding| binding.as_slice() == tuple)
    }

    /// True if the addresses of a link from there are still to come.
    pub(super) fn may_become(&self, from: IpAddr, now: u64) -> bool {
        self.from == from
            && self.link.stage() == stage::OFFERED
            && now.saturating_sub(self.since) < RECENT
    }
}

/// What the helper does; true if something is under way.
pub(in crate::fabric) fn progress() -> bool {
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
        if state.arrivals[at].is_over() {
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
    one.backlog.get().arrives(from);
    let accepted = link.connector().accept(link.pair(), &MAGIC, ACCEPT);
    if let Err(why) = accepted {
        one.backlog.get().leaves(from);
        link.end();
        return Err(why);
    }
    helper::watch(link.connector().descriptor());
    let (serving, backlog) = (one.serving, one.backlog);
    Ok(Arrival { serving, backlog, link, from, geometry, since: time::now() })
}
