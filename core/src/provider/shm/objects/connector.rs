//! A connector. `next_result` takes the steps of a connection, as packets come.

use super::channel::ChannelParts;
use super::handshake::{self, Packet, PacketKind, Received, PRIVATE_DATA};
use super::layout::Mapping;
use super::pair::{LocalPair, IDLE};
use super::queue_pair::LocalQueuePair;
use crate::provider::interface::{implement, Error, ProviderResult, Reported, Started};
use crate::provider::software::inherited::{self, Descriptor};
use crate::provider::software::Waiting;
use crate::sys::{file, net};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Packets taken at a time.
const BATCH: usize = 16;
/// The lowest of the ports that connectors get. No process connects to them: they are only names.
const FIRST_PORT: u16 = 49152;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Asking,
    Agreed,
    Asked,
    Accepted,
    Connected,
    Ended(Option<Error>),
}

/// A request that came to a listener.
pub(super) struct ConnectionRequest {
    pub(super) control: Descriptor,
    pub(super) memory: Descriptor,
    pub(super) doorbell: Descriptor,
    pub(super) process: u32,
    pub(super) message: Packet,
}

/// See the module.
pub struct LocalConnector(Arc<ConnectorState>);

pub(super) struct ConnectorState {
    ip: IpAddr,
    generation: u32,
    waiting: Waiting,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
    control: Option<Arc<Descriptor>>,
    /// Until the queue pair gets them.
    parts: Option<ChannelParts>,
    pair: Option<Arc<LocalPair>>,
    private_data: Vec<u8>,
    connecting: Option<u64>,
    awaiting_end: Option<u64>,
}

impl LocalConnector {
    pub(super) fn new(ip: IpAddr) -> ProviderResult<Self> {
        let state = State {
            phase: Phase::Idle,
            local: None,
            remote: None,
            control: None,
            parts: None,
            pair: None,
            private_data: Vec::new(),
            connecting: None,
            awaiting_end: None,
        };
        Ok(LocalConnector(Arc::new(ConnectorState {
            ip,
            generation: inherited::generation(),
            waiting: Waiting::new()?,
            state: Mutex::new(state),
        })))
    }

    pub(super) fn inner(&self) -> &Arc<ConnectorState> {
        &self.0
    }
}

fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    FIRST_PORT + NEXT.fetch_add(1, Ordering::Relaxed) % (u16::MAX - FIRST_PORT)
}

impl ConnectorState {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it could take a connection request.
    pub(super) fn is_unused(&self) -> bool {
        self.lock().phase == Phase::Idle
    }

    /// Takes a connection request over from the listener at `local`.
    pub(super) fn adopt(
        &self,
        request: ConnectionRequest,
        local: SocketAddr,
    ) -> ProviderResult<()> {
        let mut state = self.lock();
        if state.phase != Phase::Idle {
            return Err(Error::InvalidParameter);
        }
        let memory = Mapping::of(request.memory.get())?;
        let control = Arc::new(request.control);
        self.waiting.watch(control.get())?;
        state.parts = Some(ChannelParts {
            memory,
            doorbell: request.doorbell,
            control: control.clone(),
            peer: request.process,
            number: 1,
        });
        state.control = Some(control);
        state.local = Some(local);
        state.remote = Some(request.message.from);
        state.private_data = request.message.private_data;
        state.phase = Phase::Asked;
        Ok(())
    }

    /// Asks the listener at `to`.
    fn ask(&self, state: &mut State, to: SocketAddr, data: &[u8]) -> ProviderResult<()> {
        let local = match state.local {
            Some(local) if local.port() != 0 => local,
            _ => SocketAddr::new(self.ip, port()),
        };
        let (control, peer) = handshake::approach(to)?;
        let control = Arc::new(control);
        let [doorbell, theirs] =
            net::stream_pair().map_err(|_| Error::InsufficientResources)?.map(Descriptor::new);
        let (memory, fd) = Mapping::create()?;
        // Before the peer looks whether it can reach this process.
        memory.end(0).proof.0.offer();
        let pass = [fd, theirs.get()];
        let said = handshake::say(&control, PacketKind::Request, local, data, &pass);
        file::close(fd);
        said.map_err(|error| match error {
            Error::ConnectionReset => Error::ConnectionRefused,
            error => error,
        })?;
        self.waiting.watch(control.get())?;
        state.parts =
            Some(ChannelParts { memory, doorbell, control: control.clone(), peer, number: 0 });
        state.control = Some(control);
        state.local = Some(local);
        state.remote = Some(to);
        Ok(())
    }

    fn say(&self, state: &State, kind: PacketKind, data: &[u8]) -> ProviderResult<()> {
        let (Some(control), Some(local)) = (&state.control, state.local) else {
            return Err(Error::InvalidParameter);
        };
        handshake::say(control, kind, local, data, &[])
    }

    /// Connects the queue pair and tells the peer, or ends it all.
    fn open(
        &self,
        state: &mut State,
        pair: &Arc<LocalPair>,
        kind: PacketKind,
        data: &[u8],
    ) -> ProviderResult<()> {
        let parts = state.parts.take().ok_or(Error::InvalidParameter)?;
        state.pair = Some(pair.clone());
        let opened = pair.open(parts).and_then(|()| self.say(state, kind, data));
        if opened.is_err() {
            self.end(state, None);
        }
        opened
    }

    /// Takes what the peer said.
    fn advance(&self, state: &mut State) {
        for _ in 0..BATCH {
            let Some(control) = state.control.clone() else { return };
            let message = match handshake::hear(&control) {
                Received::Nothing => return,
                Received::Message(message, _) => message,
                Received::End => {
                    let refused = state.phase == Phase::Asking;
                    return self.end(state, refused.then_some(Error::ConnectionRefused));
                }
            };
            match (message.kind, state.phase) {
                (PacketKind::Accept, Phase::Asking) => {
                    state.phase = Phase::Agreed;
                    state.private_data = message.private_data;
                    self.waiting.settle(&mut state.connecting, Ok(()));
                }
                (PacketKind::Reject, Phase::Asking) => {
                    state.private_data = message.private_data;
                    return self.end(state, Some(Error::ConnectionRefused));
                }
                (PacketKind::Established, Phase::Accepted) => {
                    state.phase = Phase::Connected;
                    self.waiting.settle(&mut state.connecting, Ok(()));
                }
                // Others have no meaning then.
                _ => {}
            }
        }
    }

    /// The connection is no more: ends its requests, and tells threads that wait.
    fn end(&self, state: &mut State, why: Option<Error>) {
        if matches!(state.phase, Phase::Ended(_)) {
            return;
        }
        state.phase = Phase::Ended(why);
        if let Some(pair) = &state.pair {
            pair.end();
        }
        state.parts = None;
        if let Some(control) = state.control.take() {
            self.waiting.unwatch(control.get());
            // The peer still hears what this end said before.
            let _ = net::shutdown(control.get(), libc::SHUT_RDWR);
        }
        let connecting = Err(why.unwrap_or(Error::ConnectionReset));
        self.waiting.settle(&mut state.connecting, connecting);
        self.waiting.settle(&mut state.awaiting_end, why.map_or(Ok(()), Err));
    }
}

impl implement::OverlappedObject for LocalConnector {
    fn descriptor(&self) -> RawFd {
        self.0.waiting.descriptor()
    }

    fn next_result(&self) -> Option<Reported> {
        self.0.advance(&mut self.0.lock());
        self.0.waiting.fetch()
    }

    fn cancel(&self) {
        let mut state = self.0.lock();
        let connecting = state.connecting.is_some();
        self.0.waiting.settle(&mut state.connecting, Err(Error::Cancelled));
        self.0.waiting.settle(&mut state.awaiting_end, Err(Error::Cancelled));
        if connecting {
            self.0.end(&mut state, Some(Error::Cancelled));
        }
    }
}

impl implement::ConnectorObject for LocalConnector {
    type QueuePair = LocalQueuePair;

    fn bind(&self, local: SocketAddr) -> ProviderResult<()> {
        if local.ip() != self.0.ip {
            return Err(Error::AddressNotAvailable);
        }
        let mut state = self.0.lock();
        if state.phase != Phase::Idle {
            return Err(Error::InvalidParameter);
        }
        let port = if local.port() == 0 { port() } else { local.port() };
        state.local = Some(SocketAddr::new(local.ip(), port));
        Ok(())
    }

    fn connect(
        &self,
        pair: &LocalQueuePair,
        to: SocketAddr,
        data: &[u8],
        r: u64,
    ) -> ProviderResult<Started> {
        let mut state = self.0.lock();
        if state.phase != Phase::Idle || data.len() > PRIVATE_DATA || pair.pair.phase() != IDLE {
            return Err(Error::InvalidParameter);
        }
        self.0.ask(&mut state, to, data)?;
        state.phase = Phase::Asking;
        state.pair = Some(pair.pair.clone());
        state.connecting = Some(r);
        Ok(Started::Pending)
    }

    fn complete_connect(&self, _request: u64) -> ProviderResult<Started> {
        let mut state = self.0.lock();
        let pair = match (state.phase, state.pair.clone()) {
            (Phase::Agreed, Some(pair)) => pair,
            (Phase::Ended(_), _) => return Err(Error::ConnectionReset),
            _ => return Err(Error::InvalidParameter),
        };
        self.0.open(&mut state, &pair, PacketKind::Established, &[])?;
        state.phase = Phase::Connected;
        Ok(Started::Done)
    }

    fn accept(&self, pair: &LocalQueuePair, data: &[u8], request: u64) -> ProviderResult<Started> {
        let mut state = self.0.lock();
        if state.phase != Phase::Asked || data.len() > PRIVATE_DATA || pair.pair.phase() != IDLE {
            return Err(Error::InvalidParameter);
        }
        self.0.open(&mut state, &pair.pair, PacketKind::Accept, data)?;
        state.phase = Phase::Accepted;
        state.connecting = Some(request);
        Ok(Started::Pending)
    }

    fn reject(&self, data: &[u8]) -> ProviderResult<()> {
        let mut state = self.0.lock();
        if state.phase != Phase::Asked || data.len() > PRIVATE_DATA {
            return Err(Error::InvalidParameter);
        }
        // Whether it is still there makes no difference.
        let _ = self.0.say(&state, PacketKind::Reject, data);
        self.0.end(&mut state, None);
        Ok(())
    }

    fn private_data(&self, into: &mut [u8]) -> ProviderResult<usize> {
        let state = self.0.lock();
        let count = state.private_data.len().min(into.len());
        into[..count].copy_from_slice(&state.private_data[..count]);
        Ok(count)
    }

    fn local_address(&self) -> ProviderResult<SocketAddr> {
        self.0.lock().local.ok_or(Error::InvalidParameter)
    }

    fn peer_address(&self) -> ProviderResult<SocketAddr> {
        self.0.lock().remote.ok_or(Error::NotConnected)
    }

    fn notify_disconnect(&self, request: u64) -> ProviderResult<Started> {
        let mut state = self.0.lock();
        match state.phase {
            Phase::Ended(None) => Ok(Started::Done),
            Phase::Ended(Some(error)) => Err(error),
            _ if state.awaiting_end.is_some() => Err(Error::InvalidParameter),
            _ => {
                state.awaiting_end = Some(request);
                Ok(Started::Pending)
            }
        }
    }

    fn disconnect(&self, _request: u64) -> ProviderResult<Started> {
        self.0.end(&mut self.0.lock(), None);
        Ok(Started::Done)
    }
}

impl Drop for LocalConnector {
    fn drop(&mut self) {
        // A listener may still have it, to fill it.
        if self.0.generation == inherited::generation() {
            self.0.end(&mut self.0.lock(), None);
        }
    }
}
