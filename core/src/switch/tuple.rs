//! A connection's two addresses, which name it on both ends.

use crate::sys::{net, Fd, Result};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

const MAGIC: [u8; 4] = *b"SAN\x01";

/// The connector's address and the acceptor's, IPv4-mapped ones as IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// Of the connector.
    pub connector: SocketAddr,
    /// Of the acceptor.
    pub acceptor: SocketAddr,
}

impl Tuple {
    /// Bytes of the packet that carries it.
    pub const ENCODED: usize = 4 + 2 * 18;

    /// Of a connection that `fd` accepted.
    pub fn of_accepted(fd: Fd) -> Result<Self> {
        Ok(Self {
            connector: net::unmapped(net::peer_address(fd)?),
            acceptor: net::unmapped(net::local_address(fd)?),
        })
    }

    /// Of a connection that `fd` makes or made to `acceptor`.
    pub fn of_connecting(fd: Fd, acceptor: SocketAddr) -> Result<Self> {
        Ok(Self { connector: net::unmapped(net::local_address(fd)?), acceptor })
    }

    /// The packet.
    pub fn encode(&self) -> [u8; Self::ENCODED] {
        let mut all = [0; Self::ENCODED];
        all[..4].copy_from_slice(&MAGIC);
        for (i, address) in [self.connector, self.acceptor].iter().enumerate() {
            let ip = match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            let at = 4 + i * 18;
            all[at..at + 16].copy_from_slice(&ip.octets());
            all[at + 16..at + 18].copy_from_slice(&address.port().to_be_bytes());
        }
        all
    }

    /// The packet's meaning; `None` if it is none.
    pub fn decode(packet: &[u8]) -> Option<Self> {
        if packet.len() != Self::ENCODED || packet[..4] != MAGIC {
            return None;
        }
        let address = |at: usize| {
            let ip: [u8; 16] = packet[at..at + 16].try_into().ok()?;
            let port = u16::from_be_bytes([packet[at + 16], packet[at + 17]]);
            Some(SocketAddr::new(IpAddr::V6(Ipv6Addr::from(ip)).to_canonical(), port))
        };
        Some(Self { connector: address(4)?, acceptor: address(22)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_carry_both_families_and_refuse_nonsense() {
        for (a, b) in [("127.0.0.1:5", "127.0.0.9:65535"), ("[::1]:1", "[fe80::2]:2")] {
            let tuple = Tuple { connector: a.parse().unwrap(), acceptor: b.parse().unwrap() };
            let packet = tuple.encode();
            assert_eq!(Tuple::decode(&packet), Some(tuple));
            assert_eq!(Tuple::decode(&packet[1..]), None);
        }
        assert_eq!(Tuple::decode(&[0; Tuple::ENCODED]), None);
    }
}
