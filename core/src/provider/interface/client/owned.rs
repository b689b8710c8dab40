//! A handle of a provider's object, closed once, before what it was made from.

use super::super::abi::{self, Handle, ProviderTable};
use super::super::error::{Error, ProviderResult};
use super::super::library::Library;
use std::sync::Arc;

pub(super) struct Owned {
    handle: Handle,
    close: unsafe extern "C" fn(Handle),
    /// Dropped after `handle` is closed. The first one is the adapter of what an adapter made.
    parents: Vec<Arc<Owned>>,
    library: Arc<Library>,
}

// SAFETY: the interface allows every function of a handle on any thread at any time.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Owned {
    /// Keeps what `make` put out.
    pub(super) fn make(
        library: &Arc<Library>,
        parents: &[&Arc<Owned>],
        close: unsafe extern "C" fn(Handle),
        make: impl FnOnce(*mut Handle) -> i32,
    ) -> ProviderResult<Arc<Owned>> {
        let mut handle: Handle = std::ptr::null_mut();
        abi::done(make(&mut handle))?;
        if handle.is_null() {
            return Err(Error::Internal);
        }
        let parents = parents.iter().map(|&parent| parent.clone()).collect();
        Ok(Arc::new(Owned { handle, close, parents, library: library.clone() }))
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    pub(super) fn library(&self) -> &Arc<Library> {
        &self.library
    }

    pub(super) fn table(&self) -> &ProviderTable {
        self.library.table()
    }

    /// As [`check_same_adapter`](Self::check_same_adapter), of the adapter itself.
    pub(super) fn check_made_by(&self, adapter: &Arc<Owned>) -> ProviderResult<()> {
        match self.parents.first() {
            Some(parent) if Arc::ptr_eq(parent, adapter) => Ok(()),
            _ => Err(Error::InvalidParameter),
        }
    }

    /// An object of another adapter must never reach the provider, which would take it for its own.
    pub(super) fn check_same_adapter(&self, other: &Owned) -> ProviderResult<()> {
        match (self.parents.first(), other.parents.first()) {
            (Some(a), Some(b)) if Arc::ptr_eq(a, b) => Ok(()),
            _ => Err(Error::InvalidParameter),
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the handle is this object's own, and its children are gone: they held it.
        unsafe { (self.close)(self.handle) }
    }
}
