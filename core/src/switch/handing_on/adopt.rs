//! Sockets that go on here: what the image before this one left (exec), when the library is loaded and no other
//! thread exists, and what comes in a message.
//!
//! A descriptor that cannot go on is ended like a connection whose other end is lost: never may the program take
//! doorbells for data.

use crate::config::Role;
use crate::provider::shm::{Role as End, Segment};
use crate::reason::Reason;
use crate::registry::{Identity, Provider, State as Shown};
use crate::switch::back_to_tcp::detach;
use crate::switch::endpoint::memory::Memory;
use crate::switch::handing_on::exec;
use crate::switch::handing_on::manifest::{self, Entry};
use crate::switch::policy;
use crate::switch::socket::listener::Listener;
use crate::switch::socket::structure::Structure;
use crate::switch::socket::table::{self, Pinned};
use crate::switch::socket::{phase, Socket};
use crate::switch::waiting::ring;
use crate::sys::{beyond, file, hidden, net, Fd, Result};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// What was left, before anything is done with it.
pub(in crate::switch) struct Inheritance(Vec<Entry>);

impl Inheritance {
    /// True if there is any.
    pub(in crate::switch) fn is_there() -> bool {
        manifest::NUMBERS.into_iter().any(|number| manifest::read(number).is_some())
    }

    /// Finds it, and makes its descriptors hidden ones of this process.
    pub(in crate::switch) fn find() -> Option<Inheritance> {
        let (number, entries) = manifest::NUMBERS
            .into_iter()
            .find_map(|number| Some((number, manifest::read(number)?)))?;
        file::close(number);
        for fd in entries.iter().flat_map(Entry::fds) {
            // One that is not there any more fails later.
            if file::set_close_on_exec(*fd, true).is_ok() {
                hidden::note(*fd);
            }
        }
        Some(Inheritance(entries))
    }

    /// Takes all of it on. What the configuration of this program keeps on TCP goes back there at once:
    /// the library may not see what the program does.
    pub(in crate::switch) fn adopt(self) {
        let mut found: Vec<Vec<Fd>> = self.0.iter().map(|_| Vec::new()).collect();
        let _ = file::each_open(|fd| {
            if hidden::is_hidden(fd) || !file::is_socket(fd) {
                return;
            }
            let Ok(identity) = file::identity(fd) else { return };
            if let Some(at) = self.0.iter().position(|entry| entry.identity() == identity) {
                found[at].push(fd);
            }
        });
        for (entry, fds) in self.0.iter().zip(&found) {
            match entry {
                Entry::Connection { has_options, .. } => {
                    adopt_connection(entry, *has_options, fds);
                }
                Entry::Listener { fds: [kept], has_options, .. } => {
                    adopt_listener(*kept, *has_options, fds);
                }
            }
        }
    }
}

/// Enters a socket with all its descriptors in the table.
fn enter(fds: &[Fd], has_options: bool) -> Option<Pinned> {
    let mut structure = Structure::lock();
    let (first, others) = fds.split_first()?;
    let socket = Socket::allocate(&mut structure, *first)?;
    // Beside the pins of the descriptors, the one of this call.
    let pinned = Pinned::new(socket);
    socket.has_options.store(has_options, Relaxed);
    let mut entered = table::put_socket(*first, socket);
    for fd in others {
        entered &= table::put_socket(*fd, socket);
        socket.add_descriptor();
    }
    entered.then_some(pinned)
}

fn adopt_connection(entry: &Entry, has_options: bool, fds: &[Fd]) {
    let [endpoint_fd, segment_fd] = [entry.fds()[0], entry.fds()[1]];
    let memory = Memory::of_other_image(endpoint_fd, segment_fd);
    let Some(socket) = begin(Segment::attach(segment_fd).ok(), memory, has_options, fds) else {
        return end(fds);
    };
    let Some(stream) = socket.stream() else { return };
    stream.endpoint.abandon_own();
    if stream.endpoint.holders.load(SeqCst) == 1 {
        // Threads that slept on it died with the image.
        stream.endpoint.sleepers.clear();
    }
    go_on(&socket, "the program before this one");
}

/// A connection that came in a message, as `fds`, with descriptors of the endpoint's memory and of the segment,
/// which stay the caller's. False if it is ended.
pub(in crate::switch) fn adopt_passed(given: [Fd; 2], has_options: bool, fds: &[Fd]) -> bool {
    let segment = Segment::attach(given[1]);
    let memory = Memory::of_other_image(given[0], -1).map(|memory| {
        // Without room for them it cannot be handed on again.
        let [fd, segment] = beyond::duplicate(given).unwrap_or([-1, -1]);
        Memory { fd, segment, ..memory }
    });
    let Some(socket) = begin(segment.ok(), memory, has_options, fds) else {
        end(fds);
        return false;
    };
    go_on(&socket, "another process");
    if let Some(stream) = socket.stream() {
        // It may have gone back to TCP on its way.
        detach::look_after(&socket, &stream);
    }
    true
}

/// Enters a connection with what it consists of, if there is all of it.
fn begin(
    segment: Option<Segment>,
    memory: Option<Memory>,
    has_options: bool,
    fds: &[Fd],
) -> Option<Pinned> {
    let socket = match (segment, memory) {
        (Some(_), Some(_)) => enter(fds, has_options),
        _ => None,
    };
    match (socket, segment, memory) {
        (Some(socket), Some(segment), Some(memory)) => {
            // SAFETY: this process's only use of it.
            unsafe { socket.attach(segment, memory, None) };
            Some(socket)
        }
        (_, segment, memory) => {
            log::error!("a connection of another process is lost: its memory cannot be used");
            // SAFETY: mapped just now, and nobody else knows of it.
            unsafe {
                if let Some(memory) = memory {
                    (*memory.at).holders.fetch_sub(1, SeqCst);
                    memory.discard();
                }
                if let Some(segment) = segment {
                    segment.unmap();
                }
            }
            None
        }
    }
}

fn go_on(socket: &Socket, from: &str) {
    let Some(stream) = socket.stream() else { return };
    socket.set_phase(phase::SAN);
    publish(socket, Provider::Shm, Reason::OnSan, Shown::Established);
    log::info!("fd {}: provider=shm, from {from}", socket.anchor());
    ring::succeed_the_dead(socket, &stream);
    let allowed = match stream.endpoint.role() {
        End::Connector => is_allowed(Role::Connect, net::peer_address(socket.anchor())),
        End::Acceptor => is_allowed(Role::Listen, net::local_address(socket.anchor())),
    };
    if !allowed {
        exec::give_back(socket.anchor());
    }
}

/// What cannot be told is left as it was.
fn is_allowed(role: Role, address: Result<SocketAddr>) -> bool {
    address.map_or(true, |address| policy::check(role, &net::unmapped(address)).is_ok())
}

/// No program may read from these, or write to them.
pub(in crate::switch) fn end(fds: &[Fd]) {
    for fd in fds {
        let _ = net::shutdown(*fd, libc::SHUT_RDWR);
    }
}

/// A listener, as `fds`, with its hidden descriptor.
pub(in crate::switch) fn adopt_listener(kept: Fd, has_options: bool, fds: &[Fd]) {
    let allowed = |fd: &Fd| is_allowed(Role::Listen, net::local_address(*fd));
    let wanted = fds.first().is_some_and(allowed);
    let Some(listener) = Listener::of_other_image(kept).filter(|_| wanted) else {
        return hidden::close(kept);
    };
    if let Some(socket) = enter(fds, has_options) {
        socket.set_listener(Box::new(listener));
        publish(&socket, Provider::Shm, Reason::Listener, Shown::Listen);
        log::info!("fd {}: listening, from another program", socket.anchor());
    }
}

fn publish(socket: &Socket, provider: Provider, reason: Reason, state: Shown) {
    const NOBODY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
    let fd = socket.anchor();
    let local = net::local_address(fd).map_or(NOBODY, net::unmapped);
    let peer = net::peer_address(fd).map_or(NOBODY, net::unmapped);
    socket.set_reason(reason);
    let identity = Identity { fd, local, peer, provider, reason, state };
    socket.publish(&mut Structure::lock(), &identity);
}
