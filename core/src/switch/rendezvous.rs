//! What connectors leave at a listener's rendezvous: an intent before they connect over TCP, and then what they are
//! bound to, the two addresses and the session's segment (design 2).

use super::policy::{self, Relation};
use super::tuple::{Introduction, Tuple};
use crate::sys::{file, packet, poll, process, sock_diag, time, Errno, Fd};
use smallvec::SmallVec;

/// How long (ns) to look for that segment before sleeping: the connector is about to send it, and to be
/// woken takes longer.
const LOOK_TIME: u64 = 50_000;
/// Longest wait (ns) for connectors between their intent and the segment that follows at once: they may
/// have lost their processor in between.
pub(super) const BOUND_WAIT: u64 = 250_000_000;
/// So much of it at a time: this host may stand still, which then takes no more of the wait.
const BOUND_SLICE: u64 = 10_000_000;

/// A session that arrived before its connection was accepted.
pub(super) struct Bound {
    pub from: Introduction,
    pub segment: Fd,
    /// False: its user may not share memory with us, and is to be told.
    pub admitted: bool,
    pub connector: Relation,
}

impl Bound {
    /// False if the connection with these addresses belongs to another socket than the one that
    /// made the offer: its port was used again.
    pub(super) fn is_of(&self, tuple: &Tuple, accepted: Fd) -> bool {
        match sock_diag::lookup(accepted, tuple.connector, tuple.acceptor) {
            // An inode of zero: the connector closed already, but the connection is still its own.
            Ok(Some(owner)) => owner.inode == 0 || u64::from(owner.inode) == self.from.inode,
            Ok(None) | Err(_) => true,
        }
    }
}

/// A connector that announced itself.
pub(super) struct Intent {
    connection: Fd,
    admitted: bool,
    connector: Relation,
}

pub(super) type Intents = SmallVec<[Intent; 4]>;

impl Intent {
    /// Of a connection that was accepted at the rendezvous, and is the result's to close.
    pub(super) fn of(connection: Fd) -> Option<Intent> {
        let Ok((pid, uid)) = packet::peer_credentials(connection) else {
            file::close(connection);
            return None;
        };
        let admitted = policy::may_share_with(uid);
        if !admitted {
            log::info!("a connector of user {uid} may not share memory with us (allow_users)");
        }
        Some(Intent { connection, admitted, connector: Relation::to(pid, uid) })
    }

    /// Adds what it is bound to, if that came. True: it is still to come. False also if the connector gave up, or sent
    /// nonsense.
    fn is_late(&self, waiting: &mut Vec<Bound>) -> bool {
        let mut buffer = [0u8; Introduction::ENCODED + 1];
        match packet::receive(self.connection, &mut buffer) {
            Ok((n, Some(segment))) => {
                let &Intent { admitted, connector, .. } = self;
                match Introduction::decode(&buffer[..n]) {
                    Some(from) => waiting.push(Bound { from, segment, admitted, connector }),
                    None => file::close(segment),
                }
                false
            }
            Err(Errno(libc::EAGAIN)) => true,
            Ok((_, None)) | Err(_) => false,
        }
    }
}

impl Drop for Intent {
    fn drop(&mut self) {
        file::close(self.connection);
    }
}

/// Adds what the connectors are bound to, and waits for it until that `is_enough`, `left` ns at most, of which it takes what
/// it needed. Those that are left come late; none are if the time is up.
pub(super) fn receive(
    intents: &mut Intents,
    waiting: &mut Vec<Bound>,
    left: &mut u64,
    is_enough: impl Fn(&[Bound]) -> bool,
) {
    let start = time::now();
    loop {
        intents.retain(|intent| intent.is_late(waiting));
        if intents.is_empty() || is_enough(waiting) {
            return;
        }
        let before = time::now();
        if before - start < LOOK_TIME {
            process::yield_now();
            continue;
        }
        if *left == 0 {
            return intents.clear();
        }
        let slice = (*left).min(BOUND_SLICE);
        let mut fds: SmallVec<[libc::pollfd; 4]> = intents
            .iter()
            .map(|intent| libc::pollfd { fd: intent.connection, events: libc::POLLIN, revents: 0 })
            .collect();
        let _ = poll::poll(&mut fds, Some(slice), None);
        *left -= (time::now() - before).min(slice);
    }
}
