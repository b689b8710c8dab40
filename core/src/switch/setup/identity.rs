//! Whether two sockets are the two ends of one connection. Their addresses name a connection, but where the kernel
//! translates addresses (NAT) two connections may look alike, each from one of its ends. So the acceptor's end looks at
//! three things:
//!
//! 1. The socket that the kernel has at the other end's addresses must be the very one that the connector offers for
//!    (SO_COOKIE, sock_diag), and its user's.
//! 2. The kernel's connection tracking must not say that the connection was made to another address.
//! 3. Where it tracks the connection at all it may have translated the connector's address, which it tells nobody. Then
//!    experiments must show that a segment which this end sends arrives at that socket.
//!
//! Of an acceptor the connector asks only whether it is the user's who has the socket there. Where addresses are
//! translated, or the ends are in different network namespaces, none of this is asked: coins show it
//! ([`apart`](super::apart)). Any other doubt keeps a connection on TCP.

use crate::reason::Reason;
use crate::session::Shown;
use crate::switch::socket::negotiation::Trials;
use crate::switch::socket::tuple::Tuple;
use crate::sys::sock_diag::{self, Owner};
use crate::sys::{net, segments, Errno, Fd};
use std::net::SocketAddr;

/// So many experiments have to show it. In each one a socket of another connection would have to receive a single segment
/// within a few microseconds, by chance.
const ENOUGH: u32 = 24;
/// At most so many may show nothing of a segment that was sent: it may arrive late.
const MOST_MISSES: u32 = 3;

/// The address to which an accepted connection was made. `None` where the kernel does not track the connection, and so
/// translates nothing.
///
/// # Errors
/// [`Reason::Unproven`] if the kernel does not tell.
pub(super) fn dialled(accepted: Fd, tuple: &Tuple) -> Result<Option<SocketAddr>, Reason> {
    let dialled = net::dialled_address(accepted, tuple.acceptor.is_ipv4());
    dialled.map(|address| address.map(net::unmapped)).map_err(|_| Reason::Unproven)
}

/// True if the acceptor's socket `accepted` has its other end in the socket with that cookie, as far as the addresses
/// tell, and a process of user `uid` may have it.
pub(super) fn is_connectors(accepted: Fd, tuple: &Tuple, cookie: u64, uid: u32) -> bool {
    let found = look(accepted, tuple.connector, tuple.acceptor);
    matches!(found, Ok(Some(owner)) if owner.cookie == cookie && may_have(uid, owner))
}

/// Whether a process of user `uid` may have the acceptor's end of the connection of the connector's socket `made`.
///
/// # Errors
/// [`Reason::Unproven`] if the kernel shows no such end here, [`Reason::OtherUser`] if it is another user's,
/// [`Reason::OutOfMemory`] without a descriptor to ask by.
pub(super) fn is_acceptors(made: Fd, tuple: &Tuple, uid: u32) -> Result<(), Reason> {
    match look(made, tuple.acceptor, tuple.connector)? {
        None => Err(Reason::Unproven),
        Some(owner) if may_have(uid, owner) => Ok(()),
        Some(_) => Err(Reason::OtherUser),
    }
}

/// The connection whose own address is `local` and whose peer is `peer`, in the network namespace of `like`.
///
/// # Errors
/// [`Reason::OutOfMemory`] without a descriptor to ask by, [`Reason::Unproven`] if the kernel does not tell.
pub(super) fn look(like: Fd, local: SocketAddr, peer: SocketAddr) -> Result<Option<Owner>, Reason> {
    match sock_diag::lookup(like, local, peer) {
        Ok(found) => Ok(found.filter(|owner| owner.is_connected())),
        Err(Errno(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS)) => {
            Err(Reason::OutOfMemory)
        }
        Err(_) => Err(Reason::Unproven),
    }
}

/// A process of root may have been given anybody's socket; one that root started shows itself as root's.
fn may_have(uid: u32, owner: Owner) -> bool {
    uid == 0 || owner.uid == uid
}

/// Has the acceptor's socket send an acknowledgement that is due anyway, and looks whether it arrives at the connector's.
pub(super) fn experiment(accepted: Fd, tuple: &Tuple, trials: &mut Trials) -> Shown {
    let arrived = || {
        let owner = look(accepted, tuple.connector, tuple.acceptor).ok().flatten()?;
        owner.segments_received.filter(|_| owner.cookie == trials.cookie)
    };
    let (Some(sent), Some(before)) = (segments::sent(accepted), arrived()) else {
        return Shown::Different;
    };
    if !segments::acknowledge(accepted) {
        return Shown::NotYet;
    }
    let (Some(sent_now), Some(after)) = (segments::sent(accepted), arrived()) else {
        return Shown::Different;
    };
    judge(trials, sent_now.wrapping_sub(sent), after.wrapping_sub(before))
}

/// So many segments were sent, and so many arrived in the same moment.
fn judge(trials: &mut Trials, sent: u32, arrived: u32) -> Shown {
    match (sent, arrived) {
        // Nothing was due, or another thread sends as well.
        (0, _) | (2.., _) => {}
        (1, 1) => trials.shown += 1,
        _ => trials.missed += 1,
    }
    if trials.missed > MOST_MISSES {
        Shown::Different
    } else if trials.shown >= ENOUGH {
        Shown::Same
    } else {
        Shown::NotYet
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
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

    fn ask_and_answer(connector: &mut TcpStream, accepted: &mut TcpStream) {
        connector.write_all(b"request").unwrap();
        accepted.read_exact(&mut [0; 7]).unwrap();
    }

    #[test]
    fn experiments_tell_the_other_end_from_another_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut connector, mut accepted, tuple) = connection(&listener);
        let (other, _other_end, other_tuple) = connection(&listener);
        let cookie = net::cookie(connector.as_raw_fd()).unwrap();
        let other_cookie = net::cookie(other.as_raw_fd()).unwrap();
        let mut result = [Shown::NotYet, Shown::NotYet];
        let mut trials = [Trials::with(cookie), Trials::with(other_cookie)];
        for _ in 0..10_000 {
            for (at, tuple) in [tuple, other_tuple].iter().enumerate() {
                ask_and_answer(&mut connector, &mut accepted);
                if result[at] == Shown::NotYet {
                    result[at] = experiment(accepted.as_raw_fd(), tuple, &mut trials[at]);
                }
                if at == 0 && result[at] == Shown::Different {
                    // On a busy machine segments may arrive late.
                    (result[at], trials[at]) = (Shown::NotYet, Trials::with(cookie));
                }
                accepted.write_all(b"answer").unwrap();
                connector.read_exact(&mut [0; 6]).unwrap();
            }
            if !result.contains(&Shown::NotYet) {
                break;
            }
        }
        assert_eq!(result, [Shown::Same, Shown::Different]);
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
        assert_eq!(is_acceptors(made, &tuple, uid), Ok(()));
        assert_eq!(is_acceptors(made, &tuple, uid + 1), Err(Reason::OtherUser));
        drop(accepted);
        drop(connector);
        let turned = Tuple { connector: tuple.acceptor, acceptor: ([0; 16], 9).into() };
        assert_eq!(is_acceptors(fd, &turned, uid), Err(Reason::Unproven));
    }

    #[test]
    fn late_segments_are_forgiven_a_few_times() {
        let mut trials = Trials::with(1);
        for _ in 0..MOST_MISSES {
            assert_eq!(judge(&mut trials, 1, 0), Shown::NotYet);
            assert_eq!(judge(&mut trials, 0, 5), Shown::NotYet);
        }
        for _ in 1..ENOUGH {
            assert_eq!(judge(&mut trials, 1, 1), Shown::NotYet);
        }
        assert_eq!(judge(&mut trials, 1, 1), Shown::Same);
        assert_eq!(judge(&mut trials, 1, 2), Shown::Different);
    }
}
