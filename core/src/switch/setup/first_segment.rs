//! What an end finds out about its connection's first segment. Its *time stamp* is a name by which the ends find each
//! other whatever addresses they see. Its sequence *number*, and that of the acceptor's first segment, prove that they have
//! one connection ([`proof`](crate::proof)).
//!
//! The acceptor's kernel keeps first segments, if it is asked to before they come. An end learns both numbers from a
//! segment that it sends itself ([`sent_segment`]). The first bytes that it sends are the best for that, because nothing
//! else is under way then, and some ends send nothing more. To learn them takes a dozen system calls. So only an end
//! that may need a proof does that. In a process whose connections are short it waits until its connection may
//! [live](lives).

use super::identity;
use super::lives;
use crate::fabric;
use crate::proof::FirstNumbers;
use crate::provider::shm::Role;
use crate::reason::Reason;
use crate::switch::buffers::Buffers;
use crate::switch::policy;
use crate::switch::socket::Socket;
use crate::sys::sent_segment::{self, SentShown, ShownSegment};
use crate::sys::{file, net, syn, time, Errno, Fd, Result};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

const MILLISECOND: u64 = 1_000_000;
/// So many sends are tried to learn the numbers.
const TRIES: u8 = 16;
/// A send of so many bytes is tried at once: it may begin a stream, in which each later segment waits for others.
const LARGE: usize = 4 << 10;

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

/// Whether the kernel may track connections.
mod tracking {
    pub(super) const UNKNOWN: u8 = 0;
    pub(super) const NONE: u8 = 1;
    pub(super) const SOME: u8 = 2;
}

/// The program's first socket tells. Where the kernel begins later, connections learn their numbers when they are busy.
#[link_section = "sanshim_words"]
static TRACKING: AtomicU8 = AtomicU8::new(tracking::UNKNOWN);

/// The program has made a TCP socket.
pub(in crate::switch) fn note_socket(fd: Fd) {
    if TRACKING.load(Relaxed) == tracking::UNKNOWN && !policy::is_confined() {
        let may = net::may_track_connections(fd);
        TRACKING.store(if may { tracking::SOME } else { tracking::NONE }, Relaxed);
    }
}

fn may_track() -> bool {
    TRACKING.load(Relaxed) == tracking::SOME
}

/// Connections will be accepted on this one.
pub(in crate::switch) fn keep(listener: Fd) {
    if ARE_THE_PROGRAMS.load(Relaxed) {
        return;
    }
    if may_be_doubted() || may_track() {
        syn::keep(listener);
    }
}

/// True if an end notes the time stamp of its first segment.
pub(in crate::switch) fn has_stamp() -> bool {
    policy::crosses_namespaces()
}

/// The kernel has just begun to make a connection with that peer. The call that made it `began` at that time (clock, ns),
/// which is needed only for [a stamp](has_stamp).
pub(in crate::switch) fn note_connecting(socket: &Socket, peer: &SocketAddr, began: Option<u64>) {
    if let Some(began) = began {
        let passed = time::now().saturating_sub(began) / MILLISECOND;
        let stamp = syn::stamp_now(socket.anchor()).map(|now| now.wrapping_sub(passed as u32));
        socket.first_segment.note_stamp(stamp);
    }
    let is_tracked = || identity::may_be_translated(socket.anchor(), peer);
    if may_be_doubted() || (may_track() && !policy::is_confined() && is_tracked()) {
        socket.first_segment.want_numbers(TRIES);
    }
}

/// The program has just accepted a connection.
pub(in crate::switch) fn note_accepted(socket: &Socket) {
    // Only between hosts the acceptor's number is needed.
    if fabric::may_exist() {
        socket.first_segment.want_numbers(TRIES);
    }
}

/// Reads what the kernel kept of a connection that this process accepted. The kernel tells it once.
fn read_kept(socket: &Socket) {
    let known = &socket.first_segment;
    if known.connectors().is_some() || ARE_THE_PROGRAMS.load(Relaxed) {
        return;
    }
    if let Some(kept) = syn::kept(socket.anchor()) {
        known.note_stamp(kept.stamp);
        known.note_numbers(Some(kept.first_byte), None);
    }
}

/// The time stamp of a connection that this process made.
pub(super) fn stamp_of_connected(socket: &Socket) -> Option<u32> {
    socket.first_segment.stamp()
}

/// The time stamp of a connection that this process accepted.
pub(super) fn stamp_of_accepted(socket: &Socket) -> Option<u32> {
    if !has_stamp() {
        return None;
    }
    read_kept(socket);
    socket.first_segment.stamp()
}

/// What proves on one host which connection it is.
///
/// # Errors
/// [`Reason::Quiet`] of a connector that has sent nothing yet, [`Reason::Pending`] while the next sends are tried, and
/// [`Reason::Unproven`] where none of many showed it.
pub(super) fn number(socket: &Socket, role: Role) -> std::result::Result<FirstNumbers, Reason> {
    if role == Role::Acceptor {
        read_kept(socket);
    }
    let connectors = socket.first_segment.connectors();
    let numbers = connectors.map(|connectors| FirstNumbers { connectors, acceptors: None });
    numbers.ok_or_else(|| why_unknown(socket, role))
}

/// What proves between hosts which connection it is. The acceptor's number is part of it once the acceptor has sent
/// something. Also says whether the peer has.
///
/// # Errors
/// As [`number`].
pub(super) fn numbers(
    socket: &Socket,
    role: Role,
) -> std::result::Result<(FirstNumbers, bool), Reason> {
    let FirstNumbers { connectors, .. } = number(socket, role)?;
    let anchor = socket.anchor();
    let has_peer_sent = net::bytes_received(anchor) != Some(0);
    let acceptors = match role {
        Role::Acceptor if net::bytes_written(anchor) == Some(0) => None,
        _ => Some(socket.first_segment.acceptors().ok_or_else(|| why_unknown(socket, role))?),
    };
    Ok((FirstNumbers { connectors, acceptors }, has_peer_sent))
}

/// Why no number is known.
fn why_unknown(socket: &Socket, role: Role) -> Reason {
    if role == Role::Connector && net::bytes_written(socket.anchor()) == Some(0) {
        return Reason::Quiet;
    }
    match socket.first_segment.wants_numbers() {
        true => Reason::Pending,
        false => {
            socket.first_segment.want_numbers(TRIES);
            Reason::Unproven
        }
    }
}

/// True if a send of so many bytes is to be tried now, or something is to be taken away.
pub(super) fn is_time(socket: &Socket, length: usize) -> bool {
    lives::may_live(socket) || length >= LARGE || socket.first_segment.is_shown()
}

/// Sends over TCP bytes that are to show the numbers. `None`: they go as all others. Of those that do not fit into one
/// segment some go ahead. If `all` are wanted the rest follows, as far as there is room. None go so where that may wait.
pub(super) fn send(
    socket: &Socket,
    from: &Buffers,
    flags: i32,
    all: bool,
) -> Option<Result<usize>> {
    // MSG_MORE is a hint. The segment that goes ahead does not heed it.
    const KNOWN_FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_MORE;
    let (fd, known) = (socket.anchor(), &socket.first_segment);
    look_again(socket);
    let may = known.wants_numbers() && !known.is_shown() && flags & !KNOWN_FLAGS == 0;
    let role = socket.role().filter(|_| may && from.remaining() > 0)?;
    known.note_try();
    if role == Role::Acceptor {
        read_kept(socket);
    }
    let more = flags & libc::MSG_MORE != 0;
    let at_once = sent_segment::goes_at_once(fd, from.remaining(), more)?;
    let length = at_once.length;
    let may_wait = || flags & libc::MSG_DONTWAIT == 0 && !file::is_nonblocking(fd);
    if all && length < from.remaining() && may_wait() {
        return None;
    }
    let result = from.with_pieces(length, |pieces| {
        let there: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        (there == length).then(|| sent_segment::send(fd, pieces, at_once))
    });
    let SentShown { sent, shown, until } = match result? {
        Ok(sent) => sent,
        // The kernel raises the signal, too. It does not take the control message, or has no room by now.
        Err(Errno(libc::EPIPE | libc::EINVAL | libc::EPERM | libc::EAGAIN)) => return None,
        Err(e) => return Some(Err(e)),
    };
    known.note_shown(until);
    if let Some(ShownSegment { own, peers, is_certain }) = shown {
        // Where something comes back at once each time, it comes after what went.
        let peers = Some(peers).filter(|_| is_certain || known.tries() < TRIES / 2);
        let (connectors, acceptors) = match role {
            Role::Connector => (Some(own), peers),
            Role::Acceptor => (peers, Some(own)),
        };
        known.note_numbers(connectors, acceptors);
        if known.connectors().is_some() && !fabric::may_exist() {
            // On one host that is enough.
            known.want_numbers(0);
        }
    }
    Some(Ok(if all { sent + send_rest(fd, from, sent, flags) } else { sent }))
}

/// Sends the rest, or as much of it as the kernel takes. How many bytes.
fn send_rest(fd: Fd, from: &Buffers, sent: usize, flags: i32) -> usize {
    let mut rest = from.clone();
    rest.skip(sent);
    let length = rest.remaining();
    if length == 0 {
        return 0;
    }
    rest.with_pieces(length, |pieces| net::send_from(fd, pieces, flags)).unwrap_or(0)
}

/// Takes away what the kernel showed again of a segment, which it had to send again.
pub(super) fn look_again(socket: &Socket) {
    let known = &socket.first_segment;
    let is_over =
        || policy::is_confined() || !sent_segment::forget(socket.anchor(), known.shown_until());
    if known.is_shown() && is_over() {
        known.end_showing();
    }
}
