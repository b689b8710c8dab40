//! A process does not publish a connection before it is busy. `sanctl` reads here what the kernel says of it, which
//! costs the process nothing. It leaves out what it cannot read, such as another user's.

use super::reader::{connection, Connection};
use super::slot::{Identity, Provider, Slot, State};
use crate::reason::Reason;
use crate::sys::tcp_connections;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;
use std::path::PathBuf;

/// The kernel's states of a TCP connection that has a peer, and our names for them.
const STATES: [(u8, State); 4] =
    [(1, State::Established), (4, State::FinWait), (5, State::FinWait), (8, State::CloseWait)];

type Ends = (SocketAddr, SocketAddr, State);

/// The kernel's tables of TCP connections, by inode: one for each network namespace that was asked for. A table is long
/// where closed connections linger, and all processes of the namespace have the same. So it is read once.
#[derive(Default)]
pub(super) struct Tables(HashMap<Option<PathBuf>, HashMap<u64, Ends>>);

impl Tables {
    /// The table of the process's namespace.
    fn of(&mut self, pid: u32) -> &HashMap<u64, Ends> {
        self.0.entry(namespace(pid)).or_insert_with_key(|namespace| tcp_in(pid, namespace))
    }
}

/// The connections of `pid` that are not among the `published` ones.
pub(super) fn connections(
    pid: u32,
    published: &[Connection],
    tables: &mut Tables,
) -> Vec<Connection> {
    let mut sockets = sockets(pid);
    let known: HashSet<u64> = {
        let inodes: HashMap<RawFd, u64> = sockets.iter().copied().collect();
        published.iter().filter_map(|one| inodes.get(&one.fd).copied()).collect()
    };
    // A connection with several descriptors has the lowest.
    let mut seen = HashSet::new();
    sockets.retain(|(_, inode)| !known.contains(inode) && seen.insert(*inode));
    if sockets.is_empty() {
        return Vec::new();
    }
    let table = tables.of(pid);
    sockets
        .into_iter()
        .filter_map(|(fd, inode)| {
            let (local, peer, state) = *table.get(&inode)?;
            let (provider, reason) = (Provider::Tcp, Reason::Quiet);
            let slot = Slot::new();
            slot.publish(&Identity { fd, local, peer, provider, reason, state });
            connection(None, &slot).ok()
        })
        .collect()
}

/// The sockets of a process: each descriptor, and its inode.
pub(super) fn sockets(pid: u32) -> Vec<(RawFd, u64)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut all: Vec<(RawFd, u64)> = entries
        .filter_map(|entry| {
            let fd = entry.file_name().to_str()?.parse().ok()?;
            let link = fs::read_link(entry.path()).ok()?;
            let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
            Some((fd, inode))
        })
        .collect();
    all.sort_unstable();
    all
}

/// The TCP connections of the network namespace of a process, by inode.
pub(super) fn tcp(pid: u32) -> HashMap<u64, Ends> {
    tcp_in(pid, &namespace(pid))
}

fn tcp_in(pid: u32, of_process: &Option<PathBuf>) -> HashMap<u64, Ends> {
    let is_ours = of_process.is_some() && *of_process == namespace(std::process::id());
    let asked = || tcp_connections::in_states(&STATES.map(|(number, _)| number)).ok();
    match is_ours.then(asked).flatten() {
        Some(all) => all
            .into_iter()
            .filter_map(|one| Some((one.inode, (one.local, one.peer, state(one.state)?))))
            .collect(),
        None => listed(pid),
    }
}

fn namespace(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/net")).ok()
}

/// The same of a namespace that is not ours, or where the kernel does not answer. There /proc lists the sockets of
/// closed connections as well.
fn listed(pid: u32) -> HashMap<u64, Ends> {
    let read = |name| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    let lines = [read("tcp"), read("tcp6")];
    lines.iter().flat_map(|text| text.lines().skip(1)).filter_map(parse).collect()
}

/// `sl local_address rem_address st ... inode`
fn parse(line: &str) -> Option<(u64, Ends)> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let state = state(u8::from_str_radix(words.get(3)?, 16).ok()?)?;
    let (local, peer) = (address(words.get(1)?)?, address(words.get(2)?)?);
    Some((words.get(9)?.parse().ok()?, (local, peer, state)))
}

fn state(number: u8) -> Option<State> {
    STATES.iter().find(|(one, _)| *one == number).map(|(_, state)| *state)
}

/// An address as hexadecimal words in the host's byte order, then a colon and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (digits, port) = text.split_once(':')?;
    let words = digits.len() / 8;
    let word = |at: usize| u32::from_str_radix(digits.get(8 * at..8 * at + 8)?, 16).ok();
    let ip = match words {
        1 => IpAddr::V4(Ipv4Addr::from(word(0)?.to_ne_bytes())),
        4 => {
            let mut octets = [0; 16];
            for (at, part) in octets.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(at)?.to_ne_bytes());
            }
            IpAddr::V6(Ipv6Addr::from(octets)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn a_connection_is_found_with_its_lowest_descriptor_unless_it_is_published() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let copy = stream.try_clone().unwrap();
        // Another test may have closed a lower number meanwhile.
        let lowest = stream.as_raw_fd().min(copy.as_raw_fd());
        let pid = std::process::id();
        let of_ours = |published: &[Connection]| {
            let found = connections(pid, published, &mut Tables::default()).into_iter();
            found.filter(|one| one.local == stream.local_addr().unwrap()).collect::<Vec<_>>()
        };
        let found = of_ours(&[]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].fd, found[0].reason), (lowest, Reason::Quiet));
        assert_eq!(found[0].peer, listener.local_addr().unwrap());
        assert_eq!(of_ours(&found), []);
        let ends = (found[0].local, found[0].peer, State::Established);
        for table in [tcp(pid), listed(pid)] {
            assert!(table.values().any(|one| *one == ends), "the kernel's two ways say the same");
        }
    }

    #[test]
    fn what_makes_no_sense_is_left_out() {
        for line in ["", "0: 0100007F:0050", "0: zz:1 0100007F:1 01 0 0 0 0 0 7", "sl local"] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
