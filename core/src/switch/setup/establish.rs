//! Connects under way between hosts, whose session was agreed on before: on the SAN once TCP has connected.

use crate::provider::shm::State;
use crate::reason::Reason;
use crate::registry::{self, Provider, State as ConnectionState};
use crate::switch::anchor::link;
use crate::switch::anchor::watchers;
use crate::switch::socket::structure::Structure;
use crate::switch::socket::table::{self, Pinned};
use crate::switch::socket::{phase, Socket};
use crate::sys::{net, poll, Fd};

/// If TCP has finished connecting, moves the socket on to the SAN, or to what the failure left.
pub(in crate::switch) fn establish(socket: &'static Socket) {
    if socket.phase() != phase::CONNECTING {
        return;
    }
    let Ok(events) = poll::poll_one(socket.anchor(), libc::POLLOUT) else { return };
    if events & (libc::POLLERR | libc::POLLHUP) != 0 && net::peer_address(socket.anchor()).is_err()
    {
        if let Some(stream) = socket.stream() {
            stream.segment.decide(State::Withdrawn);
        }
        socket.set_phase(phase::NATIVE);
        socket.statistics().set_provider(Provider::Tcp);
        socket.set_reason(Reason::NotConnected);
        return;
    }
    if events & libc::POLLOUT != 0 {
        established(socket);
    }
}

/// TCP has connected: moves the socket on to the SAN, unless another thread did.
pub(in crate::switch) fn established(socket: &'static Socket) {
    let mut structure = Structure::lock();
    if socket.phase() == phase::CONNECTING {
        socket.set_phase(phase::SAN);
        socket.set_reason(Reason::OnSan);
        registry::set_state(socket.statistics(), ConnectionState::Established);
        watchers::to_switch(&mut structure, socket);
        drop(structure);
        if let Some(stream) = socket.stream() {
            stream.publish_transfers();
        }
        let is_over_fabric = socket.stream().is_some_and(|stream| stream.fabric.is_some());
        let provider = if is_over_fabric { link::provider() } else { Provider::Shm };
        log::info!("fd {}: provider={} role=connector", socket.anchor(), provider.name());
    }
}

/// The socket behind `fd` if it was connecting: moved on if TCP has finished, and returned if it
/// is on the SAN now.
pub fn connecting(fd: Fd) -> Option<Pinned> {
    let socket = table::socket(fd)?;
    if socket.phase() != phase::CONNECTING {
        return None;
    }
    establish(socket.get());
    (socket.phase() == phase::SAN).then_some(socket)
}
