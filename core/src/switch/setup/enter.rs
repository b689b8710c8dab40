//! An end enters the SAN: both ends have agreed ([`negotiate`](super::negotiate)) and live. From then on its transfers
//! are the switch's, and each direction [turns](crate::switch::anchor::switchover) when both ends have entered. The
//! caller has the structure lock.

use super::publish::publish;
use crate::provider::shm::Role;
use crate::reason::Reason;
use crate::session::Kind;
use crate::switch::anchor::options;
use crate::switch::anchor::switchover;
use crate::switch::anchor::watchers;
use crate::switch::back_to_tcp::idle;
use crate::switch::endpoint::flag;
use crate::switch::socket::negotiation::{Agreed, Negotiation};
use crate::switch::socket::new_end::NewEnd;
use crate::switch::socket::structure::Structure;
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::carrier::News;
use crate::sys::{actions, file, net, poll};

/// Both ends live: this one uses the session from now on, unless another thread is in the middle of a system call on
/// the socket, or the peer withdraws at this moment.
pub(super) fn enter(
    socket: &Socket,
    structure: &mut Structure,
    role: Role,
    agreed: Box<Agreed>,
) -> Result<Option<Negotiation>, Reason> {
    let fd = socket.anchor();
    let Some(alone) = socket.claim(structure) else {
        return Ok(Some(Negotiation::Agreed(agreed)));
    };
    // A direction that has ended on TCP can not go on elsewhere. (Of an established connection this end has shut it down.)
    let is_tcps = || poll::poll_one(fd, libc::POLLPRI | libc::POLLRDHUP) != Ok(0);
    let may = net::is_established(fd) && !is_tcps();
    if !may || !watchers::prepare_to_switch(structure, socket) {
        return Ok(Some(Negotiation::Agreed(agreed)));
    }
    let end = NewEnd::of_agreed(*agreed, role).map_err(|_| Reason::OutOfMemory)?;
    if !end.agreement().enter(role) {
        end.agreement().withdraw();
        return Err(Reason::Quiet);
    }
    alone.take_away_end();
    socket.give_end(structure, end);
    socket.traffic.entered();
    idle::note_memory();
    begin_session(socket, structure, role);
    alone.go_on_as(phase::SAN);
    publish(socket, structure, Reason::OnSan);
    if let Some(stream) = socket.stream() {
        stream.publish_transfers();
        if !stream.is_between_hosts() {
            let is_acceptor = role == Role::Acceptor;
            socket.statistics().set_session(stream.segment.inode(), is_acceptor);
        }
    }
    Ok(None)
}

/// Gives the socket its end of the session. No other thread has seen the end.
fn begin_session(socket: &Socket, structure: &mut Structure, role: Role) {
    let Some(stream) = socket.stream() else { return };
    actions::begin();
    let status = file::status_flags(socket.anchor()).unwrap_or(0);
    stream.endpoint.begin_on_tcp();
    if status & libc::O_NONBLOCK != 0 {
        stream.endpoint.set(flag::NONBLOCK);
    }
    let taken = net::bytes_taken(socket.anchor()).unwrap_or(0);
    stream.endpoint.receive.over_tcp.begin(taken);
    stream.open(match role {
        Role::Connector => Kind::SessionRequest,
        Role::Acceptor => Kind::SessionAccept,
    });
    options::inherit(socket);
    stream.peer().sending.0.direction.enter();
    switchover::try_turn(&stream);
    watchers::to_switch(structure, socket);
    stream.carrier().send(&stream, News::Entered);
}
