//! The connector's part in looking for the other end of its connection: it offers a session to the process that says
//! that it has that end. The caller has the structure lock.

use super::apart;
use super::first_segment;
use super::identity;
use super::no_segment::warn_about_segment;
use super::offer_socket;
use crate::provider::shm::{Bells, Role, Segment};
use crate::reason::Reason;
use crate::registry::{self, Event};
use crate::switch::policy::{self, Relation};
use crate::switch::socket::names::Names;
use crate::switch::socket::negotiation::{Agreed, Negotiation};
use crate::switch::socket::tuple::Tuple;
use crate::switch::socket::Socket;
use crate::sys::file;

/// A connector offers a session.
pub(super) fn offer(socket: &Socket, tuple: &Tuple) -> Result<Option<Negotiation>, Reason> {
    let mut made = None;
    let stamp = first_segment::stamp_of_connected(socket);
    let names = Names::of_connected(tuple, policy::crosses_namespaces(), stamp);
    let handed = offer_socket::offer(socket.anchor(), tuple, names, |is_apart| {
        // In the second case the acceptor has to find out.
        let is_doubted = is_apart || identity::may_be_translated(socket.anchor(), &tuple.acceptor);
        let number = match is_doubted {
            true => Some(first_segment::number(socket, Role::Connector)?),
            false => None,
        };
        let (segment, fd) = Segment::create(policy::geometry()).map_err(|e| {
            warn_about_segment(socket, &e);
            Reason::OutOfMemory
        })?;
        let (bells, passed) = Bells::create().unwrap_or((Bells::NONE, [-1; 2]));
        let passed = [fd, passed[0], passed[1]];
        let proof = number.map(|number| apart::open(&segment, number)).transpose();
        let is_open = proof.as_ref().map(drop).map_err(|why| *why);
        made = Some((segment.with_bells(bells), proof.ok().flatten(), passed));
        // Without bells it comes to nothing.
        if bells == Bells::NONE {
            Err(Reason::OutOfMemory)
        } else {
            is_open.map(|()| passed)
        }
    });
    let made = made.map(|(segment, proof, passed)| {
        passed.into_iter().filter(|fd| *fd >= 0).for_each(file::close);
        (segment, proof)
    });
    match (handed, made) {
        (Ok(peer), Some((segment, proof))) => {
            registry::note(socket.statistics(), Event::Offered);
            let agreed = Agreed { proof, ..Agreed::of(segment, peer) };
            Ok(Some(Negotiation::Agreed(Box::new(agreed))))
        }
        (handed, made) => {
            if let Some((segment, _)) = made {
                Agreed::of(segment, Relation::ELSEWHERE).end();
            }
            Err(handed.err().unwrap_or(Reason::OutOfMemory))
        }
    }
}
