//! A listener for connection requests.

use super::connector::{self, ConnectionRequest, LocalConnector};
use super::handshake::{self, PacketKind, Received};
use crate::provider::interface::{implement, Error, ProviderResult, Reported, Started};
use crate::provider::software::inherited::Descriptor;
use crate::provider::software::Waiting;
use crate::sys::{net, packet, process, Errno};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Ports of listeners that did not ask for one.
const PORTS: std::ops::Range<u32> = 32768..65536;
/// At most so many processes may have connected and not have said what they want.
const ARRIVING: usize = 64;

/// Connections accepted at a time; the others stay with the kernel.
const BATCH: usize = 16;

/// See the module.
pub struct LocalListener {
    ip: IpAddr,
    waiting: Waiting,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bound: Option<(SocketAddr, Descriptor)>,
    listens: bool,
    /// A thread that waits for this object wakes when a process comes.
    is_watched: bool,
    /// The processes that connected and have not said what they want.
    arriving: VecDeque<(Descriptor, u32)>,
    /// The request under way, and the connector it fills.
    pending: Option<(u64, Arc<connector::ConnectorState>)>,
}

impl LocalListener {
    pub(super) fn new(ip: IpAddr) -> ProviderResult<Self> {
        Ok(LocalListener { ip, waiting: Waiting::new()?, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a thread that waits for this object wake when a process comes, or not: nothing is taken without a connector
    /// for it.
    fn watch(&self, state: &mut State, on: bool) -> ProviderResult<()> {
        if state.is_watched == on {
            return Ok(());
        }
        let socket = state.bound.iter().map(|(_, socket)| socket);
        let all = socket.chain(state.arriving.iter().map(|(control, _)| control));
        let watched =
            if on { all.clone().try_for_each(|one| self.waiting.watch(one.get())) } else { Ok(()) };
        state.is_watched = on && watched.is_ok();
        if !state.is_watched {
            all.for_each(|one| self.waiting.unwatch(one.get()));
        }
        watched
    }

    /// The next request, of a few processes that came.
    ///
    /// # Errors
    ///
    /// [`Error::InsufficientResources`]: there is no descriptor for a process that comes.
    fn next_request(&self, state: &mut State) -> ProviderResult<Option<ConnectionRequest>> {
        for at in 0..state.arriving.len() {
            let received = handshake::hear(&state.arriving[at].0);
            if matches!(received, Received::Nothing) {
                continue;
            }
            if let Some((control, process)) = state.arriving.remove(at) {
                self.waiting.unwatch(control.get());
                return Ok(request_of(control, process, received));
            }
        }
        for _ in 0..BATCH {
            let Some((_, socket)) = &state.bound else { return Ok(None) };
            let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            let control = match net::accept(socket.get(), flags) {
                Ok(fd) => Descriptor::new(fd),
                Err(Errno(libc::ECONNABORTED | libc::EINTR)) => continue,
                Err(Errno(libc::EAGAIN)) => break,
                Err(_) => return Err(Error::InsufficientResources),
            };
            let Ok(process) = handshake::peer_of(&control) else { continue };
            match handshake::hear(&control) {
                Received::Nothing => self.keep(state, control, process),
                received => match request_of(control, process, received) {
                    None => {}
                    request => return Ok(request),
                },
            }
        }
        Ok(None)
    }

    /// Keeps a process that connected, to hear it later.
    fn keep(&self, state: &mut State, control: Descriptor, process: u32) {
        if state.arriving.len() == ARRIVING {
            if let Some((oldest, _)) = state.arriving.pop_front() {
                self.waiting.unwatch(oldest.get());
            }
        }
        if self.waiting.watch(control.get()).is_ok() {
            state.arriving.push_back((control, process));
        }
    }
}

/// `None`: it is refused by the end of its socket.
fn request_of(control: Descriptor, process: u32, received: Received) -> Option<ConnectionRequest> {
    match received {
        Received::Message(message, [Some(memory), Some(doorbell)])
            if message.kind == PacketKind::Request =>
        {
            Some(ConnectionRequest { control, memory, doorbell, process, message })
        }
        _ => None,
    }
}

impl implement::OverlappedObject for LocalListener {
    fn descriptor(&self) -> RawFd {
        self.waiting.descriptor()
    }

    fn next_result(&self) -> Option<Reported> {
        let mut state = self.lock();
        // Without a connector for it a request stays with the kernel, in the backlog.
        if state.pending.is_some() {
            let found = self.next_request(&mut state);
            if found.is_err() {
                // Until it is asked for again: what cannot be taken would wake without end.
                let _ = self.watch(&mut state, false);
            }
            if let Some(found) = found.transpose() {
                let local = state.bound.as_ref().map(|(local, _)| *local);
                if let (Some((request, connector)), Some(local)) = (state.pending.take(), local) {
                    let adopted = found.and_then(|found| connector.adopt(found, local));
                    self.waiting.settle(&mut Some(request), adopted);
                }
            }
        }
        let next = self.waiting.fetch();
        if next.is_none() && state.pending.is_none() {
            let _ = self.watch(&mut state, false);
        }
        next
    }

    fn cancel(&self) {
        if let Some((request, _)) = self.lock().pending.take() {
            self.waiting.settle(&mut Some(request), Err(Error::Cancelled));
        }
    }
}

impl implement::ListenerObject for LocalListener {
    type Connector = LocalConnector;

    fn bind(&self, local: SocketAddr) -> ProviderResult<()> {
        if local.ip() != self.ip {
            return Err(Error::AddressNotAvailable);
        }
        let mut state = self.lock();
        if state.bound.is_some() {
            return Err(Error::InvalidParameter);
        }
        let attempt = |port: u16| {
            let at = SocketAddr::new(local.ip(), port);
            match packet::bind(&handshake::name(at)) {
                Ok(fd) => Ok((at, Descriptor::new(fd))),
                Err(Errno(libc::EADDRINUSE)) => Err(Error::AddressInUse),
                Err(_) => Err(Error::InsufficientResources),
            }
        };
        state.bound = Some(match local.port() {
            0 => {
                let (count, first) = (PORTS.len() as u64, process::random()[0] >> 1);
                let ports = (0..count).map(|i| PORTS.start + ((first + i) % count) as u32);
                let mut tried = ports.map(|port| attempt(port as u16));
                let taken = |one: &ProviderResult<_>| matches!(one, Err(Error::AddressInUse));
                tried.find(|one| !taken(one)).unwrap_or(Err(Error::AddressInUse))?
            }
            port => attempt(port)?,
        });
        Ok(())
    }

    fn listen(&self, backlog: u32) -> ProviderResult<()> {
        let mut state = self.lock();
        let (_, socket) = state.bound.as_ref().ok_or(Error::InvalidParameter)?;
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX).max(1);
        net::listen(socket.get(), backlog).map_err(|_| Error::InsufficientResources)?;
        state.listens = true;
        Ok(())
    }

    fn local_address(&self) -> ProviderResult<SocketAddr> {
        self.lock().bound.as_ref().map(|(local, _)| *local).ok_or(Error::InvalidParameter)
    }

    fn get_connection_request(
        &self,
        connector: &LocalConnector,
        request: u64,
    ) -> ProviderResult<Started> {
        let mut state = self.lock();
        if state.pending.is_some() || !state.listens || !connector.inner().is_unused() {
            return Err(Error::InvalidParameter);
        }
        self.watch(&mut state, true)?;
        state.pending = Some((request, connector.inner().clone()));
        Ok(Started::Pending)
    }
}
