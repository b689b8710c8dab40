//! listen and accept: TCP's own, and a note of which end of the connection this is.

use crate::config::SocketRole;
use crate::provider::shm::Role;
use crate::reason::Reason;
use crate::registry::{Identity, Provider, State as ConnectionState};
use crate::switch::back_to_tcp::limits;
use crate::switch::descriptors::lifecycle;
use crate::switch::policy;
use crate::switch::setup::first_segment;
use crate::switch::socket::structure::Structure;
use crate::switch::socket::table::{self, Pinned};
use crate::switch::socket::unpublished;
use crate::switch::socket::{phase, Socket};
use crate::sys::process::is_borrowed;
use crate::sys::{net, Fd};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;

const NOBODY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// After listen succeeded in the kernel.
pub fn listening(fd: Fd) {
    unpublished::publish();
    let Some(socket) = table::socket(fd) else { return };
    if !matches!(socket.phase(), phase::FRESH | phase::NATIVE) {
        return;
    }
    let Ok(address) = net::local_address(fd) else { return };
    if let Err(why) = policy::check(SocketRole::Listen, &net::unmapped(address)) {
        return publish(&socket, Provider::Tcp, why);
    }
    socket.set_phase(phase::LISTENER);
    first_segment::keep(fd);
    publish(&socket, Provider::Shm, Reason::Listener);
    log::info!("fd {fd}: listening on {address}");
}

/// The listener behind `fd`, one too that another program or process left to this one.
fn listener_of(fd: Fd) -> Option<Pinned> {
    if table::socket(fd).is_none() {
        if is_borrowed()
            || net::option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) != Ok(libc::IPPROTO_TCP)
        {
            return None;
        }
        lifecycle::created(fd);
        lifecycle::note_options(fd);
        listening(fd);
    }
    table::socket(fd).filter(|socket| socket.phase() == phase::LISTENER)
}

/// After accept gave the program `fd`.
pub fn accepted(listener: Fd, fd: Fd) {
    let Some(listening) = listener_of(listener) else { return };
    unpublished::publish();
    let Some(socket) = Socket::allocate(fd) else { return };
    socket.has_options.store(listening.has_options.load(Relaxed), Relaxed);
    socket.begin_on_tcp(Role::Acceptor);
    first_segment::note_accepted(socket);
    // Beside the pin of the descriptor, the one of this call.
    let _pinned = Pinned::new(socket);
    lifecycle::enter(fd, socket);
    limits::check_at(fd);
}

/// Publishes a listener in the registry.
fn publish(socket: &Socket, provider: Provider, reason: Reason) {
    socket.set_reason(reason);
    let fd = socket.anchor();
    let local = net::local_address(fd).map_or(NOBODY, net::unmapped);
    let identity =
        Identity { fd, local, peer: NOBODY, provider, reason, state: ConnectionState::Listen };
    socket.publish(&mut Structure::lock(), &identity);
    if provider == Provider::Tcp {
        log::info!("fd {fd}: {local} {NOBODY} provider=tcp reason={}", reason.code());
    }
}
