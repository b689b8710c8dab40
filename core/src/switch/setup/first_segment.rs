//! What an end finds out about its connection's first segment. Its *time stamp* is a name by which the ends find each
//! other whatever addresses they see. Its sequence *number* proves that they have one connection
//! ([`proof`](crate::proof)).
//!
//! The acceptor's kernel keeps first segments, if it is asked to before they come. An end that has not got its
//! connection's learns the number from a segment that it sends itself ([`sent_segment`]). The first bytes that a
//! connector sends are the best for that, because nothing else is under way then. Only an end that may need a proof does
//! so.

use crate::fabric;
use crate::provider::shm::Role;
use crate::reason::Reason;
use crate::switch::buffers::Buffers;
use crate::switch::policy;
use crate::switch::socket::Socket;
use crate::sys::{net, sent_segment, syn, time, Errno, Fd, Result};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const MILLISECOND: u64 = 1_000_000;
/// So many sends are tried to learn the number.
const TRIES: u8 = 16;

/// The program has the kernel keep first segments for itself. To read one takes it away.
static ARE_THE_PROGRAMS: AtomicBool = AtomicBool::new(false);

/// The program sets the option by which the kernel keeps them.
pub(in crate::switch) fn leave_to_program() {
    ARE_THE_PROGRAMS.store(true, Relaxed);
}

/// True if an end may have to prove which connection it has, whatever the socket's address is.
fn may_be_doubted() -> bool {
    policy::crosses_namespaces() || fabric::may_exist()
}

/// Connections will be accepted on this one.
pub(in crate::switch) fn keep(listener: Fd, at: &SocketAddr) {
    if ARE_THE_PROGRAMS.load(Relaxed) {
        return;
    }
    if may_be_doubted() || net::may_track_connections(listener, net::unmapped(*at).is_ipv4()) {
        syn::keep(listener);
    }
}

/// The kernel has just begun to make a connection with that peer. The call that made it began at that time (clock, ns).
pub(in crate::switch) fn note_connecting(socket: &Socket, peer: &SocketAddr, began: u64) {
    if policy::crosses_namespaces() {
        let passed = time::now().saturating_sub(began) / MILLISECOND;
        let stamp = syn::stamp_now(socket.anchor()).map(|now| now.wrapping_sub(passed as u32));
        socket.first_segment.note_stamp(stamp);
    }
    let is_ipv4 = net::unmapped(*peer).is_ipv4();
    if may_be_doubted() || net::dialled_address(socket.anchor(), is_ipv4) != Ok(None) {
        socket.first_segment.want_number(TRIES);
    }
}

/// Reads what the kernel kept of a connection that this process accepted. The kernel tells it once.
fn read_kept(socket: &Socket) {
    let known = &socket.first_segment;
    if known.number().is_some() || ARE_THE_PROGRAMS.load(Relaxed) {
        return;
    }
    if let Some(kept) = syn::kept(socket.anchor()) {
        known.note_stamp(kept.stamp);
        known.note_number(kept.first_byte);
    }
}

/// The time stamp of a connection that this process made.
pub(super) fn stamp_of_connected(socket: &Socket) -> Option<u32> {
    socket.first_segment.stamp()
}

/// The time stamp of a connection that this process accepted.
pub(super) fn stamp_of_accepted(socket: &Socket) -> Option<u32> {
    if !policy::crosses_namespaces() {
        return None;
    }
    read_kept(socket);
    socket.first_segment.stamp()
}

/// The number that proves which connection it is.
///
/// # Errors
/// [`Reason::Unproven`] if it is not known. Then the next sends are tried. [`Reason::Quiet`] of a connector that has sent
/// nothing yet.
pub(super) fn number(socket: &Socket, role: Role) -> std::result::Result<u32, Reason> {
    if role == Role::Acceptor {
        read_kept(socket);
    }
    let known = &socket.first_segment;
    known.number().ok_or_else(|| {
        known.want_number(TRIES);
        match net::bytes_written(socket.anchor()) {
            Some(0) if role == Role::Connector => Reason::Quiet,
            _ => Reason::Unproven,
        }
    })
}

/// Sends over TCP bytes that are to show the number. `None`: they go as all others. Of those that do not fit into one
/// segment some go ahead, or none if `all` are wanted.
pub(super) fn send(
    socket: &Socket,
    from: &Buffers,
    flags: i32,
    all: bool,
) -> Option<Result<usize>> {
    const KNOWN_FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let (fd, known) = (socket.anchor(), &socket.first_segment);
    look_again(socket);
    let role = socket.role().filter(|_| known.wants_number() && flags & !KNOWN_FLAGS == 0)?;
    if role == Role::Acceptor {
        read_kept(socket);
    }
    if known.number().is_some() || from.remaining() == 0 {
        return None;
    }
    known.note_try();
    let room = sent_segment::goes_at_once(fd).filter(|room| !all || from.remaining() <= *room)?;
    match from.with_pieces(room, |pieces| sent_segment::send(fd, pieces)) {
        Ok((sent, shown)) => {
            if let Some(shown) = shown {
                known.note_shown(shown.position);
                let number = match role {
                    Role::Connector => Some(shown.own),
                    Role::Acceptor => shown.peers,
                };
                number.into_iter().for_each(|number| known.note_number(number));
            }
            Some(Ok(sent))
        }
        // The kernel raises the signal, too. It does not take the control message, or has no room by now.
        Err(Errno(libc::EPIPE | libc::EINVAL | libc::EPERM | libc::EAGAIN)) => None,
        Err(e) => Some(Err(e)),
    }
}

/// Takes away what the kernel showed again of a segment, which it had to send again.
pub(super) fn look_again(socket: &Socket) {
    let known = &socket.first_segment;
    if known.is_shown() && !sent_segment::forget(socket.anchor(), known.shown_until()) {
        known.end_showing();
    }
}
