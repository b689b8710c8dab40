//! Sends over TCP, in the peer's stead, what the peer is to send again.
//!
//! This end recalls what cannot be read here ([`detach`](crate::switch::back_to_tcp::detach)), and the peer sends it
//! again as soon as it looks. A peer that computes, or waits for something else, does not look. The kernel may lend
//! this end the peer's socket, as it lends the peer's memory for RDMA. Then this end sends in the peer's name, and the
//! word of the direction says so. Bytes that do not fit into the kernel's buffers wait for the peer's next call. So do
//! all bytes where the kernel refuses.

use crate::provider::shm::FINISHED;
use crate::registry;
use crate::session::resent;
use crate::switch::anchor::behind;
use crate::switch::anchor::returning;
use crate::switch::back_to_tcp::resend::{AnchorWriter, Resent};
use crate::switch::endpoint::flag;
use crate::switch::socket::structure::Structure;
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::Stream;
use crate::sys::closing::Lent;
use crate::sys::thread::own_tid;
use crate::sys::{file, net, process, sock_diag, sockets_of, time, Errno, Fd};
use smallvec::SmallVec;
use std::sync::atomic::Ordering::{Acquire, SeqCst};

/// How long (ns) this end leaves the resend to the peers. Peers that sleep on the connection need less. After that this
/// end sends in their stead, and a peer that is killed later need not send any more.
const MOMENT: u64 = 2_000_000;
/// How long (ns) this end tries again where the sender is in the middle of something, or the kernel has no room.
const ATTEMPTS_END: u64 = 40_000_000;
const NAP: u64 = 1_000_000;

/// The peers' sockets. This process has them until what it recalls is sent. So a peer that is killed meanwhile leaves
/// the kernel's connection open.
#[derive(Default)]
pub(in crate::switch) struct PeerSockets(SmallVec<[(Identity, PeerSocket); 4]>);

/// The [identity](file::identity) of this end's socket.
type Identity = (u64, u64);

impl PeerSockets {
    /// Borrows, before the recall, the peers' sockets of connections that have unread bytes, or that end. Each socket
    /// comes with one of its descriptors. This waits up to [`ATTEMPTS_END`] for processes that are dying.
    pub(in crate::switch) fn of<'a>(connections: impl Iterator<Item = (&'a Socket, Fd)>) -> Self {
        let until = time::now() + ATTEMPTS_END;
        let mut found = Self::default();
        let on_san = connections.filter(|(socket, _)| socket.phase() == phase::SAN);
        for (stream, anchor) in on_san.filter_map(|(s, anchor)| Some((s.stream()?, anchor))) {
            if may_be_lent(&stream) && is_unread(&stream) {
                let identity = file::identity(anchor).ok();
                found.0.extend(identity.and_then(|of| Some((of, lend(anchor, of, until)?))));
            }
        }
        found
    }

    fn take(&mut self, of: Identity) -> Option<PeerSocket> {
        let at = self.0.iter().position(|(identity, _)| *identity == of)?;
        Some(self.0.swap_remove(at).1)
    }
}

/// One peer's socket. No fork comes while this value is made or dropped, so no fork child has the socket.
struct PeerSocket(Option<Lent>);

impl PeerSocket {
    fn fd(&self) -> Option<Fd> {
        self.0.as_ref().map(Lent::fd)
    }
}

impl Drop for PeerSocket {
    fn drop(&mut self) {
        let _structure = no_fork();
        self.0 = None;
    }
}

/// No fork child comes to be while the caller holds the returned lock.
fn no_fork() -> Option<Structure> {
    (!process::is_borrowed()).then(Structure::lock)
}

/// Sees to it that unread bytes come again, after connections went back for a program that cannot read from the
/// segment. Each socket comes with one of its descriptors.
pub(in crate::switch) fn ensure_resent<'a>(
    returned: impl Iterator<Item = (&'a Socket, Fd)>,
    mut lent: PeerSockets,
) {
    let streams = returned.filter_map(|(socket, anchor)| Some((socket.stream()?, anchor)));
    let mut due: SmallVec<[Due; 4]> = streams
        .filter(|(stream, _)| may_be_lent(stream) && look_for_rest(stream))
        .filter_map(|(stream, anchor)| {
            let identity = file::identity(anchor).ok()?;
            Some(Due { stream, anchor, identity, theirs: lent.take(identity) })
        })
        .collect();
    // The other peers need nobody to send in their stead.
    drop(lent);
    let started = time::now();
    while !due.is_empty() {
        time::sleep(NAP);
        let passed = time::now() - started;
        due.retain(|one| one.go_on(passed));
    }
}

/// True if the kernel shows which socket is the peer's.
fn may_be_lent(stream: &Stream) -> bool {
    stream.endpoint.has(flag::PEER_IN_SIGHT)
}

/// True if unread bytes lie here, or the stream ends.
fn is_unread(stream: &Stream) -> bool {
    stream.has_unread() || stream.peer().sending.0.finished.load(Acquire) & FINISHED != 0
}

/// True if the peer has to send again what lies here, or the end of its stream, and has not looked yet.
fn look_for_rest(stream: &Stream) -> bool {
    let is_replayed = || stream.peer().sending.0.direction.state().replayed;
    is_recalled(stream) && !is_replayed() && is_unread(stream)
}

/// True if this end asked the peer to send again, and the peer has not done so.
fn is_recalled(stream: &Stream) -> bool {
    let word = stream.peer().sending.0.direction.state();
    word.recalled && !word.left
}

/// A connection of which something is to come again.
struct Due<'a> {
    stream: Stream<'a>,
    anchor: Fd,
    identity: Identity,
    theirs: Option<PeerSocket>,
}

impl Due<'_> {
    /// Does what is due after `passed` ns. True if more is to be done.
    fn go_on(&mut self, passed: u64) -> bool {
        if !is_recalled(&self.stream) {
            return false;
        }
        if passed < MOMENT {
            return true;
        }
        let goes_on = match self.send() {
            Some(Resent::Unknown | Resent::Part) => passed < ATTEMPTS_END,
            Some(Resent::All) | None => false,
        };
        if !goes_on {
            // Only so many sockets are lent at a time, and the next connection may need one.
            self.theirs = None;
        }
        goes_on
    }

    /// Sends over the peer's socket as much as there is room for. `None`: the kernel does not lend the socket.
    fn send(&mut self) -> Option<Resent> {
        if self.theirs.is_none() {
            // What the peer sent came after the recall began, or too many sockets were lent then.
            self.theirs = lend(self.anchor, self.identity, 0);
        }
        let theirs = self.theirs.as_ref()?.fd()?;
        let sent = send_over(&self.stream, theirs);
        if sent != Resent::Unknown {
            log::info!("fd {}: sent in the peer's stead", self.anchor);
        }
        Some(sent)
    }
}

/// Sends as far as there is room. `Unknown`: the sender sends at this moment, or another process does in its stead.
fn send_over(stream: &Stream, theirs: Fd) -> Resent {
    let direction = &stream.peer().sending.0.direction;
    // The lock comes before the claim, because the claim must not last.
    let Ok(_held) = stream.lock_receive() else { return Resent::Unknown };
    // If a process died in here, the peer has to find out: no other process claims again.
    let stands_in = &stream.own().receiving.0.stands_in;
    if stands_in.compare_exchange(0, own_tid(), SeqCst, SeqCst).is_err() {
        return Resent::Unknown;
    }
    let sent = if direction.claim() {
        let sent = send_left(stream, theirs);
        direction.release();
        sent
    } else {
        Resent::Unknown
    };
    stands_in.store(0, SeqCst);
    sent
}

/// Sends as far as the kernel has room. The caller has the receive lock.
fn send_left(stream: &Stream, to: Fd) -> Resent {
    let sending = &stream.peer().sending.0;
    // This comes before the look at the bytes, so that all bytes of a finished stream are there.
    let is_finished = sending.finished.load(Acquire) & FINISHED != 0;
    let turned_at = sending.turned_at.load(Acquire);
    let Some(skip) = resent(net::bytes_written(to), turned_at, true) else {
        return Resent::Unknown;
    };
    let mut writer = AnchorWriter::new(to, skip);
    let valid = stream.each_left(|bytes| writer.put(bytes));
    writer.push();
    if valid.is_ok() && writer.failed() == Some(Errno(libc::EAGAIN)) {
        return Resent::Part;
    }
    if valid.is_ok() && writer.failed().is_none() && is_finished {
        let _ = net::shutdown(to, libc::SHUT_WR);
    }
    Resent::All
}

/// Borrows the socket of the connection's other end, which a process with this library has open. `of`: this end's
/// socket. Until `until` (clock, ns) this waits for a process that is dying. `None` also where the kernel does not
/// count the bytes that are sent there.
fn lend(anchor: Fd, of: Identity, until: u64) -> Option<PeerSocket> {
    let ours = net::unmapped(net::local_address(anchor).ok()?);
    let theirs = net::unmapped(net::peer_address(anchor).ok()?);
    loop {
        let inode = sock_diag::lookup(anchor, theirs, ours).ok()??.inode;
        if inode == 0 {
            return None;
        }
        match lend_by_any((of.0, u64::from(inode))) {
            Lending::Lent(lent) => return Some(lent),
            // A killed process loses its descriptors some time before the kernel closes the sockets behind them.
            Lending::Nobody if time::now() < until => time::sleep(NAP),
            Lending::Nobody | Lending::Refused => return None,
        }
    }
}

/// What became of a wish for another process's socket.
enum Lending {
    Lent(PeerSocket),
    Refused,
    /// No process that publishes itself has a descriptor of the socket.
    Nobody,
}

fn lend_by_any(identity: Identity) -> Lending {
    let is_it = |fd| file::is_socket(fd) && file::identity(fd) == Ok(identity);
    let mut lending = Lending::Nobody;
    registry::each_published(|pid| {
        if matches!(lending, Lending::Lent(_)) {
            return;
        }
        let Some(number) = sockets_of::socket_in(pid, identity.1) else { return };
        let _structure = no_fork();
        match process::descriptor_of(pid, number) {
            // The number may be another file's by now.
            Ok(fd) => {
                let lent = Lent::new(fd, |fd| is_it(fd) && net::bytes_written(fd).is_some());
                lending = match lent {
                    Some(lent) => Lending::Lent(PeerSocket(Some(lent))),
                    None => Lending::Refused,
                };
            }
            Err(Errno(libc::ESRCH | libc::EBADF)) => {}
            Err(_) => lending = Lending::Refused,
        }
    });
    lending
}

/// Ends the peer's sending in this end's stead, before this end sends anything over TCP. False while the peer sends. If
/// the peer died while it sent, this end takes the direction back, whichever thread the peer named.
pub(in crate::switch) fn end_standing_in(stream: &Stream, anchor: Fd) -> bool {
    if !returning::is_stood_in_for(stream) {
        return true;
    }
    let thread = stream.peer().receiving.0.stands_in.load(SeqCst);
    let is_known = stream.endpoint.has(flag::PEER_IN_SIGHT) && thread != 0;
    let is_dead = is_known && !process::lives(thread) || behind::is_gone(anchor);
    if is_dead {
        stream.own().sending.0.direction.release();
    }
    is_dead
}
