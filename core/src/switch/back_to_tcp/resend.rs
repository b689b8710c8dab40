//! What goes over TCP first when an end leaves the SAN: the doorbells that are missing and, behind them, what the peer
//! wants again. The kernel knows how much of that it took, so it can go on at any time, in any process of this end,
//! after one that died as well; and by the peer in this end's stead
//! ([`resend_for_peer`](crate::switch::back_to_tcp::resend_for_peer)).
//!
//! Waits for nothing: where TCP has no room, its sender is one who has to wait.

use crate::session::Missing;
use crate::switch::stream::{Broken, Places, Stream};
use crate::sys::{net, poll, thread, Errno, Fd, Result};
use std::sync::atomic::Ordering::Relaxed;

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::switch) enum Resent {
    /// It is out, or nobody is there any more.
    All,
    /// There is no room for the rest now.
    Part,
    /// Nobody can tell how much is out.
    Unknown,
}

/// Puts bytes of a stream on an anchor, behind those that the kernel took before.
pub(in crate::switch) struct AnchorWriter {
    anchor: Fd,
    /// Bytes of that stream that are out already.
    skip: u64,
    /// Of the bytes that were left unread.
    places: Places,
    /// How many of those were here.
    at: u64,
    /// Where the kernel does not say what it took (before Linux 4.19) all goes at once, however long that takes.
    waits: bool,
    failed: Option<Errno>,
}

impl AnchorWriter {
    /// One that goes on behind `skip` bytes of the stream.
    pub(in crate::switch) fn new(anchor: Fd, skip: u64, places: Places) -> Self {
        Self { anchor, skip, places, at: 0, waits: false, failed: None }
    }

    /// The next of the bytes that were left unread; false if there was no room for all of them, or nobody is there.
    pub(in crate::switch) fn put(&mut self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        while !rest.is_empty() && self.failed.is_none() {
            let (alike, flags) = self.next(rest.len());
            let (now, later) = rest.split_at(alike);
            if let Some(flags) = flags {
                self.send(now, flags);
            }
            self.at += alike as u64;
            rest = later;
        }
        self.failed.is_none()
    }

    /// How many of the next bytes are alike, and the flags that they are sent with; `None`: they are not sent.
    fn next(&self, most: usize) -> (usize, Option<i32>) {
        let Places { omitted, urgent } = self.places;
        if self.at < omitted.first() {
            return (most.min((omitted.first() - self.at) as usize), None);
        }
        if omitted.other() == Some(self.at) {
            return (1, None);
        }
        if urgent == Some(self.at) {
            return (1, Some(libc::MSG_OOB));
        }
        let special = [omitted.other(), urgent].into_iter().flatten().filter(|at| *at > self.at);
        let ordinary = special.min().map_or(most, |next| most.min((next - self.at) as usize));
        (ordinary, Some(0))
    }

    /// A doorbell; as [`put`](Self::put).
    pub(in crate::switch) fn put_doorbell(&mut self) -> bool {
        self.send(&[0], 0);
        self.failed.is_none()
    }

    fn send(&mut self, bytes: &[u8], flags: i32) {
        let skipped = self.skip.min(bytes.len() as u64);
        self.skip -= skipped;
        let mut rest = &bytes[skipped as usize..];
        while !rest.is_empty() && self.failed.is_none() {
            let sent = if self.waits {
                send_all(self.anchor, rest, flags).map(|()| rest.len())
            } else {
                net::send(self.anchor, rest, flags | libc::MSG_DONTWAIT)
            };
            match sent {
                Ok(n) => rest = &rest[n..],
                Err(e) => self.failed = Some(e),
            }
        }
    }

    /// Why it put no more.
    pub(in crate::switch) fn failed(&self) -> Option<Errno> {
        self.failed
    }
}

/// Sends what is still to be sent; `resumed`: some of it may have been. Send lock and doorbell lock; the direction has
/// left.
pub(in crate::switch) fn resend(stream: &Stream, anchor: Fd, resumed: bool) -> Resent {
    let sending = &stream.own().sending.0;
    let owed = u64::from(stream.endpoint.doorbells_owed.load(Relaxed));
    let word = sending.doorbells.state();
    let counted = net::bytes_written(anchor);
    let rings = stream.fabric.is_none();
    let Some(missing) = Missing::of(word, owed, rings, counted, resumed) else {
        return Resent::Unknown;
    };
    let places = stream.places_unread();
    let mut to = AnchorWriter::new(anchor, missing.skip, places);
    to.waits = counted.is_none();
    for _ in 0..missing.doorbells {
        to.put_doorbell();
    }
    if word.recalled && to.failed.is_none() {
        if let Err(why) = stream.each_unread(|bytes| to.put(bytes)) {
            broken(anchor, why);
        }
    }
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
fn send_all(anchor: Fd, mut bytes: &[u8], flags: i32) -> Result<()> {
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

fn broken(anchor: Fd, why: Broken) {
    log::error!("fd {anchor}: connection reset, the peer broke the protocol: {why}");
    let _ = net::shutdown(anchor, libc::SHUT_RDWR);
}
