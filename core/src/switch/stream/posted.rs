//! Receives whose buffers are lent to the sender for RDMA write. Nobody writes to a buffer any more once the call that
//! posted it returns, is cancelled, or is left by a jump out of a signal handler.

use super::holding::Hold;
use super::Stream;
use crate::provider::shm::Right;
use crate::session::transfer::{Call, Posting};
use crate::session::{Control, LARGEST_TRANSFER};
use crate::switch::buffers::Buffers;
use crate::sys::process;
use crate::sys::user::Access;
use std::sync::atomic::Ordering::Relaxed;

/// The posted buffer is not lent any more. The bytes that were written to it, of `length`.
fn deregister(stream: &Stream, length: u32) -> u32 {
    stream.endpoint.due.forget_advertisement();
    stream.take_back_writable(length)
}

/// A receive's buffer, lent to the sender for RDMA write; dropped, it is the program's alone again.
pub(crate) struct Posted<'a> {
    stream: Stream<'a>,
    length: u32,
    /// [`Suspension::stamp`](crate::session::Suspension::stamp) when it was posted.
    session: u32,
    taken_back: bool,
    _hold: Hold<'a>,
}

impl<'a> Posted<'a> {
    /// A posted receive of `length` bytes, advertised just now. The caller has the receive lock.
    pub(super) fn new(stream: Stream<'a>, hold: Hold<'a>, length: u32) -> Self {
        let session = stream.endpoint.suspension.stamp();
        Posted { stream, length, session, taken_back: false, _hold: hold }
    }

    /// True if the sender wrote to it, or it was taken back because the session is suspended (D4), or it is to be taken
    /// back because the link moves.
    pub(crate) fn is_over(&self) -> bool {
        let (registration, suspension) =
            (&self.stream.own().writable.0, &self.stream.endpoint.suspension);
        registration.done() > 0
            || (suspension.stamp() != self.session && !suspension.holds_back())
            || self.stream.rdma().wants_back()
    }

    /// Takes the buffer back; the bytes that were written to it count as received.
    pub(crate) fn take_back(mut self) -> usize {
        self.withdraw()
    }

    fn withdraw(&mut self) -> usize {
        if std::mem::replace(&mut self.taken_back, true) {
            return 0;
        }
        let stream = &self.stream;
        let bytes = deregister(stream, self.length);
        let held = stream.lock_receive();
        if bytes > 0 && !stream.endpoint.way_in().is_read_out() {
            // An announcement from before those bytes is over (A12), so the receiver must know of it. A later look finds
            // an error again.
            let _ = stream.absorb();
        }
        stream.withdrawn(bytes);
        drop(held);
        bytes as usize
    }
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        self.withdraw();
    }
}

impl Stream<'_> {
    /// True if a receive with so much room that has to wait concerns the sender.
    #[inline]
    pub(crate) fn concerns_sender(&self, room: usize) -> bool {
        room >= self.endpoint.threshold() as usize
            || self.endpoint.receive.transfers.rest().is_some()
            || self.endpoint.receive.transfers.is_relied_on(self.abilities())
    }

    /// True if announced data will be written into a receive with so much room as soon as that is
    /// posted: it need not return with the first part alone.
    #[inline]
    pub(crate) fn will_be_written(&self, room: usize) -> bool {
        let abilities = self.abilities();
        let transfers = &self.endpoint.receive.transfers;
        abilities.write
            && room >= abilities.threshold as usize
            && transfers.rest().is_some_and(|rest| rest.address.is_none())
            && transfers.may_advertise()
    }

    /// Takes back an advertised buffer of a dead thread; true if one of a living thread is advertised. Receive lock.
    pub(crate) fn look_after_posted(&self) -> bool {
        let receive = &self.endpoint.receive;
        let Some(key) = receive.transfers.advertised() else { return false };
        if process::lives(receive.poster.load(Relaxed)) {
            return true;
        }
        deregister(self, LARGEST_TRANSFER);
        let posted = &self.own().writable.0;
        self.withdrawn(posted.done_of(key, LARGEST_TRANSFER).unwrap_or(0));
        false
    }

    /// Before a close: what was written into the buffer of a dead relative counts as received.
    pub(crate) fn settle_posted(&self) {
        if self.endpoint.receive.transfers.advertised().is_some() {
            let _held = self.lock_receive();
            self.look_after_posted();
        }
    }

    /// The posted buffer was taken back after `bytes` had been written to it. Receive lock.
    pub(super) fn withdrawn(&self, bytes: u32) {
        self.endpoint.receive.transfers.withdrawn(bytes);
        if bytes > 0 {
            self.consumed(bytes.into(), false);
            self.statistics.transfers.received.add(bytes.into());
        }
    }

    /// The buffer that counts as posted could not be lent (S6): announced data comes in messages. Receive lock.
    fn is_not_lent(&self) {
        let transfers = &self.endpoint.receive.transfers;
        transfers.withdrawn(0);
        if let Some(rest) = transfers.rest() {
            transfers.cannot_read();
            self.endpoint.due.note(&Control::SendInMessages(rest.key, false));
        }
    }

    /// A receive begins to wait with room in `to`, or has to tell its program to come again: what
    /// the sender must know is sent. `Some`: the buffer is lent to the sender until it is dropped.
    pub(crate) fn post(&self, to: &Buffers, call: Call, waits: bool) -> Option<Posted<'_>> {
        let abilities = self.abilities();
        if self.is_held_back() {
            return None;
        }
        let transfers = &self.endpoint.receive.transfers;
        let (at, room) = to.piece(self.largest_transfer(), Access::Write).ok()?;
        let hold = Hold::of(self);
        if !self.look_after_posted() && waits && abilities.write {
            // This comes before the buffer counts as posted: a thread that takes over from a dead one finds it dead.
            self.endpoint.receive.poster.store(process::tid(), Relaxed);
        }
        match transfers.post(room as u64, waits, abilities) {
            Posting::Nothing => None,
            Posting::SendInMessages(key) => {
                self.endpoint.due.note(&Control::SendInMessages(key, false));
                None
            }
            Posting::Rediscover => {
                self.endpoint.due.note(&Control::Rediscover);
                None
            }
            Posting::Advertise(key) => {
                let (address, length) = (at as u64, room as u32);
                if !self.lend(Right::Write, key, address, length) {
                    self.is_not_lent();
                    return None;
                }
                let received = self.endpoint.receive.total();
                let advertisement = transfers.advertisement(key, address, length, call, received);
                self.endpoint.due.note(&Control::Advertisement(advertisement));
                Some(Posted::new(*self, hold, length))
            }
        }
    }
}
