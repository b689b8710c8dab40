//! Sends over TCP, in the peer's stead, what the peer is to send again (design 6).
//!
//! What cannot be read here is recalled ([`detach`](super::detach)), and the peer sends it again as soon as it looks. One
//! that computes, or waits for something else, does not look. Where the kernel lends us its socket, as it lends us its
//! memory for RDMA, this end sends in its name, and the word of doorbells says so. What does not fit into the kernel's
//! buffers, and everything where it refuses, waits for the peer's next call.

use super::resend::Behind;
use super::socket::Socket;
use super::stream::Stream;
use super::structure::Structure;
use crate::provider::shm::FINISHED;
use crate::registry;
use crate::sys::thread::own_tid;
use crate::sys::{file, net, process, sock_diag, time, Fd};
use std::sync::atomic::Ordering::{Acquire, SeqCst};

/// How long (ns) the peers are left to look themselves, and a nap of that.
const PEERS_TURN: u64 = 20_000_000;
const NAP: u64 = 1_000_000;

/// After connections went back for who cannot read from the segment: sees to it that what was unread comes. With each
/// socket a descriptor of it.
pub(super) fn see_to<'a>(returned: impl Iterator<Item = (&'a Socket, Fd)> + Clone) {
    let streams = || returned.clone().filter_map(|(socket, fd)| Some((socket.stream()?, fd)));
    let until = time::now() + PEERS_TURN;
    while streams().any(|(stream, _)| is_due(&stream)) {
        if time::now() > until {
            streams().for_each(|(stream, fd)| send_again(&stream, fd));
            break;
        }
        time::sleep(NAP);
    }
}

/// True while the peer is to send again what lies here, or its end, and has not come to it.
fn is_due(stream: &Stream) -> bool {
    let sending = &stream.peer().sending.0;
    let word = sending.doorbells.state();
    let is_more = || {
        let unread = stream.lock_receive().is_ok_and(|_held| stream.available() != Ok(0));
        unread || sending.finished.load(Acquire) & FINISHED != 0
    };
    word.recalled && !word.left && !word.replayed && is_more()
}

/// Sends it, if that is possible.
fn send_again(stream: &Stream, anchor: Fd) {
    let until = time::now() + PEERS_TURN;
    let doorbells = &stream.peer().sending.0.doorbells;
    while is_due(stream) && time::now() < until {
        if !doorbells.state().ringing {
            // A fork child must not get the peer's socket.
            let _structure = (!process::is_borrowed()).then(Structure::lock);
            let Some(theirs) = socket_of_peer(anchor) else { return };
            send_over(stream, theirs);
            file::close(theirs);
        }
        time::sleep(NAP);
    }
    if doorbells.state().replayed {
        log::info!("fd {anchor}: sent in the peer's stead");
    }
}

fn send_over(stream: &Stream, theirs: Fd) {
    let doorbells = &stream.peer().sending.0.doorbells;
    // Before the claim, which must not last.
    let Ok(_held) = stream.lock_receive() else { return };
    // If one died in here, it is for the peer to find out: nobody else claims again.
    let stands_in = &stream.own().receiving.0.stands_in;
    if stands_in.compare_exchange(0, own_tid(), SeqCst, SeqCst).is_err() {
        return;
    }
    if doorbells.claim() {
        send_left(stream, theirs);
        doorbells.release();
    }
    stands_in.store(0, SeqCst);
}

/// As far as the kernel has room. Receive lock.
fn send_left(stream: &Stream, to: Fd) -> Option<()> {
    let sending = &stream.peer().sending.0;
    // Before the bytes are looked at: they are all there.
    let is_finished = sending.finished.load(Acquire) & FINISHED != 0;
    let (promised, written) = (sending.doorbells.state().bells, net::bytes_written(to)?);
    let mut behind = Behind::new(to, written.saturating_sub(promised));
    match promised.saturating_sub(written) {
        0 => {}
        // It is owed: there was no room.
        1 if behind.put(&[0]) => {}
        _ => return None,
    }
    let mut whole = true;
    let valid = stream.each_left(|bytes| {
        whole = behind.put(bytes);
        whole
    });
    if valid.is_ok() && whole && is_finished {
        let _ = net::shutdown(to, libc::SHUT_WR);
    }
    Some(())
}

/// The other end of the connection, which some process with this library has open; ours to close. `None` also where
/// the kernel does not count what is sent there.
fn socket_of_peer(anchor: Fd) -> Option<Fd> {
    let ours = net::unmapped(net::local_address(anchor).ok()?);
    let theirs = net::unmapped(net::peer_address(anchor).ok()?);
    let inode = sock_diag::lookup(anchor, theirs, ours).ok()??.inode;
    let identity = (file::identity(anchor).ok()?.0, u64::from(inode));
    let lent_by = |pid| {
        let fd = process::descriptor_of(pid, file::number_in(pid, identity)?).ok()?;
        let is_it = file::identity(fd) == Ok(identity) && net::bytes_written(fd).is_some();
        is_it.then_some(fd).or_else(|| {
            file::close(fd);
            None
        })
    };
    let mut found = None;
    registry::each_published(|pid| found = found.or_else(|| lent_by(pid)));
    found
}

/// How long (ns) who leaves waits for a peer that sends in its stead.
const PATIENCE: u64 = 500_000_000;

/// Before this end sends anything over TCP: waits until the peer, if it sends in our stead, is done, or dead; false if
/// it is not in time, so that nobody knows what it may still send.
pub(super) fn is_over(stream: &Stream) -> bool {
    let doorbells = &stream.own().sending.0.doorbells;
    let stands_in = &stream.peer().receiving.0.stands_in;
    let started = time::now();
    while doorbells.state().claimed {
        if time::now() - started > PATIENCE {
            return false;
        }
        time::sleep(NAP / 10);
        let thread = stands_in.load(SeqCst);
        if thread != 0 && !process::lives(thread) {
            doorbells.release();
        }
    }
    true
}
