//! The receiver's half of RDMA: it reads what the sender announced, where that lies in the sender's memory.
//!
//! The session says what is done when ([`Receiving`](crate::session::transfer::Receiving)).

use super::Stream;
use super::Take;
use crate::provider::shm::Refusal;
use crate::session::transfer::{Call, Posting, Rest};
use crate::session::Control;
use crate::switch::buffers::Buffers;
use crate::sys::user::{self, Access};
use crate::sys::Errno;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

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

impl Stream<'_> {
    /// A receive of the program with room for `room` bytes begins, which may wait or not. This tells receives that RDMA
    /// is not worth, or that may not wait for memory of the peer's, apart from the others, and not from each other.
    #[inline]
    pub(crate) fn call(&self, room: usize, waits: bool) -> Call {
        if !waits || room < self.endpoint.threshold() as usize {
            return Call { number: 0, directly: false };
        }
        let directly = self.peek_readable() == Some(false);
        self.endpoint.receive.transfers.call(directly)
    }

    /// Reads announced data from the memory that the sender lent. Receive lock.
    #[cold]
    pub(super) fn read_rest(&self, to: &mut Buffers, most: usize, take: Take, call: Call) -> Read {
        let Some(rest) = self.endpoint.receive.transfers.rest() else { return Read::Over };
        if let Some(otherwise) = self.comes_otherwise(&rest, call) {
            return otherwise;
        }
        // The stack may be a small one.
        let mut scratch = [0u8; 1024];
        let (at, n) = match take {
            Take::Discard => (scratch.as_mut_ptr(), most.min(scratch.len())),
            _ => match to.piece(most, Access::Write) {
                Ok(piece) => piece,
                Err(e) => return Read::Fault(e),
            },
        };
        let consumes = take != Take::Peek;
        let room = to.remaining();
        match self.read_lent(&rest, (at, n), consumes) {
            Ok(n) => {
                to.skip(n);
                if consumes {
                    self.note_read(n, room, call);
                }
                Read::Bytes(n)
            }
            Err(why) => self.not_read(&rest, (at, n), why),
        }
    }

    /// Decides about announced data that is not read by RDMA.
    fn comes_otherwise(&self, rest: &Rest, call: Call) -> Option<Read> {
        if self.look_after_posted() {
            // It will be written to (A12).
            return Some(Read::NotNow);
        }
        if rest.address.is_some() {
            let can_read = self.endpoint.abilities().read;
            // The kernel waits for what lies in a file, or comes when its owner likes.
            let may = self.abilities().read && call.number != 0;
            return (!may).then(|| self.refuse(rest.key, !can_read));
        }
        if !self.has_data_after(rest) {
            return Some(Read::NotNow);
        }
        // Its sender went on to the next: the rest comes in messages, though the message that
        // says so may still wait for credit.
        self.endpoint.receive.transfers.close();
        Some(Read::Over)
    }

    /// Copies announced data to the `length` bytes at `to`; how many it was.
    fn read_lent(
        &self,
        rest: &Rest,
        (to, length): (*mut u8, usize),
        consumes: bool,
    ) -> Result<usize, Refusal> {
        let place = std::ptr::slice_from_raw_parts_mut(to, length);
        let lent = (rest.key, rest.length, rest.taken);
        // SAFETY: the program passed these bytes to be written, or they are our own.
        unsafe { self.rdma().read(self, lent, place, consumes) }
    }

    /// Decides about announced data that could not be copied to the `length` bytes at `to`.
    fn not_read(&self, rest: &Rest, (to, length): (*mut u8, usize), why: Refusal) -> Read {
        match why {
            Refusal::NotRegistered => {
                self.endpoint.receive.transfers.close();
                Read::Over
            }
            // A relative of it may go on.
            Refusal::Gone => self.refuse(rest.key, false),
            Refusal::Stranger => self.refuse(rest.key, true),
            Refusal::Fault => match user::check(to, length, Access::Write) {
                Err(e) => Read::Fault(e),
                // The sender finds out for itself.
                Ok(()) => self.refuse(rest.key, false),
            },
            Refusal::Forbidden => {
                log::info!("RDMA read: the kernel does not allow it; messages carry everything");
                self.refuse(rest.key, true)
            }
        }
    }

    /// Tells the sender that `bytes` were read into a receive that had `room`.
    fn note_read(&self, bytes: usize, room: usize, call: Call) {
        let (transfers, abilities) = (&self.endpoint.receive.transfers, self.endpoint.abilities());
        self.statistics.transfers.received.add(bytes as u64);
        if let Some(complete) = transfers.read(call, bytes as u32, room as u64, abilities) {
            self.endpoint.due.note(&Control::TransferComplete(complete));
        } else if let Posting::SendInMessages(key) = self.small_receive(room) {
            self.endpoint.due.note(&Control::SendInMessages(key, false));
        }
    }

    /// Asks for announced data in messages because it cannot be read.
    fn refuse(&self, key: u32, for_ever: bool) -> Read {
        self.endpoint.receive.transfers.cannot_read();
        self.endpoint.due.note(&Control::SendInMessages(key, for_ever));
        Read::NotNow
    }

    /// True if anything was sent after what `rest` announced, be it its own last part. Receive lock.
    fn has_data_after(&self, rest: &Rest) -> bool {
        let tail = self.peer().sending.0.tail.load(Acquire);
        // It was not announced before the send buffer was read empty.
        tail != self.endpoint.receive.head.load(Relaxed)
            || self.next_with_data(rest.after.wrapping_add(1)) != self.endpoint.session.expected()
    }

    /// A receive too small for RDMA takes some of what was announced (A5).
    fn small_receive(&self, room: usize) -> Posting {
        let abilities = self.endpoint.abilities();
        if room >= abilities.threshold as usize {
            return Posting::Nothing;
        }
        self.endpoint.receive.transfers.post(room as u64, false, abilities)
    }
}
