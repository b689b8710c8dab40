//! RDMA on the shm provider: reading what the sender lent, writing into what the receiver posted.
//! The decisions are the session's ([`Sending`](crate::session::transfer::Sending) and
//! [`Receiving`](crate::session::transfer::Receiving)); here they become operations on memory.
//! Waiting is `switch::rdma`'s.

use super::control::data_of;
use super::holding::Hold;
use super::posted;
use super::posted::Posted;
use super::Broken;
use super::Moved;
use super::Stream;
use super::Take;
use crate::provider::shm::{Refusal, Right};
use crate::session::transfer::{Call, Posting, Rest};
use crate::session::{Available, Complete, Control, Kind, LARGEST_TRANSFER};
use crate::switch::buffers::Buffers;
use crate::switch::endpoint::flag;
use crate::sys::user::{self, Access};
use crate::sys::{process, Errno};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Most bytes of data that travel with their announcement: what a small first receive asks for.
const FIRST_PART: usize = 1024;

/// How reading announced data went.
pub(super) enum Read {
    /// So many bytes, at least one.
    Bytes(usize),
    /// There is no more of it: it was read, or taken back.
    Over,
    /// It can not be read; it will be written, or come in messages.
    NotNow,
    /// The program's memory.
    Fault(Errno),
}

impl<'a> Stream<'a> {
    /// Reads from the memory that the sender lent. Receive lock.
    #[cold]
    pub(super) fn read_rest(&self, to: &mut Buffers, most: usize, take: Take, call: Call) -> Read {
        let transfers = &self.endpoint.receive.transfers;
        let Some(rest) = transfers.rest() else { return Read::Over };
        if self.is_posted() {
            // It will be written to (A12).
            return Read::NotNow;
        }
        if rest.address.is_none() {
            if !self.has_data_after(&rest) {
                return Read::NotNow;
            }
            // Its sender went on to the next: the rest comes in messages, though the message that
            // says so may still wait for credit.
            transfers.close();
            return Read::Over;
        }
        let abilities = self.endpoint.abilities();
        if !abilities.read {
            return self.refuse(rest.key, true);
        }
        let mut scratch = [0u8; 4096];
        let (at, n) = match take {
            Take::Discard => (scratch.as_mut_ptr(), most.min(scratch.len())),
            _ => match to.piece(most, Access::Write) {
                Ok(piece) => piece,
                Err(e) => return Read::Fault(e),
            },
        };
        let commit = take != Take::Peek;
        let lent = &self.peer().readable.0;
        let process = lent.process();
        if self.is_ours(process) {
            return self.refuse(rest.key, true);
        }
        let place = std::ptr::slice_from_raw_parts_mut(at, n);
        let (key, length, taken) = (rest.key, rest.length, rest.taken);
        // SAFETY: the program passed these bytes to be written, or they are our own.
        let read = unsafe { lent.read(process, key, length, taken, place, commit) };
        let n = match read {
            Ok(n) => n,
            Err(Refusal::NotRegistered) => {
                transfers.close();
                return Read::Over;
            }
            // A relative of it may go on.
            Err(Refusal::Gone) => return self.refuse(rest.key, false),
            Err(Refusal::Stranger) => return self.refuse(rest.key, true),
            Err(Refusal::Fault) => {
                if let Err(e) = user::check(at, n, Access::Write) {
                    return Read::Fault(e);
                }
                // The sender finds out for itself.
                return self.refuse(rest.key, false);
            }
            Err(Refusal::Forbidden) => {
                log::info!("RDMA read: the kernel does not allow it; messages carry everything");
                return self.refuse(rest.key, true);
            }
        };
        to.skip(n);
        if commit {
            self.statistics.transfers.received.add(n as u64);
            let room = to.remaining() + n;
            if let Some(complete) = transfers.read(call, n as u32, room as u64, abilities) {
                self.endpoint.due.note(&Control::TransferComplete(complete));
            } else if let Posting::SendInMessages(key) = self.small_receive(room) {
                self.endpoint.due.note(&Control::SendInMessages(key, false));
            }
        }
        Read::Bytes(n)
    }

    /// True if `process` is this one, by the number of any thread, although the peer is another: no
    /// honest peer names our memory.
    fn is_ours(&self, process: u32) -> bool {
        !self.endpoint.has(flag::ONE_PROCESS) && process::is_own_thread(process)
    }

    /// Asks for announced data in messages because it cannot be read.
    fn refuse(&self, key: u32, for_ever: bool) -> Read {
        self.endpoint.receive.transfers.cannot_read();
        self.endpoint.due.note(&Control::SendInMessages(key, for_ever));
        Read::NotNow
    }

    /// True if anything was sent after what `rest` announced, be it its own last part. Receive lock.
    fn has_data_after(&self, rest: &Rest) -> bool {
        let receive = &self.endpoint.receive;
        let tail = self.peer().sending.0.tail.load(Acquire);
        // It was not announced before the send buffer was read empty.
        if tail != receive.head.load(Relaxed) {
            return true;
        }
        let mut next = rest.after.wrapping_add(1);
        while next != self.endpoint.session.expected() {
            if data_of(receive.lengths[next as usize & 63].load(Relaxed)) > 0 {
                return true;
            }
            next = next.wrapping_add(1);
        }
        false
    }

    /// A receive too small for RDMA takes some of what was announced (A5).
    fn small_receive(&self, room: usize) -> Posting {
        let abilities = self.endpoint.abilities();
        if room >= abilities.threshold as usize {
            return Posting::Nothing;
        }
        self.endpoint.receive.transfers.post(room as u64, false, abilities)
    }

    /// A receive of the program with room for `room` bytes begins. Those that RDMA is not worth are
    /// told apart from the others, not from each other.
    #[inline]
    pub(crate) fn call(&self, room: usize) -> Call {
        if room < self.endpoint.threshold() as usize {
            return Call { number: 0, directly: false };
        }
        let directly = self.peek_readable() == Some(false);
        self.endpoint.receive.transfers.call(directly)
    }

    /// True if a receive with so much room that has to wait concerns the sender.
    #[inline]
    pub(crate) fn concerns_sender(&self, room: usize) -> bool {
        room >= self.endpoint.threshold() as usize
            || self.endpoint.receive.transfers.rest().is_some()
            || self.endpoint.receive.transfers.is_relied_on(self.endpoint.abilities())
    }

    /// True if announced data will be written into a receive with so much room as soon as that is
    /// posted: it need not return with the first part alone.
    #[inline]
    pub(crate) fn will_be_written(&self, room: usize) -> bool {
        let abilities = self.endpoint.abilities();
        let transfers = &self.endpoint.receive.transfers;
        abilities.write
            && room >= abilities.threshold as usize
            && transfers.rest().is_some_and(|rest| rest.address.is_none())
            && transfers.may_advertise()
    }

    /// True if the buffer of a living thread is advertised; a dead one's is taken back. Receive lock.
    fn is_posted(&self) -> bool {
        let receive = &self.endpoint.receive;
        let Some(key) = receive.transfers.advertised() else { return false };
        if process::lives(receive.poster.load(Relaxed)) {
            return true;
        }
        posted::deregister(self, LARGEST_TRANSFER);
        let posted = &self.own().writable.0;
        self.withdrawn(posted.done_of(key, LARGEST_TRANSFER).unwrap_or(0));
        false
    }

    /// Before a close: what was written into the buffer of a dead relative counts as received.
    pub(crate) fn settle_posted(&self) {
        if self.endpoint.receive.transfers.advertised().is_some() {
            let _held = self.lock_receive();
            self.is_posted();
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

    /// A receive begins to wait with room in `to`, or has to tell its program to come again: what
    /// the sender must know is sent. `Some`: the buffer is lent to the sender until it is dropped.
    pub(crate) fn post(&self, to: &Buffers, call: Call, waits: bool) -> Option<Posted<'_>> {
        let abilities = self.endpoint.abilities();
        if self.mark_at(0).is_some() || self.is_held_back() {
            return None;
        }
        let transfers = &self.endpoint.receive.transfers;
        let (at, room) = to.piece(LARGEST_TRANSFER as usize, Access::Write).ok()?;
        let hold = Hold::of(self);
        if !self.is_posted() && waits && abilities.write {
            // Before it counts as posted: who takes over from a dead thread finds it dead.
            self.endpoint.receive.poster.store(process::tid(), Relaxed);
        }
        let posted = match transfers.post(room as u64, waits, abilities) {
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
                self.own().writable.0.register(key, address, length, Right::Write);
                let received = self.endpoint.receive.total();
                let advertisement = transfers.advertisement(key, address, length, call, received);
                self.endpoint.due.note(&Control::Advertisement(advertisement));
                Some(Posted::new(*self, hold, length))
            }
        };
        posted
    }

    /// After the send lock came from a dead holder: its memory is gone, and what went of it counts.
    pub(super) fn recover_transfer(&self) {
        let transfers = &self.endpoint.send.transfers;
        let lent = &self.own().readable.0;
        if let Some((key, rest)) = transfers.under_way() {
            let taken = match lent.done_of(key, rest) {
                Some(_) => lent.deregister(rest).unwrap_or(0),
                None => 0,
            };
            transfers.read(taken);
            if taken < rest {
                self.endpoint.due.note(&Control::RestInMessages(key, taken));
            }
            transfers.forget();
        }
        // A write that it finished and did not count; one in the middle counts for nobody.
        if let Some((key, room)) = transfers.writing() {
            let written = self.peer().writable.0.done_of(key, room).unwrap_or(0);
            if written > 0 {
                transfers.wrote(written);
                transfers.used(key, true);
                let complete = Complete { key, bytes: written, behaviour: None };
                self.endpoint.due.note(&Control::TransferComplete(complete));
            } else {
                transfers.forget_write();
            }
        }
    }

    /// Bytes went by RDMA.
    pub(crate) fn show_sent_by_rdma(&self, bytes: u32) {
        self.statistics.sent.bytes.add(bytes.into());
        self.statistics.transfers.sent.add(bytes.into());
    }

    /// True if data may be announced or written: everything sent before is in messages, and there is credit.
    /// Send lock.
    pub(crate) fn may_announce(&self) -> Result<bool, Broken> {
        self.absorb_if_free()?;
        if !self.is_empty()?
            || self.endpoint.resize.is_asking()
            || !self.endpoint.has(flag::ESTABLISHED)
            || self.is_held_back()
            || self.is_behind_own_mark()
        {
            return Ok(false);
        }
        // What was written before is told before, or it would count as part of what is announced.
        if self.endpoint.due.tells_of_a_write() {
            return Ok(false);
        }
        Ok(self.endpoint.session.credit() >= 2)
    }

    /// Bytes of data that travel with their announcement (S3).
    pub(crate) fn first_part(&self) -> usize {
        let body = Kind::DataAvailable.body_size();
        (self.payload_out().saturating_sub(body) as usize).min(FIRST_PART)
    }

    /// Announces data, the `first` bytes of it in the message itself. Send lock.
    pub(crate) fn announce(
        &self,
        available: Available,
        first: usize,
        from: &mut Buffers,
    ) -> Result<Moved, Option<Errno>> {
        let control = Control::DataAvailable(available);
        let size = control.kind().body_size() as usize;
        let header = self.next_message(control.kind(), size + first).map_err(|_| None)?;
        let slot = self.slot_out(header.sequence);
        let body = control.encode();
        // SAFETY: body and first part fit into the message buffer.
        unsafe {
            std::ptr::copy_nonoverlapping(body.as_ptr(), slot.payload(), size);
            from.copy_out(slot.payload().add(size), first).map_err(Some)?;
        }
        slot.publish(header.encode());
        self.sent(&header, first);
        self.statistics.sent.messages.add(1);
        Ok(Moved { bytes: first, ring: self.announce_data(), fault: None })
    }

    /// Takes in messages unless a receiver is at it.
    #[inline]
    pub(crate) fn absorb_if_free(&self) -> Result<(), Broken> {
        let expected = self.endpoint.session.expected();
        if self.slot_in(expected).sequence() == expected {
            self.absorb_credit()?;
        }
        Ok(())
    }

    /// Sends what is due; true: the doorbell must ring. Send lock.
    #[inline]
    pub(crate) fn send_due_now(&self) -> bool {
        self.endpoint.due.any() && self.send_due(false)
    }

    /// Writes into the buffer that the receiver advertised (A6, A11). Send lock. `None`: it is not
    /// there any more.
    pub(crate) fn write_to(
        &self,
        key: u32,
        room: u32,
        most: u32,
        from: &Buffers,
    ) -> Result<Option<Moved>, Errno> {
        let (at, n) = from.piece(most.min(room) as usize, Access::Read)?;
        let lent = &self.peer().writable.0;
        let process = lent.process();
        let transfers = &self.endpoint.send.transfers;
        transfers.writes(key, room);
        let written = if self.is_ours(process) {
            Err(Refusal::Forbidden)
        } else {
            // SAFETY: the program passed these bytes to be read.
            unsafe { lent.write(process, key, room, at, n) }
        };
        transfers.wrote(*written.as_ref().unwrap_or(&0) as u32);
        transfers.used(key, written.is_ok());
        match written {
            Ok(n) => {
                self.show_sent_by_rdma(n as u32);
                let complete = Complete { key, bytes: n as u32, behaviour: None };
                self.endpoint.due.note(&Control::TransferComplete(complete));
                let mut ring = self.send_due(false);
                // The message may wait for credit; the receiver sees the bytes by themselves.
                ring |= self.signal_read();
                Ok(Some(Moved { bytes: n, ring, fault: None }))
            }
            Err(Refusal::Forbidden) => {
                log::info!("RDMA write: the kernel does not allow it; messages carry everything");
                transfers.forbid();
                Ok(None)
            }
            Err(_) => Ok(None),
        }
    }
}
