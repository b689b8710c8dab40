//! Under which names the ends of a connection look for each other. A name finds a peer, and proves nothing.
//!
//! On its way through NAT a connection may get other addresses, at either end. The address of a service leaves the
//! connector's address as it is. Masquerading leaves at most the connector's port. The time stamp of the connection's
//! first segment stays in all cases.

use crate::switch::socket::tuple::Tuple;
use std::net::{Ipv6Addr, SocketAddr};

/// In which tables a name stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::switch) enum Reach {
    /// In that of the network namespace.
    Namespace,
    /// In that of the host.
    Host,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::switch) struct Names {
    /// The connection as the connector sees it, as far as its end knows.
    tuple: Tuple,
    /// The time stamp of the first segment, where it is known, and how far from the true one it may be.
    stamp: Option<(u32, u32)>,
    in_namespace: bool,
    on_host: bool,
}

/// So many (ms) the connector may be mistaken about when it sent the first segment.
const MISTAKE: u32 = 1;

impl Names {
    /// The names of an accepted connection. It was made to `dialled`, as far as the kernel knows that. `is_far`: its
    /// other end may be in another network namespace. `stamp` is its first segment's.
    pub(in crate::switch) fn of_accepted(
        tuple: &Tuple,
        dialled: Option<SocketAddr>,
        is_far: bool,
        stamp: Option<u32>,
    ) -> Self {
        let tuple = Tuple { acceptor: dialled.unwrap_or(tuple.acceptor), ..*tuple };
        let stamp = stamp.map(|stamp| (stamp, 0));
        Names { tuple, stamp, in_namespace: !is_far, on_host: is_far }
    }

    /// The names of a connection that this process made. Nobody knows where it leads. `stamp` is its first segment's,
    /// or the one beside that.
    pub(in crate::switch) fn of_connected(
        tuple: &Tuple,
        may_be_far: bool,
        stamp: Option<u32>,
    ) -> Self {
        let stamp = stamp.map(|stamp| (stamp, MISTAKE));
        Names { tuple: *tuple, stamp, in_namespace: true, on_host: may_be_far }
    }

    /// Each of them, the likeliest first.
    pub(in crate::switch) fn each(self) -> impl Iterator<Item = (Reach, Tuple)> {
        let in_reach = move |reach| self.in_reach(reach).map(move |name| (reach, name));
        in_reach(Reach::Namespace).chain(in_reach(Reach::Host))
    }

    /// The names in such tables, the likeliest first.
    pub(in crate::switch) fn in_reach(self, reach: Reach) -> impl Iterator<Item = Tuple> {
        let (is_there, by_connector) = match reach {
            Reach::Namespace => (self.in_namespace, None),
            Reach::Host => (self.on_host, Some(Tuple { acceptor: nowhere(0), ..self.tuple })),
        };
        let stamps = self.stamp.into_iter().flat_map(|(stamp, mistake)| {
            (0..=2 * mistake).map(move |at| stamp.wrapping_add(at).wrapping_sub(mistake))
        });
        let ports = [self.tuple.connector.port(), 0];
        let by_stamp = move |stamp| ports.map(|port| by_stamp(stamp, port));
        let all = std::iter::once(self.tuple).chain(by_connector).chain(stamps.flat_map(by_stamp));
        all.filter(move |_| is_there)
    }
}

fn nowhere(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))
}

/// A name that no connection has by its addresses: the first is of the block that leads nowhere (RFC 6666). If several
/// begin in one millisecond, the connector's port tells which one it is, unless NAT translates that.
fn by_stamp(stamp: u32, port: u16) -> Tuple {
    let address = Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, (stamp >> 16) as u16, stamp as u16);
    Tuple { connector: SocketAddr::from((address, port)), acceptor: nowhere(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meet(one: Names, other: Names) -> bool {
        one.each().any(|name| other.each().any(|it| it == name))
    }

    #[test]
    fn ends_find_each_other_whatever_address_the_acceptor_has() {
        let [connector, service, acceptor] =
            ["10.1.0.2:4000", "10.9.0.1:80", "10.2.0.3:8080"].map(|text| text.parse().unwrap());
        let made = Names::of_connected(&Tuple { connector, acceptor: service }, true, None);
        let accepted = |dialled, is_far| {
            Names::of_accepted(&Tuple { connector, acceptor }, dialled, is_far, None)
        };
        assert!(meet(made, accepted(None, true)), "by the connector's address");
        assert!(meet(made, accepted(Some(service), false)), "by the address that was dialled");
        assert!(!meet(made, accepted(None, false)));
        let bridged = Names::of_connected(&Tuple { connector, acceptor }, true, None);
        assert!(meet(bridged, accepted(None, true)) && meet(bridged, accepted(None, false)));
    }

    #[test]
    fn ends_find_each_other_by_their_first_segments_time() {
        let [connector, seen, service, acceptor] =
            ["10.1.0.2:4000", "10.2.0.1:61000", "10.9.0.1:80", "10.2.0.3:8080"]
                .map(|text| text.parse().unwrap());
        let made =
            |stamp| Names::of_connected(&Tuple { connector, acceptor: service }, true, stamp);
        let seen = Tuple { connector: seen, acceptor };
        for is_far in [false, true] {
            let accepted = |stamp| Names::of_accepted(&seen, None, is_far, stamp);
            assert!(!meet(made(Some(7)), accepted(None)) && !meet(made(None), accepted(Some(7))));
            for stamp in [6, 7, 8] {
                assert!(meet(made(Some(7)), accepted(Some(stamp))));
            }
            assert!(!meet(made(Some(7)), accepted(Some(9))));
            assert!(meet(made(Some(0)), accepted(Some(u32::MAX))));
        }
    }
}
