//! A descriptor that is readable while somebody has something to fetch.

use super::inherited::Descriptor;
use crate::provider::interface::{Error, ProviderResult};
use crate::sys::{file, Fd};

/// An eventfd of this object's own. It does not block, and no other process has it.
pub(crate) struct Notifier(Descriptor);

impl Notifier {
    /// Not readable at first.
    pub(crate) fn new() -> ProviderResult<Self> {
        let made = file::eventfd(0).map_err(|_| Error::InsufficientResources)?;
        Ok(Notifier(Descriptor::new(made)))
    }

    /// The descriptor.
    pub(crate) fn descriptor(&self) -> Fd {
        self.0.get()
    }

    /// Makes it readable.
    pub(crate) fn raise(&self) {
        let one = 1u64;
        // A full counter is readable already.
        let _ = file::write(self.0.get(), (&raw const one).cast(), size_of::<u64>());
    }

    /// Makes it unreadable; whether it was readable.
    pub(crate) fn lower(&self) -> bool {
        let mut count = 0u64;
        file::read(self.0.get(), (&raw mut count).cast(), size_of::<u64>()).is_ok()
    }
}
