//! The local address for a destination, as the kernel's routing has it (N3).

use super::abi;
use super::error::{Error, Result};
use crate::sys::{self, net};
use std::net::SocketAddr;

/// The address from which the kernel would send to `destination`, its port zero. Nothing is sent.
///
/// # Errors
/// [`Error::HostUnreachable`] if there is no route.
pub fn local_address_for(destination: SocketAddr) -> Result<SocketAddr> {
    let family = if destination.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    let socket = net::socket(family, kind, 0).map_err(|_| Error::InsufficientResources)?;
    // A datagram socket's connect only looks the route up. Port 0 would be refused.
    let mut towards = destination;
    towards.set_port(if destination.port() == 0 { 9 } else { destination.port() });
    let found = net::connect(socket, &abi::to_c(towards))
        .and_then(|()| net::local_address(socket))
        .map_err(|_| Error::HostUnreachable);
    sys::file::close(socket);
    found.map(|mut local| {
        local.set_port(0);
        local
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n3_the_local_address_comes_from_routing() {
        let to = |text: &str| local_address_for(text.parse().unwrap());
        assert_eq!(to("127.0.0.1:80"), Ok("127.0.0.1:0".parse().unwrap()));
        assert_eq!(to("127.0.0.9:0"), Ok("127.0.0.1:0".parse().unwrap()));
    }
}
