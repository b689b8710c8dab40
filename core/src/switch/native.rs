//! Back to plain TCP: a session that was offered and that nobody took.
//!
//! One word in the segment decides (pending, then taken or withdrawn), so no byte is lost or
//! doubled: until it is taken, everything sent lies in our send buffer alone, because without an
//! answer there is no credit for messages (A1).

use super::endpoint::flag;
use super::epoll;
use super::far;
use super::options;
use super::socket::{phase, Socket};
use super::stream::Stream;
use super::structure::Structure;
use crate::provider::shm::State;
use crate::reason::Reason;
use crate::registry::{self, Provider};
use crate::sys::{file, net, poll, sock_diag, thread, time, Errno, Fd, Result};
use std::sync::atomic::Ordering::Relaxed;

/// Withdraws the offer and sends what was buffered over the anchor; false if it was taken.
pub(super) fn withdraw(socket: &Socket) -> bool {
    let Some(stream) = socket.stream() else { return false };
    if !stream.fabric.is_none_or(|link| far::may_withdraw(&stream, link)) {
        return false;
    }
    if !stream.segment.decide(State::Withdrawn) && stream.segment.state() != State::Refused {
        return stream.segment.state() == State::Withdrawn;
    }
    let reason = match stream.segment.state() {
        State::Refused => Reason::RefusedByPeer,
        _ => Reason::Withdrawn,
    };
    // A sender that is at it finds the phase changed when it gets the lock.
    let Ok(held) = stream.lock_send() else { return false };
    if socket.phase() == phase::NATIVE {
        // Another thread was first: what was buffered must not be sent twice.
        return true;
    }
    options::give_back_sending(&stream, socket.anchor());
    options::give_back_receiving(&stream, socket.anchor());
    let sent = replay(socket, &stream);
    if let Err(e) = sent {
        log::warn!("fd {}: replaying onto TCP failed: {e}", socket.anchor());
    }
    if stream.endpoint.has(flag::SEND_SHUT) {
        let _ = net::shutdown(socket.anchor(), libc::SHUT_WR);
    }
    let mut structure = Structure::lock();
    socket.set_phase(phase::NATIVE);
    epoll::to_kernel(&mut structure, socket);
    drop(structure);
    drop(held);
    socket.set_reason(reason);
    socket.statistics().set_provider(Provider::Tcp);
    registry::count_return(reason);
    log::info!("fd {}: provider=tcp reason={}", socket.anchor(), reason.code());
    true
}

/// Sends all that lies in the send buffer over the anchor. Send lock.
fn replay(socket: &Socket, stream: &Stream) -> Result<()> {
    let tail = stream.endpoint.send.tail.load(Relaxed);
    let mut head = 0;
    while head < tail {
        let (from, n) = stream.sent_at(head, (tail - head) as usize);
        // SAFETY: the stretch is mapped, and nobody else writes to it while we hold the lock
        // (a hostile peer can only change the bytes that it is about to be sent).
        send_all(socket.anchor(), unsafe { std::slice::from_raw_parts(from, n) }, 0)?;
        head += n as u64;
    }
    Ok(())
}

/// Sends all of `bytes` over an anchor, waiting for room.
pub(super) fn send_all(anchor: Fd, mut bytes: &[u8], flags: i32) -> Result<()> {
    while !bytes.is_empty() {
        match net::send(anchor, bytes, flags | libc::MSG_DONTWAIT) {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno(libc::EAGAIN)) => {
                let mut fds = [libc::pollfd { fd: anchor, events: libc::POLLOUT, revents: 0 }];
                let _ = poll::poll(&mut fds, None, thread::nap_mask());
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// How long (ns) after a connection was accepted its session may still be taken: an acceptor may
/// have lost its processor in between.
const GRACE: u64 = 250_000_000;
/// The same where a process with this library has the connection, and so is about to take it.
const GRACE_OF_OURS: u64 = 1_000_000_000;

/// Looks after an offer that nobody took yet. Once the kernel says the connection was accepted,
/// and a later scan finds it still not taken, the acceptor has no shim (A4's two scans).
pub(super) fn scan(socket: &Socket) {
    let Some(stream) = socket.stream() else { return };
    if stream.segment.state() == State::Refused {
        withdraw(socket);
        return;
    }
    if let Some(link) = stream.fabric {
        return far::scan(&stream, link);
    }
    let acceptor = (|| {
        let ours = net::unmapped(net::local_address(socket.anchor()).ok()?);
        let theirs = net::unmapped(net::peer_address(socket.anchor()).ok()?);
        sock_diag::lookup(socket.anchor(), theirs, ours).ok()?.map(|owner| u64::from(owner.inode))
    })();
    let unanswered = &stream.endpoint.unanswered;
    // Without an answer, time alone decides: TCP is always right, if slower.
    if acceptor == Some(0) {
        return unanswered.start_anew();
    }
    let waited = unanswered.waited(time::now());
    let is_ours = || acceptor.is_some_and(|inode| is_in_our_hands(socket, inode));
    if waited >= GRACE_OF_OURS || (waited >= GRACE && !unanswered.is_known_to_be_ours(is_ours)) {
        let ms = waited / 1_000_000;
        log::info!("fd {}: accepted {ms} ms ago, and the session not taken", socket.anchor());
        withdraw(socket);
    }
}

/// True if a process with this library has the socket open.
fn is_in_our_hands(socket: &Socket, inode: u64) -> bool {
    let Ok((sockets, _)) = file::identity(socket.anchor()) else { return false };
    let mut found = false;
    registry::each_published(|pid| {
        found = found || file::number_in(pid, (sockets, inode)).is_some();
    });
    found
}

/// Before the last close of a connector whose offer nobody took: true if it is on TCP now. Who will
/// accept is not known, and nobody is left to find out that the acceptor has no shim; over TCP the
/// bytes reach either kind.
pub(super) fn withdraw_at_end(socket: &Socket) -> bool {
    socket.is_pending() && withdraw(socket)
}
