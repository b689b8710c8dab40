//! connect: TCP's own, and nothing else. Where the peer is on another host, and a provider may lead there, a link is
//! asked for before, and the session begins with the connection.

use crate::config::Role as ConfigRole;
use crate::fabric::{self, Link};
use crate::provider::shm::{Role, ABORTIVE};
use crate::reason::Reason;
use crate::registry::{Identity, Provider, State as ConnectionState};
use crate::session::Kind;
use crate::switch::anchor::link;
use crate::switch::anchor::options;
use crate::switch::descriptors::lifecycle;
use crate::switch::endpoint::flag;
use crate::switch::outcome::Outcome;
use crate::switch::policy;
use crate::switch::setup;
use crate::switch::socket::new_end::NewEnd;
use crate::switch::socket::structure::Structure;
use crate::switch::socket::table;
use crate::switch::socket::tuple::Tuple;
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::counters::{self, Event};
use crate::switch::stream::Stream;
use crate::sys::net::Target;
use crate::sys::process::NapSignals;
use crate::sys::{blocking, file, handlers, net, Errno, Fd, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;

/// What was agreed on with another host before TCP connects.
struct Offer {
    link: Arc<Link>,
    end: NewEnd,
}

/// connect on `fd`. `real` is the kernel's, on the program's own arguments.
pub fn connect(fd: Fd, target: Target, mut real: impl FnMut() -> Result<()>) -> Outcome {
    let Some(socket) = table::socket(fd) else { return Outcome::Pass };
    match socket.phase() {
        phase::FRESH | phase::NATIVE | phase::TCP => {}
        phase::CONNECTING => {
            let result = real();
            setup::establish(socket.get());
            return Outcome::Done(result.map(|()| 0));
        }
        phase::SAN if target == Target::Nothing => return disconnect(fd, socket.get(), real),
        _ => return Outcome::Pass,
    }
    if target == Target::Nothing {
        let result = real();
        if result.is_ok() {
            lifecycle::closing(fd);
            lifecycle::created(fd);
        }
        return Outcome::Done(result.map(|()| 0));
    }
    let Target::Address(target) = target else { return Outcome::Pass };
    if !fabric::may_exist() {
        return Outcome::Done(connect_over_tcp(&socket, &mut real).map(|()| 0));
    }
    let target = effective_target(target);
    if net::peer_address(fd).is_ok() {
        return Outcome::Pass;
    }
    let offer = match ask_for_link(&socket, &target) {
        Ok(Some(offer)) => offer,
        Ok(None) => return Outcome::Done(connect_over_tcp(&socket, &mut real).map(|()| 0)),
        Err(reason) => {
            let result = real();
            if is_under_way(result) {
                socket.set_phase(phase::NATIVE);
                publish(&socket, &target, Provider::Tcp, reason, ConnectionState::Established);
            }
            return Outcome::Done(result.map(|()| 0));
        }
    };
    let result = connect_then_bind(fd, socket.get(), &target, offer, &mut real);
    Outcome::Done(result.map(|()| 0))
}

fn is_under_way(result: Result<()>) -> bool {
    matches!(result, Ok(()) | Err(Errno(libc::EINPROGRESS | libc::EINTR)))
}

/// Everything else comes when it has shown that it lives.
fn connect_over_tcp(socket: &Socket, real: &mut impl FnMut() -> Result<()>) -> Result<()> {
    let result = real();
    if is_under_way(result) && socket.phase() == phase::FRESH {
        socket.begin_on_tcp(Role::Connector);
    }
    result
}

/// connect to AF_UNSPEC: the peer sees a reset, and the descriptor is as good as new.
fn disconnect(fd: Fd, socket: &'static Socket, real: impl FnOnce() -> Result<()>) -> Outcome {
    if let Some(stream) = socket.stream() {
        stream.own().sending.0.finished.fetch_or(ABORTIVE, SeqCst);
    }
    let result = real();
    if result.is_ok() {
        if let Some(stream) = socket.stream() {
            // The anchor's error (ECONNRESET) is the program's to read.
            stream.endpoint.set(flag::RESET | flag::ANCHOR_ENDED);
        }
        lifecycle::closing(fd);
        lifecycle::created(fd);
    }
    Outcome::Done(result.map(|()| 0))
}

/// Where a connect to this address really goes.
fn effective_target(target: SocketAddr) -> SocketAddr {
    let target = net::unmapped(target);
    let ip = match target.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, target.port())
}

/// Asks for a link to another host, and makes the session's segment. `None`: the peer is on this one.
fn ask_for_link(
    socket: &Socket,
    target: &SocketAddr,
) -> std::result::Result<Option<Offer>, Reason> {
    policy::check(ConfigRole::Connect, target)?;
    if options::unsupported(socket) {
        return Err(Reason::UnsupportedOption);
    }
    if policy::shares_memory() && net::is_local(target.ip()) {
        return Ok(None);
    }
    if file::status_flags(socket.anchor()).is_ok_and(|flags| flags & libc::O_ASYNC != 0) {
        return Err(Reason::UnsupportedOption);
    }
    let geometry = fabric::geometry_of(policy::geometry());
    let bound = net::local_address(socket.anchor()).map(|local| net::unmapped(local).ip());
    let source = bound.ok().filter(|ip| !ip.is_unspecified());
    let link = fabric::connect(*target, source, &geometry).map_err(|why| match why {
        // Without a device there, it is about this host.
        Reason::NoDevice if policy::shares_memory() => Reason::NotLocal,
        why => why,
    })?;
    let end = NewEnd::create_far(Role::Connector, geometry).map_err(|e| {
        setup::warn_about_segment(socket, &e);
        link.close(None);
        Reason::OutOfMemory
    })?;
    Ok(Some(Offer { link, end }))
}

/// connect on what was agreed on with the other host: TCP connects, and the session is bound to that.
fn connect_then_bind(
    fd: Fd,
    socket: &'static Socket,
    target: &SocketAddr,
    offer: Offer,
    real: &mut impl FnMut() -> Result<()>,
) -> Result<()> {
    let status = file::status_flags(fd).unwrap_or(0);
    let blocking = status & libc::O_NONBLOCK == 0;
    ask_for_session(&offer.end.stream(socket.statistics()), status);
    let mut signals = NapSignals::default();
    signals.mask(blocking, None);
    let started = if blocking { start_blocking(fd, real) } else { real() };
    if !matches!(started, Ok(()) | Err(Errno(libc::EINPROGRESS))) {
        offer.link.close(None);
        return started;
    }
    if let Err(e) = bind(socket, target, offer) {
        log::warn!("fd {fd}: staying on TCP: {e}");
        socket.set_phase(phase::NATIVE);
        let reason = Reason::OutOfMemory;
        publish(socket, target, Provider::Tcp, reason, ConnectionState::Established);
        return if blocking { finish_blocking(fd, started, signals, real) } else { started };
    }
    options::inherit(socket);
    socket.set_phase(phase::CONNECTING);
    if let Some(stream) = socket.stream() {
        // While TCP connects, the program may wait in ways we do not see: the first event rings.
        let _ = counters::raise(&stream, Event::Read);
    }
    publish(socket, target, link::provider(), Reason::Pending, ConnectionState::Connecting);
    let result = if blocking { finish_blocking(fd, started, signals, real) } else { started };
    match result {
        Ok(()) => setup::established(socket),
        Err(_) => setup::establish(socket),
    }
    result
}

/// The connector's first message asks for the session. `status` are the descriptor's flags.
fn ask_for_session(stream: &Stream, status: i32) {
    if status & libc::O_NONBLOCK != 0 {
        stream.endpoint.set(flag::NONBLOCK);
    }
    if status & libc::O_ASYNC != 0 {
        stream.endpoint.set(flag::ASYNC);
    }
    stream.open(Kind::SessionRequest);
}

/// The session is the socket's, and its link waits for the acceptor of this connection.
fn bind(socket: &Socket, target: &SocketAddr, offer: Offer) -> Result<()> {
    let Offer { link, end } = offer;
    let close = |_: &Errno| link.close(None);
    let tuple = Tuple::of_connecting(socket.anchor(), *target).inspect_err(close)?;
    give(socket, end, &link).inspect_err(close)?;
    link.bind(tuple.encode().to_vec());
    Ok(())
}

/// The socket has this end from now on, instead of that of an attempt that failed.
fn give(socket: &Socket, end: NewEnd, link: &Arc<Link>) -> Result<()> {
    let mut structure = Structure::lock();
    let is_given =
        socket.clear_end(&mut structure) && socket.give_end(&mut structure, end, Some(link));
    is_given.then_some(()).ok_or(Errno(libc::EBUSY))
}

/// A blocking connect that comes back at once if TCP has to wait, so that the acceptor never waits
/// for a segment that a blocked connector could not send. Signals are held back: they interrupt [`finish_blocking`].
fn start_blocking(fd: Fd, real: &mut impl FnMut() -> Result<()>) -> Result<()> {
    let limit = net::time_out(fd, libc::SO_SNDTIMEO).unwrap_or(0);
    let as_timeval = |ns: u64| libc::timeval {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_usec: (ns % 1_000_000_000 / 1000) as i64,
    };
    let set = |ns| net::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &as_timeval(ns));
    let _ = set(1_000_000);
    let started = real();
    let _ = set(limit);
    match started {
        // By the C library's own signals: connect goes on in the kernel and is waited for below.
        Err(Errno(libc::EINTR)) => Err(Errno(libc::EINPROGRESS)),
        other => other,
    }
}

/// Waits for a blocking connect that was `started` while `signals` were held back.
fn finish_blocking(
    fd: Fd,
    started: Result<()>,
    mut signals: NapSignals,
    real: &mut impl FnMut() -> Result<()>,
) -> Result<()> {
    if started.is_ok() {
        return started;
    }
    let mask = signals.mask(true, None);
    let came = blocking::poll(&mut [], Some(0), mask) == Err(Errno(libc::EINTR));
    drop(signals);
    let restarts = || net::time_out(fd, libc::SO_SNDTIMEO).is_none() && handlers::restart();
    if came && !restarts() {
        return Err(Errno(libc::EINTR));
    }
    // What the kernel calls a second connect that SO_SNDTIMEO ended, the program's is the first.
    real().map_err(|e| if e == Errno(libc::EALREADY) { Errno(libc::EINPROGRESS) } else { e })
}

/// Publishes a connection in the registry.
pub(super) fn publish(
    socket: &Socket,
    peer: &SocketAddr,
    provider: Provider,
    reason: Reason,
    state: ConnectionState,
) {
    socket.set_reason(reason);
    let fd = socket.anchor();
    let local = net::local_address(fd).unwrap_or(SocketAddr::new(peer.ip(), 0));
    let local = net::unmapped(local);
    let identity = Identity { fd, local, peer: *peer, provider, reason, state };
    socket.publish(&mut Structure::lock(), &identity);
    if provider == Provider::Tcp {
        log::info!("fd {fd}: {local} {peer} provider=tcp reason={}", reason.code());
    }
}
