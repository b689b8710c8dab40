//! A connection's two addresses, which name it on both ends.

use crate::provider::shm::Role;
use crate::sys::{net, Fd, Result};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The connector's address and the acceptor's, IPv4-mapped ones as IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::switch) struct Tuple {
    /// The connector's address.
    pub(crate) connector: SocketAddr,
    /// The acceptor's address.
    pub(crate) acceptor: SocketAddr,
}

impl Tuple {
    /// Bytes of its encoding.
    pub(in crate::switch) const ENCODED: usize = 2 * 18;

    /// The addresses of a connection that `fd` made or accepted.
    pub(in crate::switch) fn of(fd: Fd, role: Role) -> Result<Self> {
        match role {
            Role::Connector => Self::of_connected(fd),
            Role::Acceptor => Self::of_accepted(fd),
        }
    }

    /// The addresses of a connection that `fd` accepted.
    pub(in crate::switch) fn of_accepted(fd: Fd) -> Result<Self> {
        Ok(Self {
            connector: net::unmapped(net::peer_address(fd)?),
            acceptor: net::unmapped(net::local_address(fd)?),
        })
    }

    /// The addresses of a connection that `fd` made.
    fn of_connected(fd: Fd) -> Result<Self> {
        Self::of_accepted(fd)
            .map(|Self { connector, acceptor }| Self { connector: acceptor, acceptor: connector })
    }

    /// As both ends write it.
    pub(in crate::switch) fn encode(&self) -> [u8; Self::ENCODED] {
        let mut all = [0; Self::ENCODED];
        for (at, address) in all.chunks_exact_mut(18).zip([self.connector, self.acceptor]) {
            let ip = match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            at[..16].copy_from_slice(&ip.octets());
            at[16..].copy_from_slice(&address.port().to_be_bytes());
        }
        all
    }

    /// Reads what was [encoded](Self::encode). `None` if that is nothing.
    pub(in crate::switch) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::ENCODED] = bytes.try_into().ok()?;
        let address = |at: usize| {
            let ip: [u8; 16] = bytes[at..at + 16].try_into().ok()?;
            let port = u16::from_be_bytes([bytes[at + 16], bytes[at + 17]]);
            Some(SocketAddr::new(IpAddr::V6(Ipv6Addr::from(ip)).to_canonical(), port))
        };
        Some(Self { connector: address(0)?, acceptor: address(18)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_are_encoded_and_nonsense_is_refused() {
        for (a, b) in [("127.0.0.1:5", "127.0.0.9:65535"), ("[::1]:1", "[fe80::2]:2")] {
            let tuple = Tuple { connector: a.parse().unwrap(), acceptor: b.parse().unwrap() };
            let encoded = tuple.encode();
            assert_eq!(Tuple::decode(&encoded), Some(tuple));
            assert_eq!(Tuple::decode(&encoded[1..]), None);
        }
    }
}
