//! Between hosts: the ends of a busy connection look for each other over RDMA, in the background. They then agree as
//! other ends do. Nothing here waits.

use super::{first_segment, leaving};
use crate::fabric::{self, Meeting, MeetingOutcome, Parties};
use crate::provider::shm::Role;
use crate::reason::Reason;
use crate::switch::policy::{self, Relation};
use crate::switch::socket::negotiation::{Agreed, Negotiation};
use crate::switch::socket::tuple::Tuple;
use crate::switch::socket::{phase, Socket};
use crate::sys::{file, net};

/// True if a provider may lead to the peer, and shared memory does not.
pub(super) fn is_elsewhere(tuple: &Tuple, role: Role) -> bool {
    fabric::may_exist() && (is_away(tuple, role) || !policy::shares_memory())
}

/// True if the peer's address is none of this network namespace.
pub(super) fn is_away(tuple: &Tuple, role: Role) -> bool {
    let peer = match role {
        Role::Connector => tuple.acceptor,
        Role::Acceptor => tuple.connector,
    };
    tuple.connector.ip() != tuple.acceptor.ip() && !net::is_local(peer.ip())
}

/// Why a connection with another host has to stay on TCP for now, if it does.
pub(super) fn check_leaving(socket: &Socket) -> Result<(), Reason> {
    leaving::check_leaving(socket)?;
    // The kernel sees nothing of what comes over a fabric, and raises no signal for it.
    let is_asynchronous = |flags| flags & libc::O_ASYNC != 0;
    if file::status_flags(socket.anchor()).is_ok_and(is_asynchronous) {
        return Err(Reason::UnsupportedOption);
    }
    Ok(())
}

/// Counts an attempt that came to nothing; true if it was one of many to find a peer elsewhere, and the connection stays on
/// TCP.
pub(super) fn count_failure(socket: &Socket, why: Reason) -> bool {
    const IN_VAIN: [Reason; 4] =
        [Reason::PeerNative, Reason::NotLocal, Reason::Unreachable, Reason::NoDevice];
    let may_be_met = || fabric::may_exist() || policy::crosses_namespaces();
    may_be_met()
        && IN_VAIN.contains(&why)
        && leads_away(socket)
        && socket.traffic.failed_elsewhere()
}

/// Counts an attempt in which the ends proved nothing. After the second the connection stays on TCP: nobody is to guess
/// often.
pub(super) fn count_unproven(socket: &Socket) {
    if socket.traffic.failed_to_prove() {
        socket.set_phase(phase::NATIVE);
    }
}

fn leads_away(socket: &Socket) -> bool {
    let Some(role) = socket.role() else { return false };
    Tuple::of(socket.anchor(), role)
        .is_ok_and(|tuple| is_elsewhere(&tuple, role) || is_away(&tuple, role))
}

/// Begins to look for the other end.
pub(super) fn begin(socket: &Socket, tuple: &Tuple, role: Role) -> Result<Negotiation, Reason> {
    check_leaving(socket)?;
    let (numbers, has_peer_sent) = first_segment::numbers(socket, role)?;
    let Tuple { connector, acceptor } = *tuple;
    let parties = Parties { role, connector, acceptor, numbers, has_peer_sent };
    let geometry = fabric::geometry_of(policy::geometry());
    let meeting = Meeting::arrange(parties, geometry).ok_or(Reason::OutOfMemory)?;
    look(socket, meeting, 0)
}

/// Looks what came of it.
pub(super) fn look(socket: &Socket, meeting: Meeting, looks: u32) -> Result<Negotiation, Reason> {
    let link = match meeting.look() {
        MeetingOutcome::NotYet => {
            socket
                .first_segment
                .acceptors()
                .into_iter()
                .for_each(|now| meeting.note_acceptors(now));
            return Ok(Negotiation::Elsewhere { meeting, looks: looks + 1 });
        }
        MeetingOutcome::Nobody(why) => {
            if why == Reason::Unproven {
                count_unproven(socket);
            }
            return Err(why);
        }
        MeetingOutcome::Link(link) => link,
    };
    let segment = link.segment().ok_or(Reason::OutOfMemory)?;
    let peer = Relation::over(link.rdma_threshold());
    let agreed = Agreed { link: Some(link), ..Agreed::of(segment, peer) };
    Ok(Negotiation::Agreed(Box::new(agreed)))
}
