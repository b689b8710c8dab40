//! Finds which connection is the other end of which, among all that were read: by the session that both have, or else by
//! their addresses. Each network namespace has its own addresses, so two namespaces may have connections that look alike.
//! Where addresses are translated on the way (NAT), those of the two ends differ.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::reader::{Connection, Process};
use super::translated::Translations;

/// Its place: the process's, and its own among the process's.
type At = (usize, usize);
/// The ends with some addresses, each with its process's network namespace.
type Found = Vec<(Option<u64>, At)>;
/// Its own and its peer's. Processes that share an end have the same.
pub(super) type Addresses = (SocketAddr, SocketAddr);

/// The ends of all connections.
pub struct Ends {
    by_addresses: HashMap<Addresses, Found>,
    by_session: HashMap<u64, Vec<(Addresses, At)>>,
}

impl Ends {
    /// The ends of these processes.
    pub fn of(processes: &[Process]) -> Ends {
        let mut ends = Ends { by_addresses: HashMap::new(), by_session: HashMap::new() };
        for (at, process) in processes.iter().enumerate() {
            for (number, one) in process.connections.iter().enumerate() {
                let (addresses, at) = ((one.local, one.peer), (at, number));
                ends.by_addresses.entry(addresses).or_default().push((process.network, at));
                if let Some(session) = one.session {
                    ends.by_session.entry(session).or_default().push((addresses, at));
                }
            }
        }
        ends
    }

    /// The other end of a connection of a process in that network namespace; `None` also where more than one may be it.
    pub fn other_end(&self, network: Option<u64>, one: &Connection) -> Option<At> {
        self.with_its_session(one).or_else(|| self.with_its_addresses(network, one))
    }

    /// The other end where the addresses of the two are translated on the way; `None` also where more than one may be it.
    pub fn translated(&self, translations: &Translations, one: &Connection) -> Option<At> {
        translations
            .others((one.local, one.peer))
            .find_map(|addresses| only(self.by_addresses.get(&addresses)?))
    }

    /// The two ends of a session differ in the lowest bit. A file may say anything, so where the ends are not one, none is it.
    fn with_its_session(&self, one: &Connection) -> Option<At> {
        only(self.by_session.get(&(one.session? ^ 1))?)
    }

    fn with_its_addresses(&self, network: Option<u64>, one: &Connection) -> Option<At> {
        let found = self.by_addresses.get(&(one.peer, one.local))?;
        // A namespace that the caller may not know counts as this one.
        let is_near = |of: Option<u64>| of.is_none() || network.is_none() || of == network;
        if let Some((_, at)) = found.iter().find(|(of, _)| is_near(*of)) {
            return Some(*at);
        }
        if is_within_one(one.local, one.peer) {
            return None;
        }
        // Processes that share it are in one namespace.
        only(found)
    }
}

/// The first of these, if all have the same beside them; `None` if they are not one end.
fn only<T: PartialEq>(found: &[(T, At)]) -> Option<At> {
    let first = found.first()?;
    found.iter().all(|(of, _)| *of == first.0).then_some(first.1)
}

/// True of a connection that leads to no other network namespace.
pub(super) fn is_within_one(local: SocketAddr, peer: SocketAddr) -> bool {
    peer.ip().is_loopback() || local.ip() == peer.ip()
}

#[cfg(test)]
mod tests {
    use super::super::slot::{Identity, Provider, Slot, State};
    use super::*;
    use crate::reason::Reason;

    fn process(network: impl Into<Option<u64>>, local: &str, peer: &str) -> Process {
        let [local, peer] = [local, peer].map(|address| address.parse().unwrap());
        let (provider, reason, state) = (Provider::Tcp, Reason::Quiet, State::Established);
        let slot = Slot::new();
        slot.publish(&Identity { fd: 7, local, peer, provider, reason, state });
        let one = super::super::reader::connection(None, &slot).unwrap();
        Process { network: network.into(), connections: vec![one], ..Process::default() }
    }

    /// The process that has the other end of the first one's connection.
    fn other(processes: &[Process]) -> Option<usize> {
        let one = &processes[0];
        let found = Ends::of(processes).other_end(one.network, &one.connections[0]);
        found.map(|(process, _)| process)
    }

    #[test]
    fn an_end_in_the_same_network_comes_first() {
        let client = |network| process(network, "10.1.0.2:40000", "10.1.0.3:80");
        let server = |network| process(network, "10.1.0.3:80", "10.1.0.2:40000");
        assert_eq!(other(&[client(1), server(2), server(1)]), Some(2));
        assert_eq!(other(&[client(1), server(2)]), Some(1), "over a bridge");
        assert_eq!(
            other(&[client(1), server(2), server(2)]),
            Some(1),
            "which two of a family share"
        );
        assert_eq!(other(&[client(1), server(2), server(3)]), None, "whose networks look alike");
        assert_eq!(other(&[client(1), client(2)]), None);
        let unknown = process(None, "10.1.0.3:80", "10.1.0.2:40000");
        assert_eq!(other(&[client(1), unknown.clone()]), Some(1));
        assert_eq!(other(&[unknown, client(1)]), Some(1));
    }

    #[test]
    fn what_looks_alike_in_another_network_is_no_other_end_of_a_local_connection() {
        let client = process(1, "127.0.0.1:40000", "127.0.0.1:80");
        let server = |network| process(network, "127.0.0.1:80", "127.0.0.1:40000");
        assert_eq!(other(&[client.clone(), server(2)]), None);
        assert_eq!(other(&[client, server(2), server(1)]), Some(2));
        let own = process(1, "10.1.0.2:40000", "10.1.0.2:80");
        assert_eq!(other(&[own, process(2, "10.1.0.2:80", "10.1.0.2:40000")]), None);
    }

    #[test]
    fn ends_of_a_session_find_each_other_by_other_addresses() {
        let of = |network, local, peer, inode, is_acceptor| {
            let mut process = process(network, local, peer);
            let slot = Slot::new();
            slot.set_session(inode, is_acceptor);
            process.connections[0].session = slot.session();
            process
        };
        let client = of(1, "10.1.0.2:40000", "10.9.0.1:80", 7, false);
        let server = of(2, "10.2.0.2:7000", "10.1.0.1:50000", 7, true);
        let other_session = of(2, "10.2.0.2:7000", "10.1.0.1:50001", 8, true);
        let found = other(&[client.clone(), other_session.clone(), server.clone()]);
        assert_eq!(found, Some(2));
        assert_eq!(other(&[server.clone(), other_session, client.clone()]), Some(2));
        assert_eq!(other(&[client.clone(), client.clone()]), None, "which two of a family share");
        let liar = of(3, "10.3.0.2:7000", "10.1.0.1:50000", 7, true);
        assert_eq!(other(&[client.clone(), liar.clone(), server]), None);
        let no_session = of(3, "10.3.0.2:7000", "10.1.0.1:50000", 0, true);
        assert_eq!(other(&[of(1, "10.1.0.2:40000", "10.9.0.1:80", 0, false), no_session]), None);
        // Addresses that are not translated tell where sessions do not.
        let near = process(1, "10.9.0.1:80", "10.1.0.2:40000");
        let other_liar = of(3, "10.3.0.2:7000", "10.1.0.1:50001", 7, true);
        assert_eq!(other(&[client, liar, other_liar, near]), Some(3));
    }
}
