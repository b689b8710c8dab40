//! The sender's half of RDMA: it announces data, and writes data into what the receiver posted.
//!
//! The session says what is done when ([`Sending`](crate::session::transfer::Sending)). `transfer::rdma` does the
//! waiting.

use super::Broken;
use super::Moved;
use super::Stream;
use crate::provider::shm::Refusal;
use crate::session::{Available, Complete, Control, Kind};
use crate::switch::buffers::Buffers;
use crate::switch::endpoint::flag;
use crate::sys::user::Access;
use crate::sys::Errno;

/// Most bytes of data that travel with their announcement: what a small first receive asks for.
const FIRST_PART: usize = 1024;

impl Stream<'_> {
    /// Bytes went by RDMA.
    pub(crate) fn show_sent_by_rdma(&self, bytes: u32) {
        self.statistics.sent.bytes.add(bytes.into());
        self.statistics.transfers.sent.add(bytes.into());
    }

    /// Takes in what the peer told; true if data may be announced or written: everything sent before is in messages, and
    /// there is credit. Send lock.
    pub(crate) fn prepare_to_announce(&self) -> Result<bool, Broken> {
        self.absorb_if_free()?;
        if !self.look_if_empty()?
            || self.endpoint.resize.is_asking()
            || !self.endpoint.has(flag::ESTABLISHED)
            || self.is_held_back()
        {
            return Ok(false);
        }
        // This end tells first what it wrote before. Otherwise that would count as part of what it announces.
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
        slot.payload().write(&control.encode()[..size]);
        from.copy_out(slot.payload().part(size, first)).map_err(Some)?;
        slot.publish(header.encode());
        self.sent(&header, first);
        self.statistics.sent.messages.add(1);
        Ok(Moved { bytes: first, ring: self.announce_data(), fault: None })
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
        let transfers = &self.endpoint.send.transfers;
        transfers.writes(key, room);
        // SAFETY: the program passed these bytes to be read.
        let written = unsafe { self.rdma().write(self, (key, room), at, n) };
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
