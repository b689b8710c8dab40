//! Two ends of a busy connection agree to use a session and enter the SAN, each at one of its transfers.
//!
//! 1. The acceptor puts an entry into the peer table.
//! 2. The connector offers a session where that leads.
//! 3. The acceptor takes it, once it knows that it is for the same connection ([`identity`], [`apart`]).
//! 4. The connector confirms.
//!
//! Both live then, so no session meets a later connection of the same addresses. Whoever cannot go on withdraws the
//! session, and the connection stays on TCP. Under the structure lock. Moves no bytes: each direction
//! [turns](crate::switch::anchor::switchover) for itself.

use super::absent::why_nobody_is_there;
use super::apart;
use super::callers::Offer;
use super::elsewhere;
use super::enter::enter;
use super::first_segment;
use super::identity;
use super::offer_socket;
use super::offer_socket::{Found, OfferSocket, OFFER_SOCKET};
use super::publish::publish;
use crate::config::Role as ConfigRole;
use crate::fabric;
use crate::provider::shm::{Bells, Role, Segment, SegmentError, State};
use crate::reason::Reason;
use crate::registry::{self, Event};
use crate::session::Shown;
use crate::switch::anchor::options;
use crate::switch::back_to_tcp;
use crate::switch::policy::{self, Relation};
use crate::switch::setup::holders;
use crate::switch::socket::names::Names;
use crate::switch::socket::negotiation::{Agreed, Negotiation, Trials};
use crate::switch::socket::structure::Structure;
use crate::switch::socket::table;
use crate::switch::socket::traffic::{is_eager, Look};
use crate::switch::socket::tuple::Tuple;
use crate::switch::socket::unpublished;
use crate::switch::socket::{phase, Socket};
use crate::sys::{file, hidden, net, process, time, Errno, Fd};
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};

/// So many times an end looks for the other's answer at each of its transfers.
const LOOKS_AT_EACH: u32 = 8;
/// Then at every fourth, and half as often after each so many, down to every 128th: a look costs as much as a transfer.
const LOOKS_AT_A_DISTANCE: u32 = 16;
const MOST_HALVINGS: u32 = 5;
/// So many times in all while only its entry is there,
const MOST_LOOKS: u32 = 40;
/// and once a session is offered or taken, which the other end finds at its next transfer.
const MOST_LOOKS_AGREED: u32 = 128;
/// How long (ns) it looks for that at least: the other end may get no processor, while this one looks all the time.
const LEAST_AGREED: u64 = 100_000_000;
/// So many times an acceptor looks whether its connection is the connector's, where that takes experiments.
const MOST_EXPERIMENTS: u32 = 192;
/// Transfers between two looks at whether it is busy.
pub(super) const PAUSE: u32 = 16;

/// The connection does not go to the SAN, or not now: the peer learns of it.
pub(in crate::switch) fn end(negotiation: Negotiation, structure: &mut Structure) {
    match negotiation {
        Negotiation::Advertised { names, .. } => {
            let offers = OFFER_SOCKET.get(structure).as_mut();
            if let Some(offers) = offers.filter(|_| !policy::is_confined()) {
                offers.forget(names);
            }
        }
        Negotiation::Elsewhere { meeting, .. } => drop(meeting),
        Negotiation::Proving { agreed, .. } | Negotiation::Agreed(agreed) => agreed.end(),
    }
}

/// A transfer on a socket on TCP finds that a look is due: takes the next step. The caller has pinned it once.
pub(super) fn step(socket: &Socket) {
    let looked = is_undisturbed(socket).then(|| socket.traffic.look());
    if looked == Some(Look::Quiet) {
        // `sanctl` finds quiet connections, of processes that are published.
        return unpublished::publish();
    }
    let is_unseen = looked == Some(Look::Busy) && may_be_awaited_unseen(socket);
    if (is_unseen && socket.is_published()) || process::is_borrowed() || policy::is_confined() {
        return socket.traffic.look_after(PAUSE);
    }
    back_to_tcp::limits::check();
    // Who closes it from now on waits until this is over.
    socket.is_looked_at.store(true, SeqCst);
    let mut structure = Structure::lock();
    if socket.phase() != phase::TCP || !socket.is_open() {
        return;
    }
    if socket.kernel_registration.is_unknown() {
        drop(structure);
        return stay_on_tcp(socket, Reason::UnseenUse);
    }
    if socket.has_end() && !socket.shares_end() {
        // The first transfer since it came back.
        socket.clear_end(&mut structure);
        return socket.traffic.look_after(PAUSE);
    }
    let Some(role) = socket.role() else { return socket.traffic.look_after(PAUSE) };
    let negotiation = socket.guarded(&mut structure).negotiation.take();
    let next = match negotiation.map(|negotiation| *negotiation) {
        None => match looked.unwrap_or_else(|| socket.traffic.look()) {
            Look::Quiet => return,
            Look::Busy if may_be_awaited_unseen(socket) => {
                if !socket.is_published() {
                    publish(socket, &mut structure, Reason::UnseenUse);
                }
                return socket.traffic.look_after(if is_eager() { 1 } else { PAUSE });
            }
            Look::Busy => {
                if !socket.is_published() {
                    // For the events that follow. Of quiet ones `sanctl` reads what the kernel says.
                    publish(socket, &mut structure, Reason::Quiet);
                }
                // Who looks in vain does so again and again: that would leave no room for what else happened.
                if !socket.traffic.has_failed() {
                    registry::note(socket.statistics(), Event::Looks);
                }
                begin(socket, &mut structure, role)
            }
        },
        Some(Negotiation::Advertised { tuple, names, looks }) => {
            look_for_offer(socket, &mut structure, tuple, names, looks).map_err(|why| match why {
                Reason::PeerNative => why_nobody_is_there(socket, &tuple, role),
                why => why,
            })
        }
        Some(Negotiation::Elsewhere { meeting, looks }) => match elsewhere::look(meeting, looks) {
            Ok(Negotiation::Agreed(agreed)) => follow(socket, &mut structure, role, agreed),
            looked => looked.map(Some),
        },
        Some(Negotiation::Proving { tuple, trials, agreed }) => {
            prove(socket, tuple, trials, agreed)
        }
        Some(Negotiation::Agreed(agreed)) => follow(socket, &mut structure, role, agreed),
    };
    note(socket, &mut structure, next);
}

/// A connection of which nothing is under way: a look at its traffic takes no lock, and so no system call. Most looks are
/// of such ones.
fn is_undisturbed(socket: &Socket) -> bool {
    !socket.has_end() && !socket.negotiates.load(Relaxed)
}

/// Transfers until the next look, after so many.
fn until_next(looks: u32) -> u32 {
    match looks.checked_sub(LOOKS_AT_EACH) {
        None => 1,
        Some(_) if is_eager() => 4,
        Some(more) => 4 << (more / LOOKS_AT_A_DISTANCE).min(MOST_HALVINGS),
    }
}

/// Notes how far it has come, and when the next look is due.
fn note(socket: &Socket, structure: &mut Structure, next: Result<Option<Negotiation>, Reason>) {
    socket.negotiates.store(matches!(next, Ok(Some(_))), Relaxed);
    match next {
        Ok(None) => {}
        Ok(Some(negotiation)) => {
            let looks = match &negotiation {
                Negotiation::Advertised { looks, .. } | Negotiation::Elsewhere { looks, .. } => {
                    *looks
                }
                // At each transfer there may be something to see.
                Negotiation::Proving { .. } => 0,
                Negotiation::Agreed(agreed) => agreed.looks,
            };
            if matches!(negotiation, Negotiation::Proving { .. } | Negotiation::Agreed(_)) {
                // If it makes no more transfers, somebody else has to give up what it has.
                back_to_tcp::idle::note_memory();
            }
            socket.guarded(structure).negotiation = Some(Box::new(negotiation));
            socket.traffic.look_after(until_next(looks));
        }
        Err(why) => {
            if elsewhere::count_failure(socket, why) {
                socket.set_phase(phase::NATIVE);
            }
            // An attempt to meet another host is a long one.
            let is_short = socket.role() == Some(Role::Connector) && !fabric::may_exist();
            socket.traffic.failed(is_short);
            socket.traffic.look_after(if is_eager() { 1 } else { PAUSE });
            // In the eager mode the first attempts may be too early.
            if why != Reason::PeerNative || !is_eager() || socket.traffic.fails_always() {
                publish(socket, structure, why);
            }
        }
    }
}

/// One on TCP, or not connected yet, stays there for good. The caller's pin keeps it from entering meanwhile.
pub(in crate::switch) fn stay_on_tcp(socket: &Socket, why: Reason) {
    // One that enters does so under the lock.
    if !matches!(socket.phase(), phase::FRESH | phase::TCP | phase::ENTERING) {
        return;
    }
    let mut structure = Structure::lock();
    if matches!(socket.phase(), phase::FRESH | phase::TCP) {
        socket.set_phase(phase::NATIVE);
        if process::is_borrowed() {
            // Its descriptors are the parent's, which ends what there is when the socket goes.
            return;
        }
        if let Some(negotiation) = socket.guarded(&mut structure).negotiation.take() {
            end(*negotiation, &mut structure);
        }
        if unpublished::is_unpublished() {
            // It would make a file in each child that only starts a program.
            socket.set_reason(why);
        } else {
            publish(socket, &mut structure, why);
        }
    }
}

/// Whether the program may wait for it by system calls of its own, as Rust's async-io does: no call on it waits, and no wait of
/// libc's was for it yet.
fn may_be_awaited_unseen(socket: &Socket) -> bool {
    !socket.is_awaited() && file::is_nonblocking(socket.anchor())
}

/// Why the connection has to stay on TCP for now, if it does. Forgets holders that died.
pub(super) fn check_leaving(socket: &Socket) -> Result<(), Reason> {
    policy::may_leave_tcp()?;
    if holders::look_for_others(socket) {
        return Err(Reason::Shared);
    }
    if options::unsupported(socket) {
        return Err(Reason::UnsupportedOption);
    }
    if file::status_flags(socket.anchor()).is_ok_and(|flags| flags & libc::O_ASYNC != 0) {
        return Err(Reason::TcpOnly);
    }
    if socket.shares_end() {
        Err(Reason::Shared)
    } else {
        Ok(())
    }
}

/// Looks for the other end.
fn begin(
    socket: &Socket,
    structure: &mut Structure,
    role: Role,
) -> Result<Option<Negotiation>, Reason> {
    check_leaving(socket)?;
    if net::bytes_written(socket.anchor()).is_none() {
        // Nothing could tell where a direction turns.
        return Err(Reason::UnsupportedOption);
    }
    let tuple = Tuple::of(socket.anchor(), role).map_err(|_| Reason::NotConnected)?;
    policy::check(
        match role {
            Role::Acceptor => ConfigRole::Listen,
            Role::Connector => ConfigRole::Connect,
        },
        &tuple.acceptor,
    )?;
    if elsewhere::is_elsewhere(&tuple, role) && !looks_in_folder(socket) {
        return elsewhere::begin(socket, &tuple, role).map(Some);
    }
    if !policy::shares_memory() {
        return Err(Reason::Policy);
    }
    policy::has_user()?;
    policy::has_place()?;
    let begun = match role {
        Role::Acceptor => {
            let dialled = identity::dialled(socket.anchor(), &tuple)?;
            let is_far = policy::crosses_namespaces() && elsewhere::is_away(&tuple, role);
            let names =
                Names::of_accepted(&tuple, dialled, is_far, first_segment::of_accepted(socket));
            let offers = offer_socket(structure, socket.anchor()).map_err(why_not_found)?;
            offers.advertise(names).map_err(why_not_found)?;
            look_for_offer(socket, structure, tuple, names, 0)
        }
        Role::Connector => offer(socket, &tuple),
    };
    begun.map_err(|why| match why {
        Reason::PeerNative => why_nobody_is_there(socket, &tuple, role),
        why => why,
    })
}

/// Whether a peer in another network namespace is looked for in the folder now, and not over RDMA: by turns.
fn looks_in_folder(socket: &Socket) -> bool {
    policy::crosses_namespaces() && policy::shares_memory() && socket.traffic.looks_near()
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
    if process::is_borrowed() || policy::may_leave_tcp().is_err() || policy::is_confined() {
        return;
    }
    let mut structure = Structure::lock();
    let mut found = None;
    table::each_socket(0, Fd::MAX - 1, |fd, socket| {
        let may_accept = matches!(socket.phase(), phase::LISTENER | phase::TCP);
        found = found.or(may_accept.then_some(fd));
    });
    if let Some(fd) = found {
        let _ = offer_socket(&mut structure, fd);
    }
}

/// A connector offers a session.
fn offer(socket: &Socket, tuple: &Tuple) -> Result<Option<Negotiation>, Reason> {
    let mut made = None;
    let stamp = first_segment::of_connected(socket);
    let names = Names::of_connected(tuple, policy::crosses_namespaces(), stamp);
    let handed = offer_socket::offer(socket.anchor(), tuple, names, || {
        let (segment, fd) = Segment::create(policy::geometry()).map_err(|e| {
            super::warn_about_segment(socket, &e);
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
        (Ok(Found { peer, is_apart }), Some(segment)) => {
            registry::note(socket.statistics(), Event::Offered);
            let mut agreed = Box::new(Agreed::of(segment, peer));
            match is_apart.then(|| apart::coins(socket.anchor())).transpose() {
                Ok(coins) => agreed.coins = coins,
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

/// An acceptor looks whether a connector found its entry.
fn look_for_offer(
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
        // Coins show it.
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
        super::warn_about_segment(socket, &e);
        match e {
            SegmentError::Version(_) => Reason::VersionMismatch,
            SegmentError::System(_) => Reason::OutOfMemory,
            _ => Reason::SegmentInvalid,
        }
    })?;
    let segment = segment.with_bells(bells.unwrap_or(Bells::NONE));
    let mut agreed = Box::new(Agreed::of(segment, connector));
    if !segment.geometry().is_within(policy::largest_geometry()) {
        super::warn_about_segment(socket, &SegmentError::Geometry);
        return Err(refuse(agreed, Reason::SegmentInvalid));
    }
    let has_bells = bells.map(drop).map_err(|_| Reason::OutOfMemory);
    if let Err(why) = has_bells.and_then(|()| check_leaving(socket)) {
        return Err(refuse(agreed, why));
    }
    let Some(cookie) = cookie else {
        return match apart::coins(accepted) {
            Ok(coins) => {
                (agreed.peer, agreed.coins) = (connector.seen_apart(), Some(coins));
                Ok(Some(Negotiation::Agreed(agreed)))
            }
            Err(why) => Err(refuse(agreed, why)),
        };
    };
    match identity::dialled(accepted, &tuple) {
        Ok(None) => take(socket, agreed),
        Ok(Some(dialled)) if dialled == tuple.acceptor => {
            let trials = Trials::with(cookie.get());
            Ok(Some(Negotiation::Proving { tuple, trials, agreed }))
        }
        Ok(Some(_)) => Err(refuse(agreed, Reason::Unproven)),
        Err(why) => Err(refuse(agreed, why)),
    }
}

/// An acceptor takes the session that it was offered.
fn take(socket: &Socket, mut agreed: Box<Agreed>) -> Result<Option<Negotiation>, Reason> {
    if !agreed.segment.agreement().decide(State::Taken) {
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
    agreed.segment.agreement().decide(State::Refused);
    agreed.unmap();
    why
}

/// An acceptor that was offered a session looks whether its connection is the connector's.
fn prove(
    socket: &Socket,
    tuple: Tuple,
    mut trials: Trials,
    mut agreed: Box<Agreed>,
) -> Result<Option<Negotiation>, Reason> {
    agreed.looks += 1;
    if agreed.segment.agreement().state() != State::Pending {
        agreed.unmap();
        return Err(Reason::Quiet);
    }
    match identity::experiment(socket.anchor(), &tuple, &mut trials) {
        Shown::Same => take(socket, agreed),
        Shown::NotYet if agreed.looks < MOST_EXPERIMENTS => {
            Ok(Some(Negotiation::Proving { tuple, trials, agreed }))
        }
        Shown::NotYet | Shown::Different => Err(refuse(agreed, Reason::Unproven)),
    }
}

/// Looks whether the other end is as far as this one.
fn follow(
    socket: &Socket,
    structure: &mut Structure,
    role: Role,
    mut agreed: Box<Agreed>,
) -> Result<Option<Negotiation>, Reason> {
    if let Some(link) = &agreed.link {
        link.poll();
    }
    let shown = apart::step(socket.anchor(), role, &mut agreed);
    let why = match agreed.segment.agreement().state() {
        State::Refused => Reason::RefusedByPeer,
        State::Withdrawn => Reason::Quiet,
        _ if shown == Shown::Different => Reason::Unproven,
        // The peer needs this end's coins, too.
        _ if shown == Shown::NotYet => return Ok(Some(Negotiation::Agreed(agreed))),
        State::Pending if role == Role::Acceptor => return take(socket, agreed),
        state if state == State::awaited_by(role) => match check_entering(socket, &agreed) {
            Ok(()) => {
                // If it cannot enter now, it looks again soon.
                agreed.looks = (agreed.looks + 1).min(LOOKS_AT_EACH);
                return enter(socket, structure, role, agreed);
            }
            Err(why) => why,
        },
        // Coins end by themselves.
        _ if agreed.coins.is_some() => return Ok(Some(Negotiation::Agreed(agreed))),
        _ if agreed.looks < MOST_LOOKS_AGREED || time::now() < agreed.since + LEAST_AGREED => {
            agreed.looks += 1;
            return Ok(Some(Negotiation::Agreed(agreed)));
        }
        _ => check_entering(socket, &agreed).err().unwrap_or(Reason::PeerNative),
    };
    agreed.end();
    Err(why)
}

/// Why the connection has to stay on TCP after all, if it does.
fn check_entering(socket: &Socket, agreed: &Agreed) -> Result<(), Reason> {
    if !net::is_established(socket.anchor()) {
        return Err(Reason::Quiet);
    }
    if agreed.link.is_some() {
        elsewhere::check_leaving(socket)
    } else {
        check_leaving(socket)
    }
}
