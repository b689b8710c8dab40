//! The TCP connections of this process's network namespace, by their states, all at once. The kernel passes over the
//! sockets of connections that are over, of which a busy server's host may have 100,000.

use super::sock_diag::{open, send, QuestionHeader, SocketId, SocketQuestion, SOCK_DIAG_BY_FAMILY};
use super::{file, net, Errno, Fd, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A connection as the kernel sees this end of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpConnection {
    /// Zero if no process has accepted it.
    pub(crate) inode: u64,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    /// The kernel's number of its state (TCP_ESTABLISHED and so on).
    pub(crate) state: u8,
}

/// The connections in one of the given states.
///
/// # Errors
///
/// The kernel does not answer such questions, or not this process.
pub(crate) fn in_states(states: &[u8]) -> Result<Vec<TcpConnection>> {
    let mask = states.iter().fold(0, |mask, state| mask | 1 << state);
    let fd = open()?;
    let mut found = Vec::new();
    let asked = [libc::AF_INET, libc::AF_INET6]
        .into_iter()
        .try_for_each(|family| dump(fd, family as u8, mask, &mut found));
    file::close(fd);
    asked.map(|()| found)
}

fn dump(fd: Fd, family: u8, states: u32, found: &mut Vec<TcpConnection>) -> Result<()> {
    send(fd, &SocketQuestion::new(QuestionHeader::of_dump(), family, states, SocketId::ANY))?;
    // The kernel fills no more than this at a time.
    let mut buffer = vec![0; 32 << 10];
    loop {
        let n = net::recv(fd, &mut buffer, 0)?;
        if take_in(&buffer[..n], found)? {
            return Ok(());
        }
    }
}

/// Some of the kernel's messages; true if the last one is among them.
fn take_in(mut messages: &[u8], found: &mut Vec<TcpConnection>) -> Result<bool> {
    while let Some((kind, body, next)) = split(messages) {
        if matches!(i32::from(kind), libc::NLMSG_DONE | libc::NLMSG_ERROR) {
            // Where the kernel can tell nothing of TCP, the last message says so.
            let number = body.first_chunk().map_or(0, |word| i32::from_ne_bytes(*word));
            return if number < 0 { Err(Errno(number.saturating_neg())) } else { Ok(true) };
        }
        if kind == SOCK_DIAG_BY_FAMILY {
            found.extend(decode(body));
        }
        messages = next;
    }
    Ok(false)
}

/// The first message: what it is, what is in it, and what comes after it.
fn split(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    const HEADER: usize = size_of::<QuestionHeader>();
    let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes([*bytes.get(4)?, *bytes.get(5)?]);
    let next = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, bytes.get(HEADER..length)?, next))
}

/// inet_diag_msg.
fn decode(body: &[u8]) -> Option<TcpConnection> {
    const ADDRESSES: usize = 4;
    const INODE: usize = ADDRESSES + size_of::<SocketId>() + 16;
    let address = |number: usize| {
        let port = ADDRESSES + 2 * number;
        let ip = ADDRESSES + 4 + 16 * number;
        let octets: [u8; 16] = body.get(ip..ip + 16)?.try_into().ok()?;
        let ip = match i32::from(body[0]) {
            libc::AF_INET => IpAddr::V4(Ipv4Addr::from(*octets.first_chunk()?)),
            _ => IpAddr::V6(Ipv6Addr::from(octets)).to_canonical(),
        };
        Some(SocketAddr::new(ip, u16::from_be_bytes([body[port], body[port + 1]])))
    };
    let inode = u32::from_ne_bytes(body.get(INODE..INODE + 4)?.try_into().ok()?);
    let (local, peer) = (address(0)?, address(1)?);
    Some(TcpConnection { inode: inode.into(), local, peer, state: body[1] })
}

/// Feeds an answer of the kernel of arbitrary bytes.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    let mut rest = data;
    while let Some((_, body, next)) = split(rest) {
        let _ = decode(body);
        if next.len() >= rest.len() {
            break;
        }
        rest = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn both_ends_are_found_in_their_states_alone() {
        const ESTABLISHED: u8 = 1;
        const CLOSE_WAIT: u8 = 8;
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(at).unwrap();
            let connector = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            let (one, other) = (connector.local_addr().unwrap(), accepted.local_addr().unwrap());
            let states = |asked: &[u8]| {
                let all = in_states(asked).unwrap();
                [(one, other), (other, one)].map(|ends| {
                    all.iter().find(|c| (c.local, c.peer) == ends).map(|c| (c.state, c.inode != 0))
                })
            };
            assert_eq!(states(&[ESTABLISHED]), [Some((ESTABLISHED, true)); 2]);
            assert_eq!(states(&[CLOSE_WAIT]), [None; 2]);
            connector.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(states(&[CLOSE_WAIT]), [None, Some((CLOSE_WAIT, true))]);
        }
    }

    #[test]
    fn a_dump_that_fails_is_not_an_empty_one() {
        let last = |number: i32| {
            let header = [20, 0, 0, 0, libc::NLMSG_DONE as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            [header.as_slice(), &number.to_ne_bytes()].concat()
        };
        assert_eq!(take_in(&last(0), &mut Vec::new()), Ok(true));
        assert_eq!(take_in(&last(-libc::ENOENT), &mut Vec::new()), Err(Errno(libc::ENOENT)));
        assert_eq!(take_in(&[], &mut Vec::new()), Ok(false));
    }

    #[test]
    fn what_makes_no_sense_is_left_out() {
        assert_eq!(decode(&[2; 40]), None);
        assert_eq!(split(&[]), None);
        assert_eq!(split(&[4, 0, 0, 0, 20, 0]), None, "shorter than its own header");
        assert_eq!(split(&[200, 0, 0, 0, 20, 0, 0, 0]), None, "longer than what came");
    }
}
