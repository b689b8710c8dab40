//! A connection's two addresses, which name it on both ends.

use crate::sys::{net, Fd, Result};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

const MAGIC: [u8; 4] = *b"SAN\x01";

/// The connector's address and the acceptor's, IPv4-mapped ones as IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tuple {
    /// Of the connector.
    pub connector: SocketAddr,
    /// Of the acceptor.
    pub acceptor: SocketAddr,
}

impl Tuple {
    /// Of a connection that `fd` accepted.
    pub(super) fn of_accepted(fd: Fd) -> Result<Self> {
        Ok(Self {
            connector: net::unmapped(net::peer_address(fd)?),
            acceptor: net::unmapped(net::local_address(fd)?),
        })
    }

    /// Of a connection that `fd` makes or made to `acceptor`.
    pub(super) fn of_connecting(fd: Fd, acceptor: SocketAddr) -> Result<Self> {
        Ok(Self { connector: net::unmapped(net::local_address(fd)?), acceptor })
    }
}

/// What a connector says of itself at the rendezvous, beside the segment it passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Introduction {
    /// The connection.
    pub tuple: Tuple,
    /// The connector's socket: its port may be another's by the time of the accept.
    pub inode: u64,
}

impl Introduction {
    /// Bytes of the packet.
    pub(super) const ENCODED: usize = 4 + 2 * 18 + 8;

    /// The packet.
    pub(super) fn encode(&self) -> [u8; Self::ENCODED] {
        let mut all = [0; Self::ENCODED];
        all[..4].copy_from_slice(&MAGIC);
        for (i, address) in [self.tuple.connector, self.tuple.acceptor].iter().enumerate() {
            let ip = match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            let at = 4 + i * 18;
            all[at..at + 16].copy_from_slice(&ip.octets());
            all[at + 16..at + 18].copy_from_slice(&address.port().to_be_bytes());
        }
        all[40..].copy_from_slice(&self.inode.to_be_bytes());
        all
    }

    /// The packet's meaning; `None` if it is none.
    pub(super) fn decode(packet: &[u8]) -> Option<Self> {
        if packet.len() != Self::ENCODED || packet[..4] != MAGIC {
            return None;
        }
        let address = |at: usize| {
            let ip: [u8; 16] = packet[at..at + 16].try_into().ok()?;
            let port = u16::from_be_bytes([packet[at + 16], packet[at + 17]]);
            Some(SocketAddr::new(IpAddr::V6(Ipv6Addr::from(ip)).to_canonical(), port))
        };
        let tuple = Tuple { connector: address(4)?, acceptor: address(22)? };
        Some(Self { tuple, inode: u64::from_be_bytes(packet[40..].try_into().ok()?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_carry_both_families_and_refuse_nonsense() {
        for (a, b) in [("127.0.0.1:5", "127.0.0.9:65535"), ("[::1]:1", "[fe80::2]:2")] {
            let tuple = Tuple { connector: a.parse().unwrap(), acceptor: b.parse().unwrap() };
            let introduction = Introduction { tuple, inode: u64::MAX - 1 };
            let packet = introduction.encode();
            assert_eq!(Introduction::decode(&packet), Some(introduction));
            assert_eq!(Introduction::decode(&packet[1..]), None);
        }
        assert_eq!(Introduction::decode(&[0; Introduction::ENCODED]), None);
    }
}
