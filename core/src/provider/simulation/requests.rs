//! What becomes of the requests of simulated queue pairs: each runs as soon as it can, in the call that lets it.

use super::fabric::SimulatedFabric;
use super::pair::{Binding, PairState, SimulatedPair, SimulatedReceive, SimulatedWork};
use crate::provider::interface::*;
use std::collections::VecDeque;
use std::net::IpAddr;

impl SimulatedFabric {
    /// Posts a request and lets it run as far as it can.
    pub(super) fn post(
        &mut self,
        id: u64,
        request: u64,
        work: SimulatedWork,
        flags: Flags,
    ) -> ProviderResult<()> {
        let pair = self.pair(id)?;
        if pair.state == PairState::Idle {
            return Err(Error::NotConnected);
        }
        if pair.outstanding.len() >= pair.attributes.initiator_depth as usize {
            return Err(Error::InsufficientResources);
        }
        if pair.state == PairState::Failed {
            pair.initiated(work.kind(), request, Err(Error::Cancelled));
            return Ok(());
        }
        pair.outstanding.push_back((request, work, flags));
        self.advance(id);
        Ok(())
    }

    /// Posts a buffer on a queue pair of its own or on a shared queue, and lets messages that wait
    /// for it arrive.
    pub(super) fn post_receive(&mut self, id: u64, posted: SimulatedReceive) -> ProviderResult<()> {
        let pair = self.pair(id)?;
        if pair.shared.is_some() {
            return Err(Error::InvalidParameter);
        }
        if pair.posted.len() >= pair.attributes.receive_depth as usize {
            return Err(Error::InsufficientResources);
        }
        if pair.state == PairState::Failed {
            pair.received(posted.request, Err(Error::Cancelled));
            return Ok(());
        }
        pair.posted.push_back(posted);
        if let Some(peer) = pair.peer {
            self.advance(peer);
        }
        Ok(())
    }

    /// Lets every sender to a queue pair of this shared receive queue go on.
    pub(super) fn advance_towards(&mut self, shared: u64) {
        let senders: Vec<u64> = self
            .pairs
            .values()
            .filter(|p| p.shared == Some(shared))
            .filter_map(|p| p.peer)
            .collect();
        for sender in senders {
            self.advance(sender);
        }
    }

    /// Runs a queue pair's requests in order until one has to wait.
    pub(super) fn advance(&mut self, id: u64) {
        loop {
            let Some(pair) = self.pairs.get_mut(&id) else { return };
            if pair.state != PairState::Connected {
                return;
            }
            let Some((request, work, flags)) = pair.outstanding.pop_front() else { return };
            let Some(result) = self.run(id, &work) else {
                let pair = self.pairs.get_mut(&id).expect("looked up above");
                pair.outstanding.push_front((request, work, flags));
                return;
            };
            let pair = self.pairs.get_mut(&id).expect("looked up above");
            if result.is_err() || !flags.has(Flags::SILENT) {
                pair.initiated(work.kind(), request, result);
            }
            if result.is_err() {
                self.fail(id, Error::Cancelled);
            }
        }
    }

    /// One request's effect; `None` if it has to wait.
    fn run(&mut self, id: u64, work: &SimulatedWork) -> Option<ProviderResult<u32>> {
        let peer = self.pairs.get(&id)?.peer?;
        match work {
            SimulatedWork::Send(bytes) => self.deliver(peer, bytes),
            SimulatedWork::Read(into, from) => {
                Some(self.transfer(id, peer, into, *from, RemoteAccess::Read))
            }
            SimulatedWork::Write(from, to, tells) => {
                if *tells && self.receives_of(peer)?.is_empty() {
                    return None;
                }
                let written = self.transfer(id, peer, from, *to, RemoteAccess::Write);
                if *tells && written.is_ok() {
                    let posted = self.receives_of(peer)?.pop_front()?;
                    let length = from.iter().map(|one| one.length).sum();
                    self.pairs.get(&peer)?.took(RequestKind::Told, posted.request, Ok(length));
                }
                Some(written)
            }
            SimulatedWork::Bind(token, binding) => {
                let pair = self.pairs.get_mut(&id)?;
                if !pair.memory.covers(binding.region, &binding.range) {
                    return Some(Err(Error::LocalAccess));
                }
                let binding = Binding { range: binding.range.clone(), ..*binding };
                pair.bindings.insert(*token, binding);
                Some(Ok(0))
            }
            SimulatedWork::Invalidate(token) => {
                let found = self.pairs.get_mut(&id)?.bindings.remove(token);
                Some(found.map(|_| 0).ok_or(Error::InvalidParameter))
            }
        }
    }

    /// The receives for what comes to a queue pair. `None`: it has failed.
    fn receives_of(&mut self, id: u64) -> Option<&mut VecDeque<SimulatedReceive>> {
        let pair = self.pairs.get_mut(&id).filter(|pair| pair.state != PairState::Failed)?;
        match pair.shared {
            Some(shared) => self.shared.get_mut(&shared),
            None => Some(&mut pair.posted),
        }
    }

    fn deliver(&mut self, to: u64, bytes: &[u8]) -> Option<ProviderResult<u32>> {
        let posted = self.receives_of(to)?.pop_front()?;
        let pair = self.pairs.get(&to)?;
        match pair.memory.scatter(&posted.into, bytes) {
            Ok(()) => {
                pair.received(posted.request, Ok(bytes.len() as u32));
                Some(Ok(0))
            }
            Err(error) => {
                pair.received(posted.request, Err(error));
                self.fail(to, Error::Cancelled);
                Some(Err(error))
            }
        }
    }

    fn transfer(
        &mut self,
        id: u64,
        peer: u64,
        local: &[MemoryPiece],
        remote: RemoteMemory,
        access: RemoteAccess,
    ) -> ProviderResult<u32> {
        let ours = self.pair(id)?.memory.clone();
        let length = ours.check(local)?;
        let there = self.pair(peer)?;
        let binding = there.bindings.get(&remote.token).ok_or(Error::RemoteAccess)?;
        let end = remote.address.checked_add(length as u64).ok_or(Error::RemoteAccess)?;
        let inside = binding.range.start <= remote.address && end <= binding.range.end;
        if !inside || binding.access != access || there.state != PairState::Connected {
            return Err(Error::RemoteAccess);
        }
        let remote =
            [MemoryPiece { address: remote.address, length: length as u32, token: binding.region }];
        let theirs = there.memory.clone();
        match access {
            RemoteAccess::Read => {
                let bytes = theirs.gather(&remote).map_err(|_| Error::RemoteAccess)?;
                ours.scatter(local, &bytes)?;
            }
            RemoteAccess::Write => {
                let bytes = ours.gather(local)?;
                theirs.scatter(&remote, &bytes).map_err(|_| Error::RemoteAccess)?;
            }
        }
        Ok(0)
    }

    /// Ends a queue pair: the first outstanding request with `first`, the rest cancelled.
    pub(super) fn fail(&mut self, id: u64, first: Error) {
        let Some(pair) = self.pairs.get_mut(&id) else { return };
        pair.state = PairState::Failed;
        pair.bindings.clear();
        let mut error = first;
        for (request, work, _) in std::mem::take(&mut pair.outstanding) {
            pair.initiated(work.kind(), request, Err(error));
            error = Error::Cancelled;
        }
        for posted in std::mem::take(&mut pair.posted) {
            pair.received(posted.request, Err(Error::Cancelled));
        }
    }

    /// Fails the queue pairs of an address, and with `both_ends` also those connected to it.
    pub(super) fn fail_pairs_of(&mut self, ip: IpAddr, both_ends: bool, error: Error) {
        let here = |pair: &SimulatedPair| pair.ip == ip;
        let hit: Vec<u64> = self
            .pairs
            .iter()
            .filter(|(_, pair)| {
                let there = pair.peer.and_then(|peer| self.pairs.get(&peer));
                here(pair) || (both_ends && there.is_some_and(here))
            })
            .map(|(&id, _)| id)
            .collect();
        for id in hit {
            self.fail(id, error);
        }
    }
}
