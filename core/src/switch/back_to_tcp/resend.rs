//! Sends the bytes that go over TCP first when an end leaves the SAN: bytes that the peer wants again, or did not read
//! yet. The kernel knows how many of them it took. So any process of this end can go on at any time, also after a
//! process that died. So can the peer in this end's stead
//! ([`resend_for_peer`](crate::switch::back_to_tcp::resend_for_peer)).
//!
//! This module waits for nothing. Where TCP has no room, the next sender waits. (Only on kernels before Linux 4.19 this
//! module waits for room itself.)

use crate::session::resent;
use crate::switch::stream::{Broken, Stream};
use crate::sys::{net, poll, thread, Errno, Fd, Result};
use std::sync::atomic::Ordering::Relaxed;

/// What became of a resend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::switch) enum Resent {
    /// All of it is out, or no peer is there any more.
    All,
    /// There is no room for the rest now, or the peer sends in this end's stead at this moment.
    Part,
    /// Nobody can tell how much is out.
    Unknown,
}

/// Puts bytes of a stream on an anchor, behind those that the kernel took before.
pub(in crate::switch) struct AnchorWriter {
    anchor: Fd,
    /// Bytes of that stream that are out already.
    skip: u64,
    /// If the kernel does not say how much it took (before Linux 4.19), the writer sends all at once, however long that
    /// takes.
    waits: bool,
    failed: Option<Errno>,
}

impl AnchorWriter {
    /// Makes a writer that goes on behind `skip` bytes of the stream.
    pub(in crate::switch) fn new(anchor: Fd, skip: u64) -> Self {
        Self { anchor, skip, waits: false, failed: None }
    }

    /// Puts the next of the bytes that were left unread. False if there was no room for all of them, or no peer is
    /// there.
    pub(in crate::switch) fn put(&mut self, bytes: &[u8]) -> bool {
        let skipped = self.skip.min(bytes.len() as u64);
        self.skip -= skipped;
        let mut rest = &bytes[skipped as usize..];
        while !rest.is_empty() && self.failed.is_none() {
            if has_ended(self.anchor) {
                // A send would take the error that is the program's to hear.
                self.failed = Some(Errno(libc::EPIPE));
                break;
            }
            let sent = if self.waits {
                send_all(self.anchor, rest).map(|()| rest.len())
            } else {
                net::send(self.anchor, rest, libc::MSG_DONTWAIT)
            };
            match sent {
                Ok(n) => rest = &rest[n..],
                Err(e) => self.failed = Some(e),
            }
        }
        self.failed.is_none()
    }

    /// Has TCP send the bytes at once. They had arrived before, so Nagle's algorithm must not hold them back.
    pub(in crate::switch) fn push(&self) {
        let set = |on: i32| net::set_option(self.anchor, libc::IPPROTO_TCP, libc::TCP_NODELAY, &on);
        if net::option(self.anchor, libc::IPPROTO_TCP, libc::TCP_NODELAY) == Ok(0) {
            let _ = set(1).and_then(|()| set(0));
        }
    }

    /// Gives the error after which the writer put no more.
    pub(in crate::switch) fn failed(&self) -> Option<Errno> {
        self.failed
    }
}

/// True if the kernel has an error of the connection to tell, or no peer to send to.
fn has_ended(anchor: Fd) -> bool {
    poll::poll_one(anchor, 0).is_ok_and(|events| events & (libc::POLLERR | libc::POLLHUP) != 0)
}

/// Sends the bytes that are still to be sent. `resumed`: some of them may have gone before. The caller has the send
/// lock. The direction has left, or this end has pulled it.
pub(in crate::switch) fn resend(stream: &Stream, anchor: Fd, resumed: bool) -> Resent {
    let sending = &stream.own().sending.0;
    let from = match sending.direction.state() {
        state if state.pulled => stream.pulled(),
        state if state.recalled => stream.recalled(),
        _ => return Resent::All,
    };
    let counted = net::bytes_written(anchor);
    let Some(skip) = resent(counted, sending.turned_at.load(Relaxed), resumed) else {
        return Resent::Unknown;
    };
    let mut to = AnchorWriter::new(anchor, skip);
    to.waits = counted.is_none();
    if let Err(why) = stream.each_unread(from, |bytes| to.put(bytes)) {
        broken(anchor, why);
    }
    to.push();
    match to.failed {
        Some(Errno(libc::EAGAIN)) => Resent::Part,
        Some(e) => {
            log::warn!("fd {anchor}: replaying onto TCP failed: {e}");
            Resent::All
        }
        None => Resent::All,
    }
}

/// Sends all of `bytes` over an anchor, waiting for room.
fn send_all(anchor: Fd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match net::send(anchor, bytes, libc::MSG_DONTWAIT) {
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

fn broken(anchor: Fd, why: Broken) {
    log::error!("fd {anchor}: connection reset, the peer broke the protocol: {why}");
    let _ = net::shutdown(anchor, libc::SHUT_RDWR);
}
