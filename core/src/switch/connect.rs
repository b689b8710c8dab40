//! connect: the intent first, then TCP, then the session (design 2).

use super::endpoint::flag;
use super::epoll;
use super::far;
use super::lifecycle;
use super::listener::{self, ANY, GROUP_LIMIT};
use super::memory::Memory;
use super::options;
use super::policy;
use super::socket::{phase, Socket};
use super::stream::Stream;
use super::structure::Structure;
use super::table;
use super::tuple::{Introduction, Tuple};
use super::wait::{self, Event};
use super::Outcome;
use crate::config::Role as ConfigRole;
use crate::fabric::{self, Link};
use crate::provider::shm::{Role, Segment, State, ABORTIVE};
use crate::reason::Reason;
use crate::registry::{Identity, Provider, State as Shown};
use crate::session::Kind;
use crate::sys::hidden::Spare;
use crate::sys::net::Target;
use crate::sys::packet::AbstractName;
use crate::sys::process::NapSignals;
use crate::sys::{blocking, file, handlers, net, packet, poll, Errno, Fd, Result};
use smallvec::SmallVec;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;

/// Members of an SO_REUSEPORT group that may be gone in a row before the search ends.
const GROUP_GAPS: u32 = 3;

/// What was agreed on before TCP connects.
struct Offer {
    way: Way,
    segment: Segment,
    /// For the acceptor, if it is on this host.
    segment_fd: Option<Fd>,
}

/// How the acceptor is reached.
enum Way {
    /// It shares memory with us.
    Shm(Intent),
    /// It is on another host.
    Fabric(Arc<Link>),
}

/// Connections to the rendezvous of everybody who may accept ours.
struct Intent {
    rendezvous: SmallVec<[Fd; 1]>,
    /// Whoever of them accepts.
    acceptor: policy::Relation,
}

impl Drop for Intent {
    fn drop(&mut self) {
        for fd in &self.rendezvous {
            file::close(*fd);
        }
    }
}

/// connect on `fd`. `real` is the kernel's, on the program's own arguments.
pub fn connect(fd: Fd, target: Target, mut real: impl FnMut() -> Result<()>) -> Outcome {
    let Some(socket) = table::socket(fd) else { return Outcome::Pass };
    match socket.phase() {
        phase::FRESH | phase::NATIVE => {}
        phase::CONNECTING => {
            let result = real();
            establish(socket.get());
            return Outcome::Done(result.map(|()| 0));
        }
        phase::SAN if target == Target::Nothing => return dissolve(fd, socket.get(), real),
        _ => return Outcome::Pass,
    }
    let Target::Address(target) = target else { return Outcome::Pass };
    let target = effective(target);
    if net::peer_address(fd).is_ok() {
        return Outcome::Pass;
    }
    let offer = prepare(&socket, &target);
    let offer = match offer {
        Ok(offer) => offer,
        Err(reason) => {
            let result = real();
            if matches!(result, Ok(()) | Err(Errno(libc::EINPROGRESS | libc::EINTR))) {
                socket.set_phase(phase::NATIVE);
                show(&socket, &target, Provider::Tcp, reason, Shown::Established);
            }
            return Outcome::Done(result.map(|()| 0));
        }
    };
    let segment_fd = offer.segment_fd;
    let result = connect_then_bind(fd, socket.get(), &target, offer, &mut real);
    if let Some(fd) = segment_fd {
        file::close(fd);
    }
    Outcome::Done(result.map(|()| 0))
}

/// connect to AF_UNSPEC: the peer sees a reset, and the descriptor is as good as new.
fn dissolve(fd: Fd, socket: &'static Socket, real: impl FnOnce() -> Result<()>) -> Outcome {
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
fn effective(target: SocketAddr) -> SocketAddr {
    let target = net::unmapped(target);
    let ip = match target.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, target.port())
}

/// Announces the connection to whoever may accept it, and makes the session's segment.
fn prepare(socket: &Socket, target: &SocketAddr) -> std::result::Result<Offer, Reason> {
    policy::check(ConfigRole::Connect, target)?;
    if options::unsupported(socket) {
        return Err(Reason::UnsupportedOption);
    }
    let near = if policy::shares_memory() {
        announce(socket.anchor(), target).map(Way::Shm)
    } else {
        Err(Reason::NotLocal)
    };
    let (way, geometry) = match near {
        Ok(way) => (way, policy::geometry()),
        Err(why @ (Reason::NoListener | Reason::NotLocal)) if fabric::may_exist() => {
            if file::status_flags(socket.anchor()).is_ok_and(|flags| flags & libc::O_ASYNC != 0) {
                return Err(Reason::UnsupportedOption);
            }
            let geometry = fabric::geometry_of(policy::geometry());
            let bound = net::local_address(socket.anchor()).map(|local| net::unmapped(local).ip());
            let source = bound.ok().filter(|ip| !ip.is_unspecified());
            let link = fabric::connect(*target, source, &geometry);
            // Without a device there, it is about this host.
            let link = link.map_err(|far| if far == Reason::NoDevice { why } else { far })?;
            (Way::Fabric(link), geometry)
        }
        Err(why) => return Err(why),
    };
    match Segment::create(geometry) {
        Ok((segment, fd)) => {
            let segment_fd = match way {
                Way::Shm(_) => Some(fd),
                Way::Fabric(_) => {
                    file::close(fd);
                    None
                }
            };
            Ok(Offer { way, segment, segment_fd })
        }
        Err(e) => {
            log::warn!("fd {}: staying on TCP: {e}", socket.anchor());
            if let Way::Fabric(link) = way {
                link.close(None);
            }
            Err(Reason::OutOfMemory)
        }
    }
}

impl Way {
    fn provider(&self) -> Provider {
        match self {
            Way::Shm(_) => Provider::Shm,
            Way::Fabric(_) => far::provider(),
        }
    }
}

static PROBE: Spare = Spare::new(packet::probe_socket);

/// In a fork child.
pub fn after_fork_in_child() {
    PROBE.forget();
}

/// Connects to the rendezvous of the target's listener, or to all of its SO_REUSEPORT group.
fn announce(anchor: Fd, target: &SocketAddr) -> std::result::Result<Intent, Reason> {
    let names = PROBE
        .with(anchor, |probe| find_listeners(probe, target))
        .map_err(|_| Reason::OutOfMemory)?;
    let (names, exact) = names.ok_or(Reason::NoListener)?;
    // A name for a wildcard says nothing of whether the target is this host.
    if !exact && !net::is_local(target.ip()) {
        return Err(Reason::NotLocal);
    }
    let mut intent = Intent { rendezvous: SmallVec::new(), acceptor: policy::Relation::NOBODY };
    let mut reason = Reason::NoListener;
    for name in &names {
        let fd = packet::socket(true).map_err(|_| Reason::OutOfMemory)?;
        intent.rendezvous.push(fd);
        let connected = packet::connect(fd, name).and_then(|()| packet::peer_credentials(fd));
        let wanted = match connected {
            Ok((pid, uid)) if policy::may_share_with(uid) => {
                intent.acceptor = intent.acceptor.or(policy::Relation::to(pid, uid));
                true
            }
            Ok(_) => {
                reason = Reason::OtherUser;
                false
            }
            Err(_) => false,
        };
        if !wanted {
            intent.rendezvous.pop();
            file::close(fd);
        }
    }
    if intent.rendezvous.is_empty() {
        return Err(reason);
    }
    Ok(intent)
}

/// The names of who may accept a connection to the target, and whether they are for this very
/// address.
fn find_listeners(probe: Fd, target: &SocketAddr) -> Option<(SmallVec<[AbstractName; 1]>, bool)> {
    let exact = target.ip().to_string();
    let wildcard = if target.is_ipv4() { "0.0.0.0" } else { "::" };
    let addresses = [exact.as_str(), wildcard, ANY];
    for address in addresses {
        let name = listener::name(address, target.port(), None);
        if packet::has_sign(probe, &name) {
            return Some((SmallVec::from_elem(name, 1), address == exact));
        }
    }
    for address in addresses {
        let mut found = SmallVec::new();
        let mut missing = 0;
        for member in 0..GROUP_LIMIT {
            let name = listener::name(address, target.port(), Some(member));
            if packet::has_sign(probe, &name) {
                found.push(name);
                missing = 0;
                continue;
            }
            missing += 1;
            if missing > GROUP_GAPS {
                break;
            }
        }
        if !found.is_empty() {
            return Some((found, address == exact));
        }
    }
    None
}

fn connect_then_bind(
    fd: Fd,
    socket: &'static Socket,
    target: &SocketAddr,
    offer: Offer,
    real: &mut impl FnMut() -> Result<()>,
) -> Result<()> {
    let status = file::status_flags(fd).unwrap_or(0);
    let blocking = status & libc::O_NONBLOCK == 0;
    // All that can be done is done before TCP connects: the acceptor waits for what comes after.
    let inode = file::identity(fd).map_or(0, |(_, inode)| inode);
    let Offer { way, segment, segment_fd } = offer;
    let acceptor = match &way {
        Way::Shm(intent) => intent.acceptor,
        Way::Fabric(_) => policy::Relation::ELSEWHERE,
    };
    let provider = way.provider();
    let within_reach = segment_fd.unwrap_or(-1);
    let memory = Memory::create(Role::Connector, segment.geometry(), acceptor, within_reach);
    if let Ok(memory) = memory {
        // SAFETY: made just now, and nobody else knows it.
        let endpoint = unsafe { &*memory.at };
        if !blocking {
            endpoint.set(flag::NONBLOCK);
        }
        if status & libc::O_ASYNC != 0 {
            endpoint.set(flag::ASYNC);
        }
        let statistics = socket.statistics();
        Stream::new(endpoint, &segment, statistics, None).open(Kind::SessionRequest);
    }
    let mut signals = NapSignals::default();
    signals.mask(blocking, std::ptr::null());
    let started = if blocking { start_blocking(fd, real) } else { real() };
    let failed = !matches!(started, Ok(()) | Err(Errno(libc::EINPROGRESS)));
    let bound = memory.and_then(|memory| {
        if failed {
            // SAFETY: nobody else knows it.
            unsafe { memory.discard() };
            return Err(Errno(libc::ENOTCONN));
        }
        if socket.stream().is_some() {
            // SAFETY: of an attempt that failed; no call on an unconnected socket uses it.
            unsafe { socket.detach() };
        }
        let link = match &way {
            Way::Shm(_) => None,
            Way::Fabric(link) => Some(link.clone()),
        };
        if let Some(link) = &link {
            // SAFETY: made above; the endpoint outlives the link's use, which is closed with it.
            unsafe { link.attach(segment, Role::Connector, memory.controller()) };
        }
        // SAFETY: made above.
        unsafe { socket.attach(segment, memory, link) };
        let tuple = Tuple::of_connecting(fd, *target)?;
        match &way {
            Way::Shm(intent) => {
                let packet = Introduction { tuple, inode }.encode();
                let mut sent = Err(Errno(libc::ECONNREFUSED));
                for rendezvous in &intent.rendezvous {
                    let one = packet::send(*rendezvous, &packet, segment_fd);
                    sent = sent.or(one.map(drop));
                }
                sent
            }
            Way::Fabric(link) => {
                link.bind(Introduction { tuple, inode: 0 }.encode().to_vec());
                Ok(())
            }
        }
    });
    if let (Way::Fabric(link), true) = (&way, failed || memory.is_err()) {
        link.close(None);
    }
    drop(way);
    if failed {
        // SAFETY: nobody else knows this mapping.
        unsafe { segment.unmap() };
        return started;
    }
    if let Err(e) = bound {
        let reason = match e.0 {
            // The acceptor has its connection by now and waited no longer, or is gone.
            libc::EPIPE | libc::ECONNRESET | libc::ECONNREFUSED => {
                log::info!("fd {fd}: staying on TCP, the acceptor waited no longer: {e}");
                Reason::Withdrawn
            }
            _ => {
                log::warn!("fd {fd}: staying on TCP, the rendezvous failed: {e}");
                Reason::OutOfMemory
            }
        };
        segment.decide(State::Withdrawn);
        match memory {
            // SAFETY: connect has not returned: no other thread can be using the stream.
            Ok(_) => unsafe { socket.detach() },
            // SAFETY: nobody else knows this mapping.
            Err(_) => unsafe { segment.unmap() },
        }
        socket.set_phase(phase::NATIVE);
        show(socket, target, Provider::Tcp, reason, Shown::Established);
        return if blocking { go_on(fd, started, signals, real) } else { started };
    }
    options::inherit(socket);
    socket.set_phase(phase::CONNECTING);
    if let Some(stream) = socket.stream() {
        // While TCP connects, the program may wait in ways we do not see: the first event rings.
        let _ = wait::raise(&stream, Event::Read);
    }
    show(socket, target, provider, Reason::Pending, Shown::Connecting);
    let result = if blocking { go_on(fd, started, signals, real) } else { started };
    match result {
        Ok(()) => established(socket),
        Err(_) => establish(socket),
    }
    result
}

/// A blocking connect that comes back at once if TCP has to wait, so that the acceptor never waits
/// for a segment that a blocked connector could not send. Signals are held back: they interrupt [`go_on`].
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
fn go_on(
    fd: Fd,
    started: Result<()>,
    mut signals: NapSignals,
    real: &mut impl FnMut() -> Result<()>,
) -> Result<()> {
    if started.is_ok() {
        return started;
    }
    let mask = signals.mask(true, std::ptr::null());
    // SAFETY: the mask is there as long as `signals`.
    let came = unsafe { blocking::poll(&mut [], Some(0), mask) } == Err(Errno(libc::EINTR));
    drop(signals);
    let restarts = || net::time_out(fd, libc::SO_SNDTIMEO).is_none() && handlers::restart();
    if came && !restarts() {
        return Err(Errno(libc::EINTR));
    }
    // What the kernel calls a second connect that SO_SNDTIMEO ended, the program's is the first.
    real().map_err(|e| if e == Errno(libc::EALREADY) { Errno(libc::EINPROGRESS) } else { e })
}

/// If TCP has finished connecting, moves the socket on to the SAN, or to what the failure left.
pub fn establish(socket: &'static Socket) {
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
fn established(socket: &'static Socket) {
    let mut structure = Structure::lock();
    if socket.phase() == phase::CONNECTING {
        socket.set_phase(phase::SAN);
        socket.set_reason(Reason::OnSan);
        socket.statistics().set_state(Shown::Established);
        epoll::to_switch(&mut structure, socket);
        drop(structure);
        if let Some(stream) = socket.stream() {
            stream.publish_transfers();
        }
        let far = socket.stream().is_some_and(|stream| stream.fabric.is_some());
        let provider = if far { far::provider() } else { Provider::Shm };
        log::info!("fd {}: provider={} role=connector", socket.anchor(), provider.name());
    }
}

/// Publishes a connection in the registry.
pub fn show(socket: &Socket, peer: &SocketAddr, provider: Provider, reason: Reason, state: Shown) {
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
