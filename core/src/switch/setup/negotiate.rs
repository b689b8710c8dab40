//! Two ends of a busy connection agree to use a session and enter the SAN, each at one of its transfers.
//!
//! 1. The acceptor puts an entry into the peer table.
//! 2. The connector offers a session where that entry leads.
//! 3. The acceptor takes the session, once it knows that it is for the same connection ([`identity`](super::identity),
//!    [`apart`]).
//! 4. The connector confirms.
//!
//! Both live then, so no session meets a later connection of the same addresses. An end that cannot go on withdraws the
//! session, and the connection stays on TCP. The caller has the structure lock. No bytes move here: each direction
//! [turns](crate::switch::anchor::switchover) for itself.

use super::absent::why_nobody_is_there;
use super::acceptor;
use super::apart::{self, Shown};
use super::connector;
use super::elsewhere;
use super::enter::enter;
use super::first_segment;
use super::leaving::check_leaving;
use super::lives;
use super::offer_socket::OFFER_SOCKET;
use super::pace;
use super::publish::publish;
use crate::config::SocketRole;
use crate::fabric;
use crate::provider::shm::{budget, AgreementState, Role};
use crate::reason::Reason;
use crate::registry::{self, Event};
use crate::switch::back_to_tcp;
use crate::switch::policy;
use crate::switch::socket::negotiation::{Agreed, Negotiation};
use crate::switch::socket::structure::Structure;
use crate::switch::socket::traffic::{is_eager, Look};
use crate::switch::socket::tuple::Tuple;
use crate::switch::socket::unpublished;
use crate::switch::socket::{phase, Socket};
use crate::sys::{file, net, process, time};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// So many times an end looks for the other's answer at each of its transfers.
const LOOKS_AT_EACH: u32 = 8;
/// After that an end looks at every fourth transfer, and half as often after each so many looks, down to every 128th: a
/// look costs as much as a transfer.
const LOOKS_AT_A_DISTANCE: u32 = 16;
const MOST_HALVINGS: u32 = 5;
/// So many times in all once a session is offered or taken, which the other end finds at its next transfer.
const MOST_LOOKS_AGREED: u32 = 128;
/// How long (ns) it looks for that at least: the other end may get no processor, while this one looks all the time.
const LEAST_AGREED: u64 = 100_000_000;
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
        Negotiation::Agreed(agreed) => agreed.end(),
    }
}

/// A transfer on a socket on TCP finds that a look is due: takes the next step. The caller has pinned it once. Not inlined,
/// because a fork child's connection comes here, and order.ld says where this lies.
#[inline(never)]
pub(super) fn step(socket: &Socket) {
    let looked = is_undisturbed(socket).then(|| look(socket));
    if looked == Some(Look::Quiet) {
        // `sanctl` finds quiet connections of processes that publish. The kernel knows nothing of a rule.
        return match socket.reason() {
            Reason::Policy => stay_on_tcp(socket, Reason::Policy),
            _ => unpublished::publish(),
        };
    }
    let is_unseen = looked == Some(Look::Busy) && may_be_awaited_unseen(socket);
    let is_later = (is_unseen && socket.is_published())
        || (looked == Some(Look::Busy) && is_held_back(socket))
        || process::is_borrowed()
        || policy::is_confined();
    if is_later {
        return socket.traffic.look_after(PAUSE);
    }
    back_to_tcp::limits::check();
    // A thread that closes the socket from now on waits until this is over.
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
    let began = time::now();
    let negotiation = socket.guarded(&mut structure).negotiation.take();
    let offers = negotiation.is_none();
    let next = match negotiation.map(|negotiation| *negotiation) {
        None => match looked.unwrap_or_else(|| look(socket)) {
            Look::Quiet => return,
            Look::Busy if may_be_awaited_unseen(socket) => {
                if !socket.is_published() {
                    publish(socket, &mut structure, Reason::UnseenUse);
                }
                return socket.traffic.look_after(if is_eager() { 1 } else { PAUSE });
            }
            Look::Busy => {
                if !socket.is_published() {
                    // This is for the events that follow. `sanctl` reads what the kernel says of quiet connections.
                    publish(socket, &mut structure, Reason::Quiet);
                }
                // An end that looks in vain does so again and again. That would leave no room for what else happened.
                if !socket.traffic.has_failed() {
                    registry::note(socket.statistics(), Event::Looks);
                }
                begin(socket, &mut structure, role)
            }
        },
        Some(Negotiation::Advertised { tuple, names, looks }) => {
            acceptor::look_for_offer(socket, &mut structure, tuple, names, looks).map_err(|why| {
                match why {
                    Reason::PeerNative => why_nobody_is_there(socket, &mut structure, &tuple, role),
                    why => why,
                }
            })
        }
        Some(Negotiation::Elsewhere { meeting, looks }) => {
            match elsewhere::look(socket, meeting, looks) {
                Ok(Negotiation::Agreed(agreed)) => follow(socket, &mut structure, role, agreed),
                looked => looked.map(Some),
            }
        }
        Some(Negotiation::Agreed(agreed)) => follow(socket, &mut structure, role, agreed),
    };
    note(socket, &mut structure, next);
    if role == Role::Connector && (offers || socket.phase() == phase::SAN) {
        let now = time::now();
        pace::count(now - began, now);
    }
}

/// A look that was due.
fn look(socket: &Socket) -> Look {
    let looked = socket.traffic.look();
    if looked == Look::Busy {
        lives::note_busy(socket);
    }
    looked
}

/// A connection of which nothing is under way: a look at its traffic takes no lock, and so no system call. Most looks are
/// of such ones.
fn is_undisturbed(socket: &Socket) -> bool {
    !socket.has_end() && !socket.negotiates.load(Relaxed)
}

/// Whether the process has made as many offers lately as it has time for.
fn is_held_back(socket: &Socket) -> bool {
    socket.role() == Some(Role::Connector) && !is_eager() && !pace::allows(time::now())
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
                Negotiation::Agreed(agreed) => agreed.looks,
            };
            if matches!(negotiation, Negotiation::Agreed(_)) {
                // If it makes no more transfers, another thread has to give up what it has.
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
            // The next send may show which connection it is.
            let may_change = matches!(why, Reason::PeerNative | Reason::Unproven);
            if !may_change || is_late(socket) {
                publish(socket, structure, why);
            } else if !is_eager() {
                publish(socket, structure, Reason::Pending);
            }
        }
    }
}

/// True if so many attempts failed that they would have met the other end if it were ready. The first ones come too
/// early: one end is always there before the other.
fn is_late(socket: &Socket) -> bool {
    if is_eager() {
        socket.traffic.fails_always()
    } else {
        socket.traffic.fails_again()
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

/// Looks for the other end.
fn begin(
    socket: &Socket,
    structure: &mut Structure,
    role: Role,
) -> Result<Option<Negotiation>, Reason> {
    check_leaving(socket)?;
    if budget::has_few_descriptors() {
        return Err(Reason::OutOfMemory);
    }
    if net::bytes_written(socket.anchor()).is_none() {
        // Nothing could tell where a direction turns.
        return Err(Reason::UnsupportedOption);
    }
    let tuple = Tuple::of(socket.anchor(), role).map_err(|_| Reason::NotConnected)?;
    policy::check(
        match role {
            Role::Acceptor => SocketRole::Listen,
            Role::Connector => SocketRole::Connect,
        },
        &tuple.acceptor,
    )?;
    if elsewhere::is_elsewhere(&tuple, role) && !looks_in_folder(socket) {
        return match elsewhere::begin(socket, &tuple, role) {
            // The next send may show which connection it is.
            Err(Reason::Pending) => Ok(None),
            begun => begun.map(Some),
        };
    }
    if !policy::shares_memory() {
        return Err(Reason::Policy);
    }
    policy::has_user()?;
    policy::has_place()?;
    let begun = match role {
        Role::Acceptor => acceptor::begin(socket, structure, tuple),
        Role::Connector => connector::offer(socket, &tuple),
    };
    begun.map_err(|why| match why {
        Reason::PeerNative => why_nobody_is_there(socket, structure, &tuple, role),
        why => why,
    })
}

/// Whether a peer in another network namespace is looked for in the folder now, and not over RDMA: by turns.
fn looks_in_folder(socket: &Socket) -> bool {
    policy::crosses_namespaces() && policy::shares_memory() && socket.traffic.looks_near()
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
    let shown = apart::step(&mut agreed);
    let why = match agreed.segment.agreement().state() {
        AgreementState::Refused => Reason::RefusedByPeer,
        AgreementState::Withdrawn => Reason::Quiet,
        _ if shown == Shown::Different => Reason::Unproven,
        AgreementState::Pending if role == Role::Acceptor && shown == Shown::Same => {
            return acceptor::take(socket, agreed);
        }
        state if state == AgreementState::awaited_by(role) && shown == Shown::Same => {
            match check_entering(socket, &agreed) {
                Ok(()) => {
                    // If it cannot enter now, it looks again soon.
                    agreed.looks = (agreed.looks + 1).min(LOOKS_AT_EACH);
                    return enter(socket, structure, role, agreed);
                }
                Err(why) => why,
            }
        }
        _ if agreed.looks < MOST_LOOKS_AGREED || time::now() < agreed.since + LEAST_AGREED => {
            agreed.looks += 1;
            return Ok(Some(Negotiation::Agreed(agreed)));
        }
        _ => check_entering(socket, &agreed).err().unwrap_or(Reason::PeerNative),
    };
    // Over a link the proof comes before anything else.
    let is_unproven = match agreed.link {
        Some(_) => shown != Shown::Same,
        None => shown == Shown::Different,
    };
    agreed.end();
    if is_unproven {
        elsewhere::count_unproven(socket);
        return Err(Reason::Unproven);
    }
    Err(why)
}

/// Why the connection has to stay on TCP after all, if it does.
fn check_entering(socket: &Socket, agreed: &Agreed) -> Result<(), Reason> {
    first_segment::look_again(socket);
    // On the SAN something on the error queue would be the connection's end.
    if !net::is_established(socket.anchor()) || socket.first_segment.is_shown() {
        return Err(Reason::Quiet);
    }
    if agreed.link.is_some() {
        elsewhere::check_leaving(socket)
    } else {
        check_leaving(socket)
    }
}
