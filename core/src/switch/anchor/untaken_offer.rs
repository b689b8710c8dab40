//! A session that was offered over a fabric and that nobody took: the connection goes back to plain TCP.
//!
//! One word in the segment decides (pending, then taken or withdrawn), so no byte is lost or
//! doubled: until it is taken, everything sent lies in our send buffer alone, because without an
//! answer there is no credit for messages (A1).

use crate::provider::shm::State;
use crate::reason::Reason;
use crate::registry::{self, Provider};
use crate::switch::anchor::link;
use crate::switch::anchor::options;
use crate::switch::anchor::watchers;
use crate::switch::endpoint::flag;
use crate::switch::socket::structure::Structure;
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::Stream;
use crate::sys::{net, poll, thread, Errno, Fd, Result};
use std::sync::atomic::Ordering::Relaxed;

/// Withdraws the offer and sends what was buffered over the anchor; false if it was taken.
pub(in crate::switch) fn withdraw(socket: &Socket) -> bool {
    let Some(stream) = socket.stream() else { return false };
    if !stream.fabric.is_some_and(|link| link::may_withdraw(&stream, link)) {
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
    watchers::to_kernel(&mut structure, socket);
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
        let piece = stream.sent_at(head, (tail - head) as usize);
        send_all(socket.anchor(), piece.bytes(), 0)?;
        head += piece.length() as u64;
    }
    Ok(())
}

/// Sends all of `bytes` over an anchor, waiting for room.
pub(in crate::switch) fn send_all(anchor: Fd, mut bytes: &[u8], flags: i32) -> Result<()> {
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

/// Looks after an offer that nobody took yet.
pub(in crate::switch) fn scan(socket: &Socket) {
    let Some(stream) = socket.stream() else { return };
    if stream.segment.state() == State::Refused {
        withdraw(socket);
    } else if let Some(link) = stream.fabric {
        link::scan(&stream, link);
    }
}

/// Before the last close of a connector whose offer nobody took: true if it is on TCP now. Who will
/// accept is not known, and nobody is left to find out that the acceptor has no shim; over TCP the
/// bytes reach either kind.
pub(in crate::switch) fn withdraw_at_end(socket: &Socket) -> bool {
    socket.is_pending() && withdraw(socket)
}
