//! An end enters the SAN: both ends have agreed ([`negotiate`](super::negotiate)) and live. From then on its transfers
//! are the switch's, and each direction [turns](crate::switch::anchor::switchover) when both ends have entered. Under
//! the structure lock.

use super::publish::publish;
use crate::provider::shm::{Role, State};
use crate::reason::Reason;
use crate::session::Kind;
use crate::switch::anchor::options;
use crate::switch::anchor::switchover;
use crate::switch::anchor::watchers;
use crate::switch::endpoint::flag;
use crate::switch::endpoint::memory::Memory;
use crate::switch::socket::negotiation::{Agreed, Negotiation};
use crate::switch::socket::structure::Structure;
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::counters::{self, Event};
use crate::sys::{file, net, poll};

/// Both ends live: this one uses the session from now on, unless another thread is in the middle of a system call on
/// the socket, or the peer withdraws at this moment.
pub(super) fn enter(
    socket: &Socket,
    structure: &mut Structure,
    role: Role,
    agreed: Agreed,
) -> Result<Option<Negotiation>, Reason> {
    let fd = socket.anchor();
    socket.set_phase(phase::ENTERING);
    let is_urgent = || poll::poll_one(fd, libc::POLLPRI) != Ok(0);
    // A direction that has ended on TCP can not go on elsewhere.
    let may = socket.is_used_by_caller_alone() && net::is_established(fd) && !is_urgent();
    if !may || !watchers::may_switch(structure, socket) {
        socket.set_phase(phase::TCP);
        return Ok(Some(Negotiation::Agreed(agreed)));
    }
    let Agreed { segment, peer, .. } = agreed;
    let Ok(memory) = Memory::create(role, segment.geometry(), peer) else {
        socket.set_phase(phase::TCP);
        agreed.end();
        return Err(Reason::OutOfMemory);
    };
    let (from, to) = match role {
        Role::Connector => (State::Taken, State::Confirmed),
        Role::Acceptor => (State::Confirmed, State::Settled),
    };
    if !segment.change(from, to) {
        // SAFETY: nobody knows it yet.
        unsafe { memory.discard() };
        socket.set_phase(phase::TCP);
        agreed.end();
        return Err(Reason::Quiet);
    }
    // SAFETY: no other thread uses the socket, and who is about to waits for its phase; the memory is of that session.
    unsafe {
        socket.detach();
        socket.attach(segment, memory, None);
    }
    socket.traffic.entered();
    begin_session(socket, structure, role);
    socket.set_phase(phase::SAN);
    publish(socket, structure, Reason::OnSan);
    if let Some(stream) = socket.stream() {
        stream.publish_transfers();
    }
    Ok(None)
}

/// The socket's end of the session, before anybody else sees it.
fn begin_session(socket: &Socket, structure: &mut Structure, role: Role) {
    let Some(stream) = socket.stream() else { return };
    let status = file::status_flags(socket.anchor()).unwrap_or(0);
    let mut flags = flag::SENDS_TCP | flag::RECEIVES_TCP;
    flags |= if status & libc::O_NONBLOCK != 0 { flag::NONBLOCK } else { 0 };
    flags |= if status & libc::O_ASYNC != 0 { flag::ASYNC } else { 0 };
    stream.endpoint.set(flags);
    stream.open(match role {
        Role::Connector => Kind::SessionRequest,
        Role::Acceptor => Kind::SessionAccept,
    });
    options::inherit(socket);
    if stream.endpoint.has(flag::ASYNC) {
        // For the signal the first event rings.
        let _ = counters::raise(&stream, Event::Read);
    }
    stream.peer().sending.0.doorbells.enter();
    switchover::try_turn(&stream);
    watchers::to_switch(structure, socket);
}
