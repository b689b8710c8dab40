//! What the kernel knows about a Unix socket that another process may have.

use super::sock_diag::{self, Header, KERNEL, SOCK_DIAG_BY_FAMILY};
use super::{net, Errno, Fd, Result};

#[repr(C)]
struct Request {
    header: Header,
    family: u8,
    protocol: u8,
    pad: u16,
    states: u32,
    inode: u32,
    show: u32,
    cookie: [u32; 2],
}

const SHOW_PEER: u32 = 0x4;
const SHOW_MEMORY: u32 = 0x20;
const SHOW_USER: u32 = 0x40;

const PEER: u16 = 2;
const MEMORY: u16 = 5;
const USER: u16 = 7;

/// A Unix socket as the kernel sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnixSocket {
    /// Inode of the other end: zero while nobody has accepted the connection; `None`: there is none.
    pub peer: Option<u32>,
    /// User who made it.
    pub user: Option<u32>,
    /// SO_RCVBUF.
    pub receive_buffer: u32,
}

/// Looks up the Unix socket with this inode, in the network namespace of the socket `like`; `None`:
/// there is none.
pub fn lookup(like: Fd, inode: u32) -> Result<Option<UnixSocket>> {
    KERNEL.with(like, |fd| ask(fd, inode))?
}

fn ask(fd: Fd, inode: u32) -> Result<Option<UnixSocket>> {
    let request = Request {
        header: Header::of::<Request>(),
        family: libc::AF_UNIX as u8,
        protocol: 0,
        pad: 0,
        states: u32::MAX,
        inode,
        show: SHOW_PEER | SHOW_MEMORY | SHOW_USER,
        cookie: [u32::MAX; 2],
    };
    let mut reply = [0u8; 1024];
    let n = sock_diag::ask(fd, &request, &request.header, &mut reply)?;
    Ok(parse(&reply[..n], inode))
}

/// nlmsghdr (16), unix_diag_msg (16: family, type, state, padding, inode, cookie), then attributes.
fn parse(reply: &[u8], inode: u32) -> Option<UnixSocket> {
    let half = |at: usize| Some(u16::from_ne_bytes(reply.get(at..at + 2)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_ne_bytes(reply.get(at..at + 4)?.try_into().ok()?));
    if half(4)? != SOCK_DIAG_BY_FAMILY || word(20)? != inode {
        return None;
    }
    let mut socket = UnixSocket::default();
    let mut at = 32;
    while let (Some(length), Some(kind)) = (half(at), half(at + 2)) {
        let value = at + 4;
        match kind {
            PEER => socket.peer = word(value),
            // The second word of it.
            MEMORY => socket.receive_buffer = word(value + 4)?,
            USER => socket.user = word(value),
            _ => {}
        }
        if length < 4 {
            break;
        }
        at += usize::from(length).next_multiple_of(4);
    }
    Some(socket)
}

/// Inode of a Unix socket of this process, as [`lookup`] takes it.
///
/// # Errors
/// ENOTSOCK if it is something else.
pub fn inode(fd: Fd) -> Result<u32> {
    if net::option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN)? != libc::AF_UNIX {
        return Err(Errno(libc::ENOTSOCK));
    }
    let (_, inode) = super::file::identity(fd)?;
    u32::try_from(inode).map_err(|_| Errno(libc::EOVERFLOW))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{file, packet, process};
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::os::unix::net::UnixStream;

    #[test]
    fn an_end_leads_to_the_other() {
        let (a, b) = UnixStream::pair().unwrap();
        let of = |end: &UnixStream| inode(end.as_raw_fd()).unwrap();
        net::set_option(b.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, &50_001).unwrap();
        let ask = |inode| lookup(a.as_raw_fd(), inode).unwrap();
        assert_eq!(ask(of(&a)).unwrap().peer, Some(of(&b)));
        let other = ask(of(&b)).unwrap();
        assert_eq!((other.peer, other.receive_buffer), (Some(of(&a)), 100_002));
        assert_eq!(other.user, Some(process::euid()));
        let gone = of(&b);
        drop(b);
        assert_eq!(ask(gone), None);
    }

    #[test]
    fn one_nobody_accepted_has_no_inode_yet() {
        let name = packet::AbstractName::new(format!("sanshim/test/{}", process::pid()).as_bytes());
        let listener = packet::listen(&name, 1).unwrap();
        let connector = packet::socket(true).unwrap();
        // SAFETY: made just now.
        let (listener, connector) =
            unsafe { (OwnedFd::from_raw_fd(listener), OwnedFd::from_raw_fd(connector)) };
        packet::connect(connector.as_raw_fd(), &name).unwrap();
        let own = inode(connector.as_raw_fd()).unwrap();
        let peer = || lookup(connector.as_raw_fd(), own).unwrap().unwrap().peer;
        assert_eq!(peer(), Some(0));
        let accepted = net::accept(listener.as_raw_fd(), 0).unwrap();
        assert_eq!(peer(), Some(inode(accepted).unwrap()));
        file::close(accepted);
    }

    #[test]
    fn other_files_are_none() {
        let fd = file::eventfd(0).unwrap();
        assert!(inode(fd).is_err());
        file::close(fd);
    }
}
