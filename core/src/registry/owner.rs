//! Which process has an end of a TCP connection, as the kernel says. The process need not run under the shim.

use super::ends::is_within_one;
use super::numbers::{all, namespace_of};
use super::quiet::{sockets, tcp};
use std::collections::HashSet;
use std::fs;
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// A process, and its descriptor of the connection's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The process. If several have the end, it is the one with the lowest id.
    pub pid: u32,
    /// Its lowest descriptor.
    pub fd: RawFd,
    /// Its name, as /proc/PID/comm has it. It may hold any character.
    pub program: String,
}

/// The process that has the end `local` of the connection to `peer`, in the network namespace of process `near`, or
/// else in the only one of those that the caller may look at. `None` if the kernel does not know the connection there,
/// or if the caller may not look at the process that has it.
pub fn owner_of(near: u32, local: SocketAddr, peer: SocketAddr) -> Option<Owner> {
    let same = |(_, (one, other, _)): &(u64, _)| (*one, *other) == (local, peer);
    let inode_in = |pid| tcp(pid).into_iter().find(same).map(|(inode, _)| inode);
    let inode = match inode_in(near) {
        Some(inode) => inode,
        None if is_within_one(local, peer) => return None,
        None => {
            let mut found = others(near).into_iter().filter_map(inode_in);
            found.next().filter(|_| found.next().is_none())?
        }
    };
    all().into_iter().find_map(|pid| {
        let (fd, _) = sockets(pid).into_iter().find(|(_, one)| *one == inode)?;
        let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        let program = String::from_utf8_lossy(&name).trim_end().to_owned();
        Some(Owner { pid, fd, program })
    })
}

/// A process in each network namespace but that of `near`.
fn others(near: u32) -> Vec<u32> {
    let mut known: HashSet<u64> = namespace_of(near, "net").into_iter().collect();
    let is_new = |pid: &u32| namespace_of(*pid, "net").is_some_and(|network| known.insert(network));
    all().into_iter().filter(is_new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn the_owner_of_an_end_is_found_by_its_addresses() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (own, peer) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        let found = owner_of(std::process::id(), own, peer).unwrap();
        assert_eq!((found.pid, found.fd), (std::process::id(), stream.as_raw_fd()));
        // No process has accepted the connection.
        assert_eq!(owner_of(std::process::id(), peer, own), None);
    }
}
