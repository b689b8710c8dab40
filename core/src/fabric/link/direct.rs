//! Streams whose bytes need no frames: the sender writes them by RDMA from its send buffer to their place in the
//! receiver's picture of that buffer.
//!
//! A receiver that got much in frames registers its picture, makes it reachable for its peer alone, and says so
//! ([`FrameKind::Ring`]). From then on the sender writes there out of its own send buffer, and tells how much
//! ([`FrameKind::Written`]). So the library makes no copy. Both registrations last as long as the link. Bytes go on
//! coming in frames where there is no memory to pin, or no remote access.

use super::body::Body;
use super::sender::{Full, LinkSender};
use super::state::Link;
use crate::fabric::frame::FrameKind;
use crate::provider::interface::client::MemoryRegion;
use crate::provider::interface::{Error, Flags, Limits, MemoryPiece, RemoteAccess, RemoteMemory};
use crate::provider::shm::Role;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// How often a send buffer came full in frames before it is made reachable.
const OFTEN: u64 = 2;
/// Bytes written at a time: the receiver begins with them while the next are on their way.
const PIECE: usize = 256 << 10;
/// Less than this goes in a frame: one packet less, and the copy is short.
const LEAST: usize = 16 << 10;

impl Link {
    /// Bytes came in a frame, `tail` by now: lets the peer write the next ones if these are many.
    pub(super) fn consider_offer(&self, body: &Body, tail: u64) {
        let ring = u64::from(body.segment.geometry().send_buffer);
        if tail >= OFTEN * ring
            && self.port().device.limits.flags & Limits::BIND != 0
            && self.wire().is_some_and(|wire| !wire.direct.considered.swap(true, SeqCst))
        {
            self.note(FrameKind::Ring);
        }
    }

    /// Registers our picture of the peer's send buffer and tells the peer.
    pub(super) fn offer(&self, out: &mut LinkSender, body: &Body) -> Result<(), Full> {
        let (at, size) = ring(body, body.role.peer());
        let wire = self.wire().ok_or(Full)?;
        if wire.rings(out).theirs.is_none() {
            self.await_turn_to_bind(out)?;
            let number = self.begin(out)?;
            let (tells, flags) = self.flags(out);
            let registered = self.register(at, size).and_then(|region| {
                let range = at as u64..at as u64 + size as u64;
                let access = RemoteAccess::Write;
                let token = wire.pair.bind(number, &region, range, access, flags)?;
                Ok((region, token))
            });
            match registered {
                Ok(registered) => {
                    self.begun(out, number, tells);
                    wire.rings(out).theirs = Some(registered);
                    wire.direct.offered.store(true, SeqCst);
                }
                Err(why) => {
                    self.port().device.sent(1);
                    log::info!("link {:x}: streams in frames: {why}", self.id);
                    return Ok(());
                }
            }
        }
        let token = wire.rings(out).theirs.as_ref().map_or(0, |(_, token)| *token);
        let (address, token) = ((at as u64).to_le_bytes(), token.to_le_bytes());
        self.send(out, FrameKind::Ring, &[&address, &token])
    }

    /// Takes the memory that the peer lets us write to; false if that makes no sense.
    pub(super) fn take_ring(&self, payload: &[u8]) -> bool {
        let Some((address, token)) = payload.split_first_chunk() else { return false };
        let Ok(token) = token.try_into() else { return false };
        let memory = RemoteMemory {
            address: u64::from_le_bytes(*address),
            token: u32::from_le_bytes(token),
        };
        self.wire().is_some_and(|wire| wire.direct.theirs.set(memory).is_ok())
    }

    /// How many bytes the peer says it wrote; `None` if it was not allowed to.
    pub(super) fn written(&self, payload: &[u8]) -> Option<u64> {
        let count = u32::from_le_bytes(payload.try_into().ok()?);
        self.may_be_written().then_some(count.into())
    }

    /// True if the peer may write into this end's picture of its send buffer.
    pub(super) fn may_be_written(&self) -> bool {
        self.wire().is_some_and(|wire| wire.direct.offered.load(Relaxed))
    }

    /// Writes up to `length` bytes of our send buffer, which lie at `from`, where the peer reads them,
    /// and tells it; how many. `None`: in a frame.
    pub(super) fn write(
        &self,
        out: &mut LinkSender,
        body: &Body,
        from: *mut u8,
        length: usize,
    ) -> Option<Result<usize, Full>> {
        let wire = self.wire()?;
        let theirs = wire.direct.theirs.get()?;
        let length = length.min(PIECE).min(self.port().device.limits.max_transfer as usize);
        if length < LEAST {
            return None;
        }
        let (at, size) = ring(body, body.role);
        let own = wire.rings(out).own.get_or_insert_with(|| {
            let registered = self.register(at, size);
            registered.inspect_err(|why| log::info!("link {:x}: frames: {why}", self.id)).ok()
        });
        let segment = own.as_ref()?.segment(from, length as u32).ok()?;
        let to = RemoteMemory {
            address: theirs.address.wrapping_add(from as u64 - at as u64),
            token: theirs.token,
        };
        Some(self.write_and_tell(out, segment, to, length))
    }

    fn write_and_tell(
        &self,
        out: &mut LinkSender,
        segment: MemoryPiece,
        to: RemoteMemory,
        length: usize,
    ) -> Result<usize, Full> {
        let number = self.begin(out)?;
        let (tells, flags) = self.flags(out);
        let wire = self.wire().ok_or(Full)?;
        let tells_peer = self.port().device.limits.flags & Limits::TELLS != 0;
        let to_peer = if tells_peer { Flags::TELL } else { Flags::NONE };
        if let Err(why) = wire.pair.write(number, &[segment], to, flags | to_peer) {
            self.port().device.sent(1);
            self.fail(why);
            return Err(Full);
        }
        self.begun(out, number, tells);
        if !tells_peer {
            // Where this finds no room, the same bytes are written once more.
            self.send(out, FrameKind::Written, &[&(length as u32).to_le_bytes()])?;
        }
        Ok(length)
    }

    /// Whether the next request tells of its end, and how that is said.
    pub(super) fn flags(&self, out: &LinkSender) -> (bool, Flags) {
        let tells = self.is_to_tell(out);
        (tells, if tells { Flags::NONE } else { Flags::SILENT })
    }

    /// Registers a send buffer, or memory of the program for one call.
    pub(super) fn register(&self, at: *mut u8, size: usize) -> Result<MemoryRegion, Error> {
        if self.port().device.limits.flags & Limits::APPLICATION_MEMORY == 0 {
            // A fork child, which shares the segment, would be without what is registered.
            return Err(Error::NotSupported);
        }
        let region = self.port().device.objects()?.adapter.create_memory_region()?;
        // SAFETY: a send buffer is mapped until the link has ended, which drops the region before. A program's memory is
        // the kernel's to keep as long as the program's call lasts.
        unsafe { region.register(at, size)? };
        Ok(region)
    }
}

/// The send buffer of `sender`, as this end has it.
fn ring(body: &Body, sender: Role) -> (*mut u8, usize) {
    let size = body.segment.geometry().send_buffer as usize;
    (body.segment.send_buffer(sender, false).stretch(0, size).at(), size)
}
