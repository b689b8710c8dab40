//! The acceptor's part in looking for the other end of its connection: it says where connectors find it, and takes or
//! declines the session that a connector offers there. The caller has the structure lock.

use super::apart;
use super::callers::Offer;
use super::elsewhere;
use super::first_segment;
use super::identity;
use super::leaving::check_leaving;
use super::no_segment::warn_about_segment;
use super::offer_socket::{OfferSocket, OFFER_SOCKET};
use crate::provider::shm::{AgreementState, Bells, Role, Segment, SegmentError};
use crate::reason::Reason;
use crate::registry::{self, Event};
use crate::switch::policy;
use crate::switch::socket::names::Names;
use crate::switch::socket::negotiation::{Agreed, Negotiation};
use crate::switch::socket::structure::Structure;
use crate::switch::socket::table;
use crate::switch::socket::tuple::Tuple;
use crate::switch::socket::unpublished;
use crate::switch::socket::{phase, Socket};
use crate::sys::{hidden, process, time, Errno, Fd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// So many times an acceptor looks for an offer.
const MOST_LOOKS: u32 = 40;

/// An acceptor tells where its end is found, and looks for an offer.
pub(super) fn begin(
    socket: &Socket,
    structure: &mut Structure,
    tuple: Tuple,
) -> Result<Option<Negotiation>, Reason> {
    let dialled = identity::dialled(socket.anchor(), &tuple)?;
    let is_far = policy::crosses_namespaces() && elsewhere::is_away(&tuple, Role::Acceptor);
    let names =
        Names::of_accepted(&tuple, dialled, is_far, first_segment::stamp_of_accepted(socket));
    let offers = offer_socket(structure, socket.anchor()).map_err(why_not_found)?;
    offers.advertise(names).map_err(why_not_found)?;
    look_for_offer(socket, structure, tuple, names, 0)
}

/// This process's offer socket, opened when first needed.
fn offer_socket(structure: &mut Structure, like: Fd) -> Result<&mut OfferSocket, Errno> {
    let place = OFFER_SOCKET.get(structure);
    if place.as_ref().is_some_and(|one| !one.serves(like)) {
        if let Some(before) = place.take() {
            before.retire();
        }
    }
    if place.is_none() {
        let opened = OfferSocket::open(like);
        static SAID: AtomicBool = AtomicBool::new(false);
        if let Some(e) = opened.as_ref().err().filter(|_| !SAID.swap(true, Relaxed)) {
            log::warn!(
                "connectors of this host do not find this process, TCP only: {e} ({})",
                policy::folder().to_string_lossy()
            );
        }
        *place = Some(opened?);
    }
    place.as_mut().ok_or(Errno(libc::EBADF))
}

/// Why a process cannot say that it has an end.
fn why_not_found(e: Errno) -> Reason {
    match e.0 {
        libc::ENOMEM | libc::ENOSPC | libc::EDQUOT | libc::EMFILE | libc::ENFILE | libc::EFBIG => {
            Reason::OutOfMemory
        }
        _ => Reason::NoPlace,
    }
}

/// Before this process changes its user: opens the offer socket, so that connectors see as which user it was started.
pub fn before_user_change() {
    unpublished::publish();
    let may_not = policy::may_leave_tcp().and_then(|()| policy::has_place()).is_err();
    if process::is_borrowed() || may_not || policy::is_confined() {
        return;
    }
    let mut structure = Structure::lock();
    let mut found = None;
    table::each_socket(&mut |fd, socket| {
        let may_accept = matches!(socket.phase(), phase::LISTENER | phase::TCP);
        found = found.or(may_accept.then_some(fd));
    });
    if let Some(fd) = found {
        let _ = offer_socket(&mut structure, fd);
    }
}

/// An acceptor looks whether a connector found its entry.
pub(super) fn look_for_offer(
    socket: &Socket,
    structure: &mut Structure,
    tuple: Tuple,
    names: Names,
    looks: u32,
) -> Result<Option<Negotiation>, Reason> {
    let offers = OFFER_SOCKET.get(structure).as_mut().ok_or(Reason::OutOfMemory)?;
    let accepted = socket.anchor();
    let is_for_it = |one: &Offer| match one.cookie {
        Some(cookie) => identity::is_connectors(accepted, &tuple, cookie.get(), one.uid),
        // A proof shows it.
        None => true,
    };
    let Some(handed) = offers.take_one(names, is_for_it) else {
        if looks >= MOST_LOOKS {
            offers.withdraw(names);
            return Err(Reason::PeerNative);
        }
        return Ok(Some(Negotiation::Advertised { tuple, names, looks: looks + 1 }));
    };
    offers.withdraw(names);
    let [segment, bells @ ..] = handed.passed.map(hidden::kept);
    let attached = Segment::attach(segment).map(|segment| (segment, Bells::adopt(bells)));
    let (connector, cookie) = (handed.connector, handed.cookie);
    handed.close();
    let (segment, bells) = attached.map_err(|e| {
        warn_about_segment(socket, &e);
        match e {
            SegmentError::Version(_) => Reason::VersionMismatch,
            SegmentError::System(_) => Reason::OutOfMemory,
            _ => Reason::SegmentInvalid,
        }
    })?;
    let segment = segment.with_bells(bells.unwrap_or(Bells::NONE));
    let mut agreed = Box::new(Agreed::of(segment, connector));
    if !segment.geometry().is_within(policy::largest_geometry()) {
        warn_about_segment(socket, &SegmentError::Geometry);
        return Err(refuse(agreed, Reason::SegmentInvalid));
    }
    let has_bells = bells.map(drop).map_err(|_| Reason::OutOfMemory);
    if let Err(why) = has_bells.and_then(|()| check_leaving(socket)) {
        return Err(refuse(agreed, why));
    }
    if cookie.is_none() {
        agreed.peer = connector.seen_apart();
        return prove(socket, agreed);
    }
    match identity::dialled(accepted, &tuple) {
        Ok(None) => take(socket, agreed),
        Ok(Some(dialled)) if dialled == tuple.acceptor => prove(socket, agreed),
        Ok(Some(_)) => Err(refuse(agreed, Reason::Unproven)),
        Err(why) => Err(refuse(agreed, why)),
    }
}

/// An acceptor that was offered a session has to find out whether that is for its connection.
fn prove(socket: &Socket, mut agreed: Box<Agreed>) -> Result<Option<Negotiation>, Reason> {
    let number = first_segment::number(socket, Role::Acceptor);
    match number.and_then(|number| apart::answer(&agreed.segment, number)) {
        Ok(proof) => {
            agreed.proof = Some(proof);
            Ok(Some(Negotiation::Agreed(agreed)))
        }
        Err(why) => Err(refuse(agreed, why)),
    }
}

/// An acceptor takes the session that it was offered.
pub(super) fn take(
    socket: &Socket,
    mut agreed: Box<Agreed>,
) -> Result<Option<Negotiation>, Reason> {
    if !agreed.segment.agreement().decide(AgreementState::Taken) {
        // The connector withdrew it.
        agreed.unmap();
        return Err(Reason::Quiet);
    }
    (agreed.looks, agreed.since) = (0, time::now());
    registry::note(socket.statistics(), Event::Taken);
    Ok(Some(Negotiation::Agreed(agreed)))
}

/// An acceptor declines it.
fn refuse(agreed: Box<Agreed>, why: Reason) -> Reason {
    agreed.segment.agreement().decide(AgreementState::Refused);
    agreed.unmap();
    why
}
