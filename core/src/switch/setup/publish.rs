//! What `sanctl` shows of a connection, and the log line when it moves.

use crate::provider::shm::Role;
use crate::reason::Reason;
use crate::registry::{Identity, Provider, State as ConnectionState};
use crate::switch::anchor::link;
use crate::switch::socket::structure::Structure;
use crate::switch::socket::tuple::Tuple;
use crate::switch::socket::Socket;

/// Publishes the connection, or what is new of it.
pub(super) fn publish(socket: &Socket, structure: &mut Structure, reason: Reason) {
    let Some(role) = socket.role() else { return };
    let Ok(tuple) = Tuple::of(socket.anchor(), role) else { return };
    let is_news = !socket.is_published() || socket.reason() != reason;
    let provider = match reason {
        Reason::OnSan if socket.stream().is_some_and(|one| one.is_between_hosts()) => {
            link::provider()
        }
        Reason::OnSan => Provider::Shm,
        _ => Provider::Tcp,
    };
    let (local, peer) = match role {
        Role::Connector => (tuple.connector, tuple.acceptor),
        Role::Acceptor => (tuple.acceptor, tuple.connector),
    };
    let (fd, state) = (socket.anchor(), ConnectionState::Established);
    socket.set_reason(reason);
    socket.publish(structure, &Identity { fd, local, peer, provider, reason, state });
    if is_news {
        let (name, code) = (provider.name(), reason.code());
        let role = match role {
            Role::Connector => "connector",
            Role::Acceptor => "acceptor",
        };
        log::info!("fd {fd}: {local} {peer} provider={name} reason={code} role={role}");
    }
}
