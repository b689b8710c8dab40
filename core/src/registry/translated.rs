//! Which addresses the two ends of a connection have where the kernel translates them (NAT), as its tables of tracked
//! connections show to root. Each network namespace has its own table.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::{IpAddr, SocketAddr};

use super::ends::Addresses;
use super::reader::Process;

/// So many network namespaces a connection passes in which it is translated.
const MOST_IN_A_ROW: usize = 4;

/// See the module.
#[derive(Default)]
pub struct Translations {
    /// The other end's, by an end's. `None`: two namespaces have connections that look alike.
    other: HashMap<Addresses, Option<Addresses>>,
}

impl Translations {
    /// Those in the caller's network namespace, and in those of the processes. None for who may not read them, and where the
    /// kernel shows no table in /proc.
    pub fn read(processes: &[Process]) -> Self {
        let mut found = Translations::default();
        let mut seen = HashSet::new();
        let others = processes.iter().filter(|process| seen.insert(process.network));
        let pids = others.map(|process| process.pid.to_string());
        for of in std::iter::once("self".to_owned()).chain(pids) {
            found.add(
                &fs::read_to_string(format!("/proc/{of}/net/nf_conntrack")).unwrap_or_default(),
            );
        }
        found
    }

    fn add(&mut self, table: &str) {
        for [there, back] in table.lines().filter_map(both_ways) {
            // As each end has it: its own first. The segments that come back tell of the acceptor's.
            let (connector, acceptor) = (there, back);
            if acceptor == turned(connector) {
                continue;
            }
            for (one, other) in [(connector, acceptor), (acceptor, connector)] {
                let known = self.other.entry(one).or_insert(Some(other));
                *known = known.filter(|known| *known == other);
            }
        }
    }

    /// What the other end may have, with one translation, and with more of them.
    pub(super) fn others(&self, own: Addresses) -> impl Iterator<Item = Addresses> + '_ {
        let next = move |last: &Addresses| self.of(turned(*last));
        std::iter::successors(self.of(own), next).take(MOST_IN_A_ROW)
    }

    fn of(&self, end: Addresses) -> Option<Addresses> {
        self.other.get(&end).copied().flatten()
    }
}

fn turned((own, peer): Addresses) -> Addresses {
    (peer, own)
}

/// Where the segments of a TCP connection come from and go to, there and back.
fn both_ways(line: &str) -> Option<[Addresses; 2]> {
    line.split_ascii_whitespace().find(|word| *word == "tcp")?;
    let values = |name: &'static str| {
        line.split_ascii_whitespace()
            .filter_map(move |word| word.strip_prefix(name)?.strip_prefix('='))
    };
    let [mut from, mut to] = ["src", "dst"].map(values);
    let [mut from_port, mut to_port] = ["sport", "dport"].map(values);
    let address = |ip: &str, port: &str| -> Option<SocketAddr> {
        Some(SocketAddr::new(ip.parse::<IpAddr>().ok()?, port.parse().ok()?))
    };
    let mut way =
        || Some((address(from.next()?, from_port.next()?)?, address(to.next()?, to_port.next()?)?));
    Some([way()?, way()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(own: &str, peer: &str) -> Addresses {
        (own.parse().unwrap(), peer.parse().unwrap())
    }

    fn line(there: (&str, &str), back: (&str, &str)) -> String {
        let way = |(from, to): (&str, &str)| {
            let [from, to] = [from, to].map(|text| text.parse::<SocketAddr>().unwrap());
            format!("src={} dst={} sport={} dport={}", from.ip(), to.ip(), from.port(), to.port())
        };
        let (there, back) = (way(there), way(back));
        format!("ipv4     2 tcp      6 431999 ESTABLISHED {there} {back} [ASSURED] mark=0 zone=0 use=2\n")
    }

    #[test]
    fn each_end_leads_to_the_other() {
        let mut found = Translations::default();
        let (client, server) =
            (("10.1.0.2:40000", "10.9.0.1:80"), ("10.2.0.2:7000", "10.1.0.1:50000"));
        found.add(&line(client, server));
        let plain = ("10.1.0.2:40001", "10.2.0.2:7000");
        found.add(&line(plain, (plain.1, plain.0)));
        found.add("ipv4     2 udp      17 29 src=1.2.3.4 dst=1.2.3.5 sport=1 dport=2 src=1.2.3.9 dst=1.2.3.4 sport=2 dport=1\n");
        found.add("nonsense tcp src=x dst=y\n");
        let others = |(own, peer): (&str, &str)| found.others(end(own, peer)).collect::<Vec<_>>();
        assert_eq!(others(client), [end(server.0, server.1)]);
        assert_eq!(others(server), [end(client.0, client.1)]);
        assert!(others(plain).is_empty() && found.other.len() == 2);
    }

    #[test]
    fn a_connection_may_be_translated_twice() {
        let mut found = Translations::default();
        found.add(&line(("10.1.0.2:40000", "10.9.0.1:80"), ("10.8.0.1:81", "10.1.0.2:40000")));
        found.add(&line(("10.1.0.2:40000", "10.8.0.1:81"), ("10.2.0.2:7000", "10.8.0.1:50000")));
        let others = |own, peer| found.others(end(own, peer)).last();
        assert_eq!(
            others("10.1.0.2:40000", "10.9.0.1:80"),
            Some(end("10.2.0.2:7000", "10.8.0.1:50000"))
        );
        assert_eq!(
            others("10.2.0.2:7000", "10.8.0.1:50000"),
            Some(end("10.1.0.2:40000", "10.9.0.1:80"))
        );
    }

    #[test]
    fn connections_of_two_namespaces_that_look_alike_lead_nowhere() {
        let mut found = Translations::default();
        let client = ("10.1.0.2:40000", "10.9.0.1:80");
        found.add(&line(client, ("10.2.0.2:7000", "10.1.0.2:40000")));
        found.add(&line(client, ("10.2.0.3:7000", "10.1.0.2:40000")));
        assert_eq!(found.others(end(client.0, client.1)).count(), 0);
        assert_eq!(found.others(end("10.2.0.3:7000", "10.1.0.2:40000")).count(), 1);
    }
}
