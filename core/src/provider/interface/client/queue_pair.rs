//! A queue pair.

use super::super::abi;
use super::super::error::{Error, ProviderResult};
use super::super::types::*;
use super::owned::Owned;
use super::MemoryRegion;
use std::ops::Range;
use std::sync::Arc;

/// Where requests are posted. Each ends with an entry in a completion queue, in the order of
/// posting among the requests of the same direction, unless it is silent and succeeds.
#[derive(Clone)]
pub struct QueuePair {
    pub(super) object: Arc<Owned>,
}

// SAFETY of the calls below: a live handle of the table's own, and pointers that are valid for the
// call. The memory that segments name is checked by the provider against its registrations.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one invariant, stated above")]
impl QueuePair {
    /// Sends a message. One that comes before the peer posted a receive is held, not lost (A1).
    pub fn send(&self, request: u64, from: &[MemoryPiece], flags: Flags) -> ProviderResult<()> {
        let send = self.object.table().send;
        abi::done(unsafe {
            send(self.object.handle(), request, from.as_ptr(), from.len() as u32, flags.0)
        })
    }

    /// Sends a small message, at most the queue pair's inline size. The call takes its bytes at once.
    pub fn send_inline(&self, request: u64, bytes: &[u8], flags: Flags) -> ProviderResult<()> {
        let send = self.object.table().send_inline;
        let length = u32::try_from(bytes.len()).map_err(|_| Error::InvalidParameter)?;
        let at = bytes.as_ptr().cast();
        abi::done(unsafe { send(self.object.handle(), request, at, length, flags.0) })
    }

    /// Posts a buffer for a message.
    pub fn receive(&self, request: u64, into: &[MemoryPiece]) -> ProviderResult<()> {
        let receive = self.object.table().receive;
        abi::done(unsafe {
            receive(self.object.handle(), request, into.as_ptr(), into.len() as u32)
        })
    }

    /// RDMA read.
    pub fn read(
        &self,
        request: u64,
        into: &[MemoryPiece],
        from: RemoteMemory,
        flags: Flags,
    ) -> ProviderResult<()> {
        let (read, n) = (self.object.table().read, into.len() as u32);
        abi::done(unsafe { read(self.object.handle(), request, into.as_ptr(), n, &from, flags.0) })
    }

    /// RDMA write.
    pub fn write(
        &self,
        request: u64,
        from: &[MemoryPiece],
        to: RemoteMemory,
        flags: Flags,
    ) -> ProviderResult<()> {
        let (write, n) = (self.object.table().write, from.len() as u32);
        abi::done(unsafe { write(self.object.handle(), request, from.as_ptr(), n, &to, flags.0) })
    }

    /// Makes the addresses of a region reachable for the peer of this queue pair alone (M2, M3)
    /// and gives the token. A message sent afterwards may carry it.
    pub fn bind(
        &self,
        request: u64,
        region: &MemoryRegion,
        addresses: Range<u64>,
        access: RemoteAccess,
        flags: Flags,
    ) -> ProviderResult<u32> {
        self.object.check_same_adapter(&region.object)?;
        let length = addresses.end.checked_sub(addresses.start).ok_or(Error::InvalidParameter)?;
        let (bind, mut token) = (self.object.table().bind, 0);
        abi::done(unsafe {
            let (this, region) = (self.object.handle(), region.object.handle());
            let access = access as u32;
            bind(this, request, region, addresses.start, length, access, flags.0, &mut token)
        })?;
        Ok(token)
    }

    /// Ends what `bind` began: once this has completed, the peer reaches nothing by that token. With
    /// [`Flags::AT_ONCE`] that is so when the call returns, however long earlier requests of the queue pair wait.
    pub fn invalidate(&self, request: u64, token: u32, flags: Flags) -> ProviderResult<()> {
        let invalidate = self.object.table().invalidate;
        abi::done(unsafe { invalidate(self.object.handle(), request, token, flags.0) })
    }

    /// Ends every outstanding request with [`Error::Cancelled`]; the queue pair is of no use
    /// afterwards.
    pub fn flush(&self) -> ProviderResult<()> {
        abi::done(unsafe { (self.object.table().flush)(self.object.handle()) })
    }
}
