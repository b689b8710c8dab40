//! Which process has an end of a TCP connection, as the kernel says. The process need not run under the shim.

use super::quiet::{sockets, tcp};
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

/// Which process has the end `local` of the connection to `peer`, in the network namespace of process `near`. `None` if
/// the kernel does not know the connection there, or if the caller may not look at the process that has it.
pub fn owner_of(near: u32, local: SocketAddr, peer: SocketAddr) -> Option<Owner> {
    let same = |(_, (one, other, _)): &(u64, _)| (*one, *other) == (local, peer);
    let (inode, _) = tcp(near).into_iter().find(same)?;
    let mut pids: Vec<u32> = fs::read_dir("/proc")
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    pids.into_iter().find_map(|pid| {
        let (fd, _) = sockets(pid).into_iter().find(|(_, one)| *one == inode)?;
        let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        let program = String::from_utf8_lossy(&name).trim_end().to_owned();
        Some(Owner { pid, fd, program })
    })
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
        // Nobody has accepted the connection.
        assert_eq!(owner_of(std::process::id(), peer, own), None);
    }
}
