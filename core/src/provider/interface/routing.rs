//! This host's addresses, and the one for a destination as the kernel's routing has it (N3).

use super::abi;
use super::error::{Error, ProviderResult};
use crate::sys::{self, net};
use std::net::SocketAddr;
use std::ptr;

/// The address from which the kernel would send to `destination`, its port zero. Nothing is sent.
///
/// # Errors
/// [`Error::HostUnreachable`] if there is no route.
pub fn local_address_for(destination: SocketAddr) -> ProviderResult<SocketAddr> {
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

/// The addresses of this host's interfaces, ports zero, each once.
///
/// # Errors
/// [`Error::InsufficientResources`].
pub fn local_addresses() -> ProviderResult<Vec<SocketAddr>> {
    let mut list = ptr::null_mut();
    // SAFETY: a place for the list.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(Error::InsufficientResources);
    }
    let mut found = Vec::new();
    let mut at = list;
    while !at.is_null() {
        // SAFETY: an entry of the list.
        let entry = unsafe { &*at };
        at = entry.ifa_next;
        if entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: every socket address begins with its family.
        let length = match i32::from(unsafe { (*entry.ifa_addr).sa_family }) {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
            _ => continue,
        };
        let mut address = abi::to_c(([0, 0, 0, 0], 0).into());
        let to = (&raw mut address).cast::<u8>();
        // SAFETY: an address of this family has so many bytes, which a sockaddr_storage holds.
        unsafe { ptr::copy_nonoverlapping(entry.ifa_addr.cast::<u8>(), to, length) };
        if let Ok(address) = abi::from_c(&address) {
            if !found.contains(&address) {
                found.push(address);
            }
        }
    }
    // SAFETY: the list that getifaddrs made.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
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
