//! The connector's end listens at its connection's own number until the other end comes.

use super::appointment::{Appointment, Parties};
use crate::fabric::helper;
use crate::fabric::link::{Link, LinkPort};
use crate::fabric::reception::Reception;
use crate::fabric::request::{self, Approaching, MAGIC};
use crate::proof::{self, FirstNumbers, Opening};
use crate::provider::interface::client::*;
use crate::provider::interface::{Error, Started};
use crate::provider::shm::{Geometry, Role};
use crate::reason::Reason;
use crate::sys::{process, time};
use std::net::SocketAddr;
use std::sync::Arc;

/// How long (ns) the other end is awaited.
pub(super) const AWAITED_FOR: u64 = 2_000_000_000;
/// So many requests are answered for one end at most.
const MOST_ANSWERED: u32 = 3;
/// Connection requests that wait for the helper, of one number.
const BACKLOG: u32 = 16;
/// Most numbers listened at: each takes some descriptors. The others wait.
const MOST_LISTENING: usize = 64;
/// The pending operation.
const ACCEPT: u64 = 1;

/// A listener, for all connections of its number: they differ in their other end's address.
pub(super) struct Listening {
    at: SocketAddr,
    pub(super) reception: Reception,
}

impl Listening {
    fn open(port: &'static LinkPort, at: SocketAddr) -> Result<Self, Error> {
        // A link has what it needs before a peer comes.
        port.prepare()?;
        let reception = Reception::open(port, at, BACKLOG)?;
        helper::watch(reception.descriptor());
        Ok(Listening { at, reception })
    }
}

/// An end that awaits the other.
pub(super) struct Awaited {
    pub(super) appointment: Arc<Appointment>,
    pub(super) port: &'static LinkPort,
    /// Came, and is being connected.
    link: Option<Arc<Link>>,
    /// How many had an answer.
    answered: u32,
}

impl Awaited {
    pub(super) fn new(appointment: Arc<Appointment>, port: &'static LinkPort) -> Self {
        Awaited { appointment, port, link: None, answered: 0 }
    }

    fn at(&self) -> SocketAddr {
        self.appointment.parties.connector
    }

    /// Goes on; false once it is over.
    fn go_on(&mut self) -> bool {
        if self.appointment.is_decided() {
            return false;
        }
        let result = self.link.as_ref().and_then(|link| link.connector().next_result());
        let is_late = time::now().saturating_sub(self.appointment.since) > AWAITED_FOR;
        match result.map(|reported| reported.result) {
            Some(Ok(())) => {
                if let Some(link) = self.link.take() {
                    helper::forget(link.connector().descriptor());
                    self.appointment.meet(link);
                }
                return false;
            }
            // It may come again, but a process that guesses has one guess for each answer.
            Some(Err(_)) if self.answered < MOST_ANSWERED => self.let_go(),
            Some(Err(_)) => {
                self.dismiss(Reason::Unproven);
                return false;
            }
            None => {}
        }
        if is_late || !self.appointment.is_wanted() {
            self.dismiss(Reason::PeerNative);
            return false;
        }
        true
    }

    /// Nothing comes of it.
    pub(super) fn dismiss(&mut self, why: Reason) {
        self.let_go();
        self.appointment.fail(why);
    }

    fn let_go(&mut self) {
        if let Some(link) = self.link.take() {
            helper::forget(link.connector().descriptor());
            link.end();
        }
    }

    /// The other end came.
    fn welcome(&mut self, connector: Connector, geometry: Geometry, said: Approaching) {
        let Parties { numbers, has_peer_sent, .. } = self.appointment.parties;
        if has_peer_sent && !said.by_both {
            // The acceptor has sent something, so the acceptor knows its number.
            let _ = connector.reject(&MAGIC);
            return;
        }
        self.answered += 1;
        let acceptors = numbers.acceptors.filter(|_| said.by_both);
        let numbers = FirstNumbers { acceptors, ..numbers };
        match accept(self.port, connector, geometry, (numbers, said.opening)) {
            Ok((link, Started::Done)) => self.appointment.meet(link),
            Ok((link, Started::Pending)) => {
                helper::watch(link.connector().descriptor());
                self.link = Some(link);
            }
            Err(why @ (Error::InsufficientResources | Error::AccessDenied)) => {
                log::warn!("{}: no link over RDMA: {why}; see 'ulimit -l'", self.at());
                self.appointment.fail(Reason::OutOfMemory);
            }
            // It may come again.
            Err(_) => {}
        }
    }
}

/// Accepts a request, and answers the proof. Its link has its segment before anything can come over it.
fn accept(
    port: &'static LinkPort,
    connector: Connector,
    geometry: Geometry,
    (numbers, opening): (FirstNumbers, Opening),
) -> Result<(Arc<Link>, Started), Error> {
    let between = request::between(&connector, false)?;
    let answered = proof::answer(numbers, &opening, &between, process::chance());
    let (answered, answer) = answered.ok_or(Error::ConnectionRefused)?;
    let link = Link::new(port, connector)?;
    link.await_conclusion(answered);
    let accepted = link.make_segment(geometry, Role::Connector).and_then(|()| {
        link.connector().accept(link.pair(), &request::encode_answer(&answer), ACCEPT)
    });
    match accepted {
        Ok(started) => Ok((link, started)),
        Err(why) => {
            link.end();
            Err(why)
        }
    }
}

/// Listens for connections for which nothing listens yet, as far as there is room. True if another process has the
/// number of one of them, because a connection of its own has that port as well. The helper then tries again in a
/// while.
pub(super) fn listen(listening: &mut Vec<Listening>, awaited: &mut Vec<Awaited>) -> bool {
    let mut again = false;
    awaited.retain_mut(|one| {
        let at = one.at();
        let is_open = listening.iter().any(|open| open.at == at);
        if is_open || listening.len() >= MOST_LISTENING {
            return true;
        }
        match Listening::open(one.port, at) {
            Ok(open) => {
                listening.push(open);
                true
            }
            Err(Error::AddressInUse) => {
                again = true;
                true
            }
            Err(why) => {
                log::info!("{at}: not awaited over RDMA: {why}");
                one.appointment.fail(match why {
                    Error::InsufficientResources | Error::AccessDenied => Reason::OutOfMemory,
                    Error::DeviceRemoved => Reason::NoDevice,
                    _ => Reason::Unreachable,
                });
                false
            }
        }
    });
    again
}

/// Looks which peers came, and goes on with them.
pub(super) fn progress(listening: &mut Vec<Listening>, awaited: &mut Vec<Awaited>) {
    for Listening { at, reception } in listening.iter_mut() {
        for connector in reception.come() {
            match find(awaited, *at, &connector) {
                Some((found, geometry, said)) => found.welcome(connector, geometry, said),
                None => drop(connector.reject(&MAGIC)),
            }
        }
    }
    awaited.retain_mut(Awaited::go_on);
    listening.retain(|open| awaited.iter().any(|one| one.at() == open.at));
}

/// The connection that a request at `at` is for, how the segments are to be divided, and what else it says.
fn find<'a>(
    awaited: &'a mut [Awaited],
    at: SocketAddr,
    connector: &Connector,
) -> Option<(&'a mut Awaited, Geometry, Approaching)> {
    let (geometry, purpose) = request::decode(&connector.private_data().ok()?)?;
    let request::Purpose::Approach(said) = purpose else { return None };
    let acceptor = SocketAddr::new(connector.peer_address().ok()?.ip().to_canonical(), said.port);
    let is_it = |one: &Awaited| {
        let parties = &one.appointment.parties;
        one.link.is_none()
            && parties.connector == at
            && parties.acceptor == acceptor
            && one.appointment.is_wanted()
    };
    awaited.iter_mut().find(|one| is_it(one)).map(|found| (found, geometry, said))
}
