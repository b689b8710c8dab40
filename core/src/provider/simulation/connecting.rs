//! How simulated connections are made and ended. Ending one fails its queue pair's [`requests`](super::requests).

use super::connection::{Phase, SimulatedConnection};
use super::fabric::SimulatedFabric;
use super::pair::PairState;
use crate::provider::interface::*;
use std::net::{IpAddr, SocketAddr};

impl SimulatedFabric {
    fn in_phase(&mut self, id: u64, phase: Phase) -> ProviderResult<&mut SimulatedConnection> {
        let connection = self.connection(id)?;
        if connection.phase == phase {
            Ok(connection)
        } else {
            Err(Error::InvalidParameter)
        }
    }

    pub(super) fn connect(
        &mut self,
        id: u64,
        pair: u64,
        to: SocketAddr,
        data: &[u8],
        request: u64,
    ) -> ProviderResult<Started> {
        let local = match self.in_phase(id, Phase::Idle)?.local {
            Some(local) => local,
            None => {
                let ip = self.connection(id)?.ip;
                self.free_address(SocketAddr::new(ip, 0))?
            }
        };
        let connection = self.connection(id)?;
        connection.local = Some(local);
        connection.remote = Some(to);
        connection.pair = Some(pair);
        connection.phase = Phase::Asking;
        connection.connecting = Some(request);
        connection.private_data = data.to_vec();
        let found = self
            .listeners
            .iter_mut()
            .find(|(_, l)| l.local == Some(to) && l.waiting.len() < l.backlog)
            .map(|(&number, listening)| {
                listening.waiting.push_back(id);
                number
            });
        match found {
            Some(listener) => self.hand_over(listener),
            None => self.end(id, Some(Error::ConnectionRefused)),
        }
        Ok(Started::Pending)
    }

    /// Puts a waiting request into the connector that a listener's client offered.
    fn hand_over(&mut self, listener: u64) {
        let Some(listening) = self.listeners.get_mut(&listener) else { return };
        let Some((request, server)) = listening.pending else { return };
        let Some(client) = listening.waiting.pop_front() else { return };
        listening.pending = None;
        listening.outcomes.report(request, Ok(()));
        let Ok(asking) = self.connection(client) else { return };
        asking.peer = Some(server);
        let (local, remote) = (asking.remote, asking.local);
        let data = std::mem::take(&mut asking.private_data);
        let Ok(connection) = self.connection(server) else { return };
        connection.phase = Phase::Asked;
        connection.peer = Some(client);
        (connection.local, connection.remote, connection.private_data) = (local, remote, data);
    }

    pub(super) fn get_connection_request(
        &mut self,
        listener: u64,
        connector: u64,
        request: u64,
    ) -> ProviderResult<Started> {
        self.in_phase(connector, Phase::Idle)?;
        let listening = self.listeners.get_mut(&listener).ok_or(Error::InvalidParameter)?;
        if listening.pending.is_some() || listening.backlog == 0 {
            return Err(Error::InvalidParameter);
        }
        listening.pending = Some((request, connector));
        self.hand_over(listener);
        Ok(Started::Pending)
    }

    pub(super) fn accept(
        &mut self,
        id: u64,
        pair: u64,
        data: &[u8],
        request: u64,
    ) -> ProviderResult<Started> {
        let connection = self.in_phase(id, Phase::Asked)?;
        let client = connection.peer.ok_or(Error::ConnectionReset)?;
        connection.phase = Phase::Accepted;
        connection.pair = Some(pair);
        connection.connecting = Some(request);
        let asking = self.in_phase(client, Phase::Asking)?;
        asking.phase = Phase::Agreed;
        asking.private_data = data.to_vec();
        asking.outcomes.settle(&mut asking.connecting, Ok(()));
        let theirs = asking.pair.ok_or(Error::InvalidParameter)?;
        self.pair(pair)?.peer = Some(theirs);
        self.pair(pair)?.state = PairState::Connected;
        self.pair(theirs)?.peer = Some(pair);
        Ok(Started::Pending)
    }

    pub(super) fn complete_connect(&mut self, id: u64) -> ProviderResult<Started> {
        let connection = self.in_phase(id, Phase::Agreed)?;
        connection.phase = Phase::Connected;
        let (pair, server) = (connection.pair, connection.peer);
        self.pair(pair.ok_or(Error::InvalidParameter)?)?.state = PairState::Connected;
        let accepted = self.in_phase(server.ok_or(Error::ConnectionReset)?, Phase::Accepted)?;
        accepted.phase = Phase::Connected;
        accepted.outcomes.settle(&mut accepted.connecting, Ok(()));
        Ok(Started::Done)
    }

    pub(super) fn reject(&mut self, id: u64, data: &[u8]) -> ProviderResult<()> {
        let connection = self.in_phase(id, Phase::Asked)?;
        connection.phase = Phase::Ended(None);
        if let Some(client) = connection.peer.take() {
            if let Ok(asking) = self.connection(client) {
                asking.peer = None;
                asking.private_data = data.to_vec();
            }
            self.end(client, Some(Error::ConnectionRefused));
        }
        Ok(())
    }

    pub(super) fn notify_disconnect(&mut self, id: u64, request: u64) -> ProviderResult<Started> {
        let connection = self.connection(id)?;
        match connection.phase {
            Phase::Ended(None) => Ok(Started::Done),
            Phase::Ended(Some(error)) => Err(error),
            _ if connection.awaiting_end.is_some() => Err(Error::InvalidParameter),
            _ => {
                connection.awaiting_end = Some(request);
                Ok(Started::Pending)
            }
        }
    }

    /// Ends a connection and its peer's end: `why` is what pending operations here are told.
    pub(super) fn end(&mut self, id: u64, why: Option<Error>) {
        let Ok(connection) = self.connection(id) else { return };
        if matches!(connection.phase, Phase::Ended(_)) {
            return;
        }
        connection.phase = Phase::Ended(why);
        let connecting = Err(why.unwrap_or(Error::ConnectionReset));
        connection.outcomes.settle(&mut connection.connecting, connecting);
        let ended = why.map_or(Ok(()), Err);
        connection.outcomes.settle(&mut connection.awaiting_end, ended);
        let (pair, peer) = (connection.pair, connection.peer.take());
        if let Some(pair) = pair {
            self.fail(pair, Error::Cancelled);
        }
        if let Some(peer) = peer {
            self.end(peer, None);
        }
    }

    pub(super) fn end_connections_of(&mut self, ip: IpAddr, why: Error) {
        let here = self.connections.iter().filter(|(_, c)| c.ip == ip);
        for id in here.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.end(id, Some(why));
        }
    }

    pub(super) fn cancel_connection(&mut self, id: u64) {
        let Ok(connection) = self.connection(id) else { return };
        let outcomes = connection.outcomes.clone();
        let connecting = connection.connecting.is_some();
        outcomes.settle(&mut connection.connecting, Err(Error::Cancelled));
        outcomes.settle(&mut connection.awaiting_end, Err(Error::Cancelled));
        if connecting {
            self.end(id, None);
        }
    }

    pub(super) fn cancel_listener(&mut self, id: u64) {
        let Some(listening) = self.listeners.get_mut(&id) else { return };
        let mut pending = listening.pending.take().map(|(request, _)| request);
        listening.outcomes.settle(&mut pending, Err(Error::Cancelled));
    }

    /// A listener goes: connectors that wait there are refused.
    pub(super) fn close_listener(&mut self, id: u64) {
        let Some(listening) = self.listeners.remove(&id) else { return };
        for client in listening.waiting {
            self.end(client, Some(Error::ConnectionRefused));
        }
    }
}
