//! listen and accept: finding the session of a connection that came in (design 2).

use super::connect::show;
use super::endpoint::flag;
use super::far;
use super::listener::{Listener, Offer};
use super::memory::Memory;
use super::options;
use super::policy::{self, Relation};
use super::socket::{phase, Socket};
use super::stream::Stream;
use super::structure::Structure;
use super::table;
use super::tuple::{Introduction, Tuple};
use crate::config::Role as ConfigRole;
use crate::fabric::{self, Claim};
use crate::provider::shm::{Role, Segment, SegmentError, State};
use crate::reason::Reason;
use crate::registry::{Identity, Provider, State as Shown};
use crate::session::Kind;
use crate::sys::{file, hidden, net, time, Errno, Fd};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;

const NOBODY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// After listen succeeded in the kernel.
pub fn listening(fd: Fd) {
    let Some(socket) = table::socket(fd) else { return };
    if !matches!(socket.phase(), phase::FRESH | phase::NATIVE) || socket.listener().is_some() {
        return;
    }
    let Ok(address) = net::local_address(fd) else { return };
    if policy::check(ConfigRole::Listen, &net::unmapped(address)).is_err() {
        show(&socket, &NOBODY, Provider::Tcp, Reason::Policy, Shown::Listen);
        return;
    }
    let dual = address.is_ipv6()
        && net::option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY).unwrap_or(1) == 0;
    let shared = net::option(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT).unwrap_or(0) != 0;
    match Listener::open(address, dual, shared) {
        Ok(listener) => {
            socket.set_listener(Box::new(listener));
            options::accept_at_once(fd);
            show(&socket, &NOBODY, Provider::Shm, Reason::Listener, Shown::Listen);
            log::info!("fd {fd}: listening on {address}, rendezvous open");
        }
        Err(Errno(libc::EADDRINUSE)) => {
            log::warn!("fd {fd}: another process holds the rendezvous of {address}: TCP only");
            show(&socket, &NOBODY, Provider::Tcp, Reason::Policy, Shown::Listen);
        }
        Err(e) => {
            log::warn!("fd {fd}: no rendezvous for {address}: {e}: TCP only");
            show(&socket, &NOBODY, Provider::Tcp, Reason::OutOfMemory, Shown::Listen);
        }
    }
}

/// Before the program waits on, or accepts from, a listener: connectors on other hosts are served
/// from now on. Not earlier: the process that listens need not be the one that accepts.
pub fn serving(fd: Fd) {
    if !fabric::may_exist() {
        return;
    }
    if let Some(socket) = table::socket(fd).filter(|socket| socket.phase() == phase::LISTENER) {
        serve(&socket);
    }
}

/// As [`serving`], of a socket that is a listener.
pub(super) fn serve(socket: &Socket) {
    if let Some(listener) = socket.listener() {
        listener.serve();
    }
}

/// After accept gave the program `fd`: attaches the session the connector left, if there is one.
pub fn accepted(listener: Fd, fd: Fd) {
    let Some(listening) = table::socket(listener) else { return };
    if listening.phase() != phase::LISTENER {
        return;
    }
    let began = time::now();
    let tuple = Tuple::of_accepted(fd).ok();
    let taken = tuple.and_then(|tuple| Some(listening.listener()?.take(&tuple, fd)));
    let (offer, _late) = taken.map_or((None, None), |(offer, late)| (offer, Some(late)));
    let offered = offer.map(From::Near);
    let offered = offered.or_else(|| {
        let tuple = tuple.filter(|_| fabric::may_exist())?;
        let packet = Introduction { tuple, inode: 0 }.encode();
        let (from, local) = (tuple.connector.ip(), tuple.acceptor.ip());
        fabric::accept(&packet, from, local, listening.listener()?.board()).map(From::Far)
    });
    let mut structure = Structure::lock();
    let socket = Socket::allocate(&mut structure, fd);
    let entered = socket.is_some_and(|socket| table::put_socket(fd, socket));
    let (Some(socket), Some(tuple), true) = (socket, tuple, entered) else {
        drop(structure);
        match offered {
            Some(From::Near(offer)) => {
                Segment::refuse(offer.segment);
                hidden::close_any(offer.segment);
            }
            Some(From::Far(claim)) => claim.refuse(),
            None => {}
        }
        if let (Some(socket), false) = (socket, entered) {
            socket.remove_descriptor();
            drop(table::Pinned::adopt(socket));
        }
        return;
    };
    // Beside the pin of the descriptor, the one of this call.
    let socket = table::Pinned::new(socket);
    socket.has_options.store(listening.has_options.load(Relaxed), Relaxed);
    socket.set_phase(phase::NATIVE);
    let shown = |provider, reason| Identity {
        fd,
        local: tuple.acceptor,
        peer: tuple.connector,
        provider,
        reason,
        state: Shown::Established,
    };
    let Some(offered) = offered else {
        socket.set_reason(Reason::PeerNative);
        socket.publish(&mut structure, &shown(Provider::Tcp, Reason::PeerNative));
        drop(structure);
        log_accepted(fd, &tuple, Provider::Tcp, Reason::PeerNative);
        return;
    };
    drop(structure);
    let (provider, attached) = match offered {
        From::Near(offer) => {
            let attached = attach(&socket, &offer);
            hidden::close_any(offer.segment);
            (Provider::Shm, attached)
        }
        From::Far(claim) => (far::provider(), attach_far(&socket, claim)),
    };
    let (provider, reason) = match attached {
        Ok(()) => (provider, Reason::OnSan),
        Err(reason) => (Provider::Tcp, reason),
    };
    if reason == Reason::Withdrawn {
        let us = (time::now() - began) / 1000;
        log::info!("fd {fd}: the session was withdrawn before it was taken, {us} us after accept");
    }
    socket.set_reason(reason);
    socket.publish(&mut Structure::lock(), &shown(provider, reason));
    if let Some(stream) = socket.stream() {
        stream.publish_transfers();
    }
    log_accepted(fd, &tuple, provider, reason);
}

fn log_accepted(fd: Fd, tuple: &Tuple, provider: Provider, reason: Reason) {
    log::info!(
        "fd {fd}: {} {} provider={} reason={} role=acceptor",
        tuple.acceptor,
        tuple.connector,
        provider.name(),
        reason.code()
    );
}

/// Where an accepted connection's session comes from.
enum From {
    /// A connector on this host, by the rendezvous.
    Near(Offer),
    /// One on another host.
    Far(Claim),
}

/// Takes a session over a fabric.
fn attach_far(socket: &Socket, claim: Claim) -> Result<(), Reason> {
    let made = if options::unsupported(socket) {
        Err(Reason::UnsupportedOption)
    } else {
        let parts = Segment::create(claim.geometry).map(|(segment, fd)| {
            file::close(fd);
            segment
        });
        parts.map_err(|_| Reason::OutOfMemory).and_then(|segment| {
            match Memory::create(Role::Acceptor, claim.geometry, Relation::ELSEWHERE, -1) {
                Ok(memory) => Ok((segment, memory)),
                Err(_) => {
                    // SAFETY: nobody else knows this mapping.
                    unsafe { segment.unmap() };
                    Err(Reason::OutOfMemory)
                }
            }
        })
    };
    let (segment, memory) = match made {
        Ok(made) => made,
        Err(reason) => {
            claim.refuse();
            return Err(reason);
        }
    };
    segment.decide(State::Taken);
    // SAFETY: made just now; the endpoint outlives the link's use, which is closed with it.
    unsafe {
        claim.link.attach(segment, Role::Acceptor, memory.controller());
        socket.attach(segment, memory, Some(claim.link.clone()));
    }
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

/// Takes an offered session.
fn attach(socket: &Socket, offer: &Offer) -> Result<(), Reason> {
    let segment = Segment::attach(offer.segment).map_err(|e| {
        log::warn!("fd {}: {e}", socket.anchor());
        match e {
            SegmentError::Version(_) => Reason::VersionMismatch,
            SegmentError::System(_) => Reason::OutOfMemory,
            _ => Reason::SegmentInvalid,
        }
    })?;
    let memory = if !offer.admitted {
        Err(Reason::OtherUser)
    } else if let Err(reason) = policy::may_leave_tcp() {
        Err(reason)
    } else if options::unsupported(socket) {
        Err(Reason::UnsupportedOption)
    } else {
        Memory::create(Role::Acceptor, segment.geometry(), offer.connector, offer.segment)
            .map_err(|_| Reason::OutOfMemory)
    };
    match memory {
        // SAFETY: made just now.
        Ok(memory) => unsafe { socket.attach(segment, memory, None) },
        Err(reason) => {
            segment.decide(State::Refused);
            // SAFETY: nobody else knows this mapping.
            unsafe { segment.unmap() };
            return Err(reason);
        }
    }
    if !segment.decide(State::Taken) {
        // SAFETY: the phase is not SAN: nobody uses the stream.
        unsafe { socket.detach() };
        return Err(Reason::Withdrawn);
    }
    let Some(stream) = socket.stream() else { return Err(Reason::OutOfMemory) };
    begin(socket, &stream);
    Ok(())
}
