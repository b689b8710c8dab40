//! A memory region.

use super::super::abi;
use super::super::error::ProviderResult;
use super::super::types::MemoryPiece;
use super::owned::Owned;
use std::sync::Arc;

/// Local memory that requests may name (M1). The last clone deregisters.
#[derive(Clone)]
pub struct MemoryRegion {
    pub(super) object: Arc<Owned>,
}

impl MemoryRegion {
    /// Registers memory for the use of this process alone.
    ///
    /// # Errors
    /// `InsufficientResources` or `AccessDenied` where it cannot be pinned: use messages (S6).
    ///
    /// # Safety
    /// The memory stays mapped until it is deregistered or the region is closed. Requests that
    /// name it read and write it meanwhile, so no Rust reference may claim it as unchanging.
    pub unsafe fn register(&self, address: *mut u8, length: usize) -> ProviderResult<()> {
        let table = self.object.table();
        // SAFETY: a live handle; the memory is the caller's promise.
        abi::done(unsafe {
            (table.register_memory)(self.object.handle(), address.cast(), length as u64)
        })
    }

    /// Ends the registration. Nothing touches the memory afterwards.
    pub fn deregister(&self) -> ProviderResult<()> {
        // SAFETY: a live handle.
        abi::done(unsafe { (self.object.table().deregister_memory)(self.object.handle()) })
    }

    /// The token that segments name it by.
    pub fn local_token(&self) -> ProviderResult<u32> {
        let mut token = 0;
        // SAFETY: a live handle, a valid place.
        abi::done(unsafe { (self.object.table().local_token)(self.object.handle(), &mut token) })?;
        Ok(token)
    }

    /// A segment of it.
    pub fn segment(&self, address: *const u8, length: u32) -> ProviderResult<MemoryPiece> {
        Ok(MemoryPiece { address: address as u64, length, token: self.local_token()? })
    }
}
