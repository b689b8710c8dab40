//! Whether two sockets are the two ends of one connection. Their addresses name a connection. But where the kernel
//! translates addresses (NAT) two connections may look alike, each from one of its ends. So the acceptor's end looks at
//! three things:
//!
//! 1. The socket that the kernel has at the other end's addresses must be the very one that the connector offers for
//!    (SO_COOKIE, sock_diag), and must belong to the connector's user.
//! 2. The kernel's connection tracking must not say that the connection was made to another address.
//! 3. Where the kernel tracks the connection at all it may have translated the connector's address, which it tells
//!    nobody. Then a proof must show that the connector has the other end ([`apart`](super::apart)). The connector sees
//!    that the kernel tracks the connection, too, and takes part.
//!
//! The connector asks of an acceptor only whether it runs as the user who has the socket there. An acceptor that listened as
//! root, and has given that up since, is not root's. Where addresses are translated, or the ends are in different network
//! namespaces, nobody asks any of this: the proof shows it to both ends. Any other doubt keeps a connection on TCP.

use crate::reason::Reason;
use crate::switch::socket::tuple::Tuple;
use crate::sys::sock_diag::{self, SocketOwner};
use crate::sys::{net, Errno, Fd};
use std::net::SocketAddr;

/// The address to which an accepted connection was made. `None` where the kernel does not track the connection, and so
/// translates nothing.
///
/// # Errors
/// [`Reason::Unproven`] if the kernel does not tell.
pub(super) fn dialled(accepted: Fd, tuple: &Tuple) -> Result<Option<SocketAddr>, Reason> {
    let dialled = net::dialled_address(accepted, tuple.acceptor.is_ipv4());
    dialled.map(|address| address.map(net::unmapped)).map_err(|_| Reason::Unproven)
}

/// Whether the kernel tracks the connection of a connector's socket, or does not say: then it may translate addresses.
pub(super) fn may_be_translated(made: Fd, acceptor: &SocketAddr) -> bool {
    net::dialled_address(made, net::unmapped(*acceptor).is_ipv4()) != Ok(None)
}

/// True if the acceptor's socket `accepted` has its other end in the socket with that cookie, as far as the addresses
/// tell, and a process of user `uid` may have it.
pub(super) fn is_connectors(accepted: Fd, tuple: &Tuple, cookie: u64, uid: u32) -> bool {
    let found = look(accepted, tuple.connector, tuple.acceptor);
    matches!(found, Ok(Some(owner)) if owner.cookie == cookie && may_have(uid, owner))
}

/// Whether a process that listened as user `uid`, and `acts_as` one now, may have the acceptor's end of the connection of the
/// connector's socket `made`.
///
/// # Errors
/// [`Reason::Unproven`] if the kernel shows no such end here, or who listened as root is not root, nor the socket's user, as far as is
/// known; [`Reason::OtherUser`] if it is another user's, [`Reason::OutOfMemory`] without a descriptor to ask by.
pub(super) fn is_acceptors(
    made: Fd,
    tuple: &Tuple,
    uid: u32,
    acts_as: impl FnOnce() -> Option<u32>,
) -> Result<(), Reason> {
    match look(made, tuple.acceptor, tuple.connector)? {
        None => Err(Reason::Unproven),
        Some(owner) if owner.uid == uid => Ok(()),
        Some(owner) if uid == 0 => match acts_as() {
            Some(now) if may_have(now, owner) => Ok(()),
            _ => Err(Reason::Unproven),
        },
        Some(_) => Err(Reason::OtherUser),
    }
}

/// Finds the connection whose own address is `local` and whose peer is `peer`, in the network namespace of `like`.
///
/// # Errors
///
/// [`Reason::OutOfMemory`] without a descriptor to ask by, [`Reason::Unproven`] if the kernel does not tell.
pub(super) fn look(
    like: Fd,
    local: SocketAddr,
    peer: SocketAddr,
) -> Result<Option<SocketOwner>, Reason> {
    match sock_diag::lookup(like, local, peer) {
        Ok(found) => Ok(found.filter(|owner| owner.is_connected())),
        Err(Errno(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS)) => {
            Err(Reason::OutOfMemory)
        }
        Err(_) => Err(Reason::Unproven),
    }
}

/// A process of root may have been given anybody's socket.
fn may_have(uid: u32, owner: SocketOwner) -> bool {
    uid == 0 || owner.uid == uid
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn connection(listener: &TcpListener) -> (TcpStream, TcpStream, Tuple) {
        let connector = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        for end in [&connector, &accepted] {
            end.set_nodelay(true).unwrap();
        }
        let tuple = Tuple::of_accepted(accepted.as_raw_fd()).unwrap();
        (connector, accepted, tuple)
    }

    #[test]
    fn a_socket_is_offered_for_by_its_user_and_root_alone() {
        let listener = TcpListener::bind("[::1]:0").unwrap();
        let (connector, accepted, tuple) = connection(&listener);
        let (fd, uid) = (accepted.as_raw_fd(), crate::sys::process::euid());
        let cookie = net::cookie(connector.as_raw_fd()).unwrap();
        assert!(is_connectors(fd, &tuple, cookie, uid));
        assert!(is_connectors(fd, &tuple, cookie, 0));
        assert!(!is_connectors(fd, &tuple, cookie, uid + 1));
        assert!(!is_connectors(fd, &tuple, cookie + 1, uid));
        let made = connector.as_raw_fd();
        let unasked = || panic!("it shows itself as its user's");
        assert_eq!(is_acceptors(made, &tuple, uid, unasked), Ok(()));
        assert_eq!(is_acceptors(made, &tuple, uid + 1, unasked), Err(Reason::OtherUser));
        drop(accepted);
        drop(connector);
        let turned = Tuple { connector: tuple.acceptor, acceptor: ([0; 16], 9).into() };
        assert_eq!(is_acceptors(fd, &turned, uid, unasked), Err(Reason::Unproven));
    }

    #[test]
    fn who_listened_as_root_and_gave_that_up_has_its_own_sockets_alone() {
        if crate::sys::process::euid() != 0 {
            eprintln!("not run: another user's socket needs root");
            return;
        }
        const OWNER: u32 = 54321;
        let listener = TcpListener::bind("[::1]:0").unwrap();
        let connector = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        // A socket is of the user that the thread accepts as.
        let accept = || {
            // SAFETY: no pointers; it is this thread's own.
            unsafe { libc::syscall(libc::SYS_setfsuid, OWNER) };
            listener.accept().unwrap().0
        };
        let accepted = std::thread::scope(|scope| scope.spawn(accept).join().unwrap());
        let tuple = Tuple::of_accepted(accepted.as_raw_fd()).unwrap();
        let may = |now| is_acceptors(connector.as_raw_fd(), &tuple, 0, || now);
        assert_eq!((may(Some(0)), may(Some(OWNER))), (Ok(()), Ok(())));
        assert_eq!(may(Some(OWNER + 1)), Err(Reason::Unproven), "it is another user's");
        assert_eq!(may(None), Err(Reason::Unproven));
    }
}
