//! The connector's part in looking for the other end of its connection: it offers a session to the process that says
//! that it has that end. The caller has the structure lock.

use super::apart;
use super::first_segment;
use super::identity;
use super::no_segment::warn_about_segment;
use super::offer_socket::{self, FoundPeer};
use crate::provider::shm::{Bells, Segment};
use crate::reason::Reason;
use crate::registry::{self, Event};
use crate::session::Need;
use crate::switch::policy::{self, Relation};
use crate::switch::socket::names::Names;
use crate::switch::socket::negotiation::{Agreed, Negotiation};
use crate::switch::socket::tuple::Tuple;
use crate::switch::socket::Socket;
use crate::sys::file;

/// A connector offers a session.
pub(super) fn offer(socket: &Socket, tuple: &Tuple) -> Result<Option<Negotiation>, Reason> {
    let mut made = None;
    let stamp = first_segment::of_connected(socket);
    let names = Names::of_connected(tuple, policy::crosses_namespaces(), stamp);
    let handed = offer_socket::offer(socket.anchor(), tuple, names, || {
        let (segment, fd) = Segment::create(policy::geometry()).map_err(|e| {
            warn_about_segment(socket, &e);
            Reason::OutOfMemory
        })?;
        let (bells, passed) = Bells::create().unwrap_or((Bells::NONE, [-1; 2]));
        let passed = [fd, passed[0], passed[1]];
        made = Some((segment.with_bells(bells), passed));
        // Without bells it comes to nothing.
        if bells == Bells::NONE {
            Err(Reason::OutOfMemory)
        } else {
            Ok(passed)
        }
    });
    let made = made.map(|(segment, passed)| {
        passed.into_iter().filter(|fd| *fd >= 0).for_each(file::close);
        segment
    });
    match (handed, made) {
        (Ok(FoundPeer { peer, is_apart }), Some(segment)) => {
            registry::note(socket.statistics(), Event::Offered);
            let mut agreed = Box::new(Agreed::of(segment, peer));
            let need = match is_apart {
                true => Some(Need::Proof),
                // The acceptor has to find out, and this end takes part.
                false => {
                    identity::may_be_translated(socket.anchor(), tuple).then_some(Need::Nothing)
                }
            };
            match need.map(|need| apart::proof(socket.anchor(), need)).transpose() {
                Ok(proof) => agreed.proof = proof,
                Err(why) => {
                    agreed.end();
                    return Err(why);
                }
            }
            Ok(Some(Negotiation::Agreed(agreed)))
        }
        (handed, made) => {
            if let Some(segment) = made {
                Agreed::of(segment, Relation::ELSEWHERE).end();
            }
            Err(handed.err().unwrap_or(Reason::OutOfMemory))
        }
    }
}
