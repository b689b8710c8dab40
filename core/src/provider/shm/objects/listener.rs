//! A listener for connection requests.

use super::connector::{self, Connector, Visitor};
use super::meeting::{self, Kind, Received};
use crate::provider::interface::{implement, Error, Reported, Result, Started};
use crate::provider::software::inherited::Descriptor;
use crate::provider::software::Waiting;
use crate::sys::{net, process, Errno};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Ports of listeners that did not ask for one.
const PORTS: std::ops::Range<u32> = 32768..65536;
/// Most of those who connected and have not said what they want.
const ARRIVING: usize = 64;

/// See the module.
pub struct Listener {
    ip: IpAddr,
    waiting: Waiting,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bound: Option<(SocketAddr, Descriptor)>,
    listens: bool,
    /// Who connected and has not said what it wants, and its process.
    arriving: VecDeque<(Descriptor, u32)>,
    /// The request under way, and the connector it fills.
    pending: Option<(u64, Arc<connector::Inner>)>,
}

impl Listener {
    pub(super) fn new(ip: IpAddr) -> Result<Self> {
        Ok(Listener { ip, waiting: Waiting::new()?, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who has said what it wants.
    fn next_visitor(&self, state: &mut State) -> Option<Visitor> {
        for _ in 0..state.arriving.len() {
            let (control, process) = state.arriving.pop_front()?;
            self.waiting.unwatch(control.get());
            if let Some(visitor) = self.listen_to(state, control, process) {
                return Some(visitor);
            }
        }
        loop {
            let (_, socket) = state.bound.as_ref()?;
            let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            let control = match net::accept(socket.get(), flags) {
                Ok(fd) => Descriptor::new(fd),
                Err(Errno(libc::ECONNABORTED | libc::EINTR)) => continue,
                Err(_) => return None,
            };
            let Ok(process) = meeting::peer_of(&control) else { continue };
            if let Some(visitor) = self.listen_to(state, control, process) {
                return Some(visitor);
            }
        }
    }

    fn listen_to(&self, state: &mut State, control: Descriptor, process: u32) -> Option<Visitor> {
        match meeting::hear(&control) {
            Received::Message(message, [Some(memory), Some(bell)])
                if message.kind == Kind::Request =>
            {
                Some(Visitor { control, memory, bell, process, message })
            }
            Received::Nothing => {
                if self.waiting.watch(control.get()).is_ok() {
                    state.arriving.push_back((control, process));
                }
                if state.arriving.len() > ARRIVING {
                    state.arriving.pop_front();
                }
                None
            }
            // It is refused by the end of its socket.
            Received::Message(..) | Received::End => None,
        }
    }
}

impl implement::Overlapped for Listener {
    fn descriptor(&self) -> RawFd {
        self.waiting.descriptor()
    }

    fn next_result(&self) -> Option<Reported> {
        let mut state = self.lock();
        // Without a connector for it a request stays with the kernel, in the backlog.
        if state.pending.is_some() {
            if let Some(visitor) = self.next_visitor(&mut state) {
                let local = state.bound.as_ref().map(|(local, _)| *local);
                if let (Some((request, connector)), Some(local)) = (state.pending.take(), local) {
                    let adopted = connector.adopt(visitor, local);
                    self.waiting.settle(&mut Some(request), adopted);
                }
            }
        }
        drop(state);
        self.waiting.fetch()
    }

    fn cancel(&self) {
        if let Some((request, _)) = self.lock().pending.take() {
            self.waiting.settle(&mut Some(request), Err(Error::Cancelled));
        }
    }
}

impl implement::Listener for Listener {
    type Connector = Connector;

    fn bind(&self, local: SocketAddr) -> Result<()> {
        if local.ip() != self.ip {
            return Err(Error::AddressNotAvailable);
        }
        let mut state = self.lock();
        if state.bound.is_some() {
            return Err(Error::InvalidParameter);
        }
        let attempt = |port: u16| {
            let at = SocketAddr::new(local.ip(), port);
            match net::packet_bind(&meeting::name(at)) {
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
                let taken = |one: &Result<_>| matches!(one, Err(Error::AddressInUse));
                tried.find(|one| !taken(one)).unwrap_or(Err(Error::AddressInUse))?
            }
            port => attempt(port)?,
        });
        Ok(())
    }

    fn listen(&self, backlog: u32) -> Result<()> {
        let mut state = self.lock();
        let (_, socket) = state.bound.as_ref().ok_or(Error::InvalidParameter)?;
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX).max(1);
        net::listen(socket.get(), backlog).map_err(|_| Error::InsufficientResources)?;
        if !state.listens {
            self.waiting.watch(socket.get())?;
            state.listens = true;
        }
        Ok(())
    }

    fn local_address(&self) -> Result<SocketAddr> {
        self.lock().bound.as_ref().map(|(local, _)| *local).ok_or(Error::InvalidParameter)
    }

    fn get_connection_request(&self, connector: &Connector, request: u64) -> Result<Started> {
        let mut state = self.lock();
        if state.pending.is_some() || !state.listens || !connector.inner().is_unused() {
            return Err(Error::InvalidParameter);
        }
        state.pending = Some((request, connector.inner().clone()));
        Ok(Started::Pending)
    }
}
