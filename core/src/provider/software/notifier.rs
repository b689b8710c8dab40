//! A descriptor that is readable while somebody has something to fetch.

use crate::provider::interface::{Error, Result};
use crate::sys::{file, Fd};

/// An eventfd of this object's own.
pub(super) struct Notifier(Fd);

impl Notifier {
    /// Not readable at first.
    pub(super) fn new() -> Result<Self> {
        let made = file::eventfd(0).map_err(|_| Error::InsufficientResources)?;
        Ok(Notifier(file::move_high(made)))
    }

    /// The descriptor.
    pub(super) fn descriptor(&self) -> Fd {
        self.0
    }

    /// Makes it readable.
    pub(super) fn raise(&self) {
        let one = 1u64;
        // A full counter is readable already.
        let _ = file::write_now(self.0, (&raw const one).cast(), size_of::<u64>());
    }

    /// Makes it unreadable; whether it was readable.
    pub(super) fn lower(&self) -> bool {
        let mut count = 0u64;
        file::read_now(self.0, (&raw mut count).cast(), size_of::<u64>()).is_ok()
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        file::close(self.0);
    }
}
