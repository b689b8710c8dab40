//! listen and accept: TCP's own, and a note of which end of the connection this is. Connections between hosts find
//! their session here.

use super::connect::publish;
use crate::config::Role as ConfigRole;
use crate::fabric::{self, Claim};
use crate::provider::shm::{Role, State};
use crate::reason::Reason;
use crate::registry::{Identity, Provider, State as ConnectionState};
use crate::session::Kind;
use crate::switch::anchor::link;
use crate::switch::anchor::options;
use crate::switch::descriptors::lifecycle;
use crate::switch::endpoint::flag;
use crate::switch::policy;
use crate::switch::socket::listener::Listener;
use crate::switch::socket::new_end::NewEnd;
use crate::switch::socket::structure::Structure;
use crate::switch::socket::table::{self, Pinned};
use crate::switch::socket::tuple::Tuple;
use crate::switch::socket::unpublished;
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::Stream;
use crate::sys::process::is_borrowed;
use crate::sys::{file, net, Fd};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;

const NOBODY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// After listen succeeded in the kernel.
pub fn listening(fd: Fd) {
    unpublished::publish();
    let Some(socket) = table::socket(fd) else { return };
    if !matches!(socket.phase(), phase::FRESH | phase::NATIVE) || socket.listener().is_some() {
        return;
    }
    let Ok(address) = net::local_address(fd) else { return };
    if policy::check(ConfigRole::Listen, &net::unmapped(address)).is_err() {
        publish(&socket, &NOBODY, Provider::Tcp, Reason::Policy, ConnectionState::Listen);
        return;
    }
    let dual = address.is_ipv6()
        && net::option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY).unwrap_or(1) == 0;
    let shared = net::option(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT).unwrap_or(0) != 0;
    match Listener::open(address, dual, shared) {
        Ok(listener) => {
            socket.set_listener(Box::new(listener));
            publish(&socket, &NOBODY, Provider::Shm, Reason::Listener, ConnectionState::Listen);
            log::info!("fd {fd}: listening on {address}");
        }
        Err(e) => {
            log::warn!("fd {fd}: no memory for the listener on {address}: {e}: TCP only");
            publish(&socket, &NOBODY, Provider::Tcp, Reason::OutOfMemory, ConnectionState::Listen);
        }
    }
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
        listening(fd);
    }
    table::socket(fd).filter(|socket| socket.phase() == phase::LISTENER)
}

/// After accept gave the program `fd`.
pub fn accepted(listener: Fd, fd: Fd) {
    let Some(listening) = listener_of(listener) else { return };
    unpublished::publish();
    let tuple = if fabric::may_exist() { Tuple::of_accepted(fd).ok() } else { None };
    let offered = tuple.and_then(|tuple| {
        let (from, local) = (tuple.connector.ip(), tuple.acceptor.ip());
        fabric::accept(&tuple.encode(), from, local, listening.listener()?.shared_backlog())
    });
    let Some(socket) = Socket::allocate(fd) else {
        if let Some(claim) = offered {
            claim.refuse();
        }
        return;
    };
    socket.has_options.store(listening.has_options.load(Relaxed), Relaxed);
    if offered.is_some() {
        socket.set_phase(phase::NATIVE);
    } else {
        socket.begin_on_tcp(Role::Acceptor);
    }
    // Beside the pin of the descriptor, the one of this call.
    let pinned = Pinned::new(socket);
    if !table::put_socket(fd, socket) {
        if let Some(claim) = offered {
            claim.refuse();
        }
        socket.remove_descriptor();
        drop(Pinned::adopt(socket));
        return;
    }
    if let (Some(claim), Some(tuple)) = (offered, tuple) {
        accepted_from_afar(&pinned, &tuple, claim);
    }
}

fn accepted_from_afar(socket: &Socket, tuple: &Tuple, claim: Claim) {
    let (provider, reason) = match attach(socket, claim) {
        Ok(()) => (link::provider(), Reason::OnSan),
        Err(reason) => (Provider::Tcp, reason),
    };
    socket.set_reason(reason);
    let (fd, local, peer) = (socket.anchor(), tuple.acceptor, tuple.connector);
    let state = ConnectionState::Established;
    let shown = Identity { fd, local, peer, provider, reason, state };
    socket.publish(&mut Structure::lock(), &shown);
    if let Some(stream) = socket.stream() {
        stream.publish_transfers();
    }
    let (name, code) = (provider.name(), reason.code());
    log::info!("fd {fd}: {local} {peer} provider={name} reason={code} role=acceptor");
}

/// Takes a session over a fabric.
fn attach(socket: &Socket, claim: Claim) -> Result<(), Reason> {
    let made = if options::unsupported(socket) {
        Err(Reason::UnsupportedOption)
    } else {
        NewEnd::create_far(Role::Acceptor, claim.geometry).map_err(|_| Reason::OutOfMemory)
    };
    let end = match made {
        Ok(end) => end,
        Err(reason) => {
            claim.refuse();
            return Err(reason);
        }
    };
    end.change(State::Pending, State::Taken);
    socket.give_end(&mut Structure::lock(), end, Some(&claim.link));
    let Some(stream) = socket.stream() else { return Err(Reason::OutOfMemory) };
    begin(socket, &stream);
    claim.link.confirm();
    Ok(())
}

/// The session is ours: the socket is on the SAN.
fn begin(socket: &Socket, stream: &Stream) {
    if file::status_flags(socket.anchor()).unwrap_or(0) & libc::O_NONBLOCK != 0 {
        stream.endpoint.set(flag::NONBLOCK);
    }
    options::inherit(socket);
    socket.set_phase(phase::SAN);
    stream.open(Kind::SessionAccept);
}
