//! Why an access to the memory of another process did not happen.

use crate::sys::Errno;

/// Why the peer's memory was not accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It is not registered under this number, not any more, not for this, or not for so much.
    NotRegistered,
    /// The process that lent it is gone.
    Gone,
    /// The process of that number is another: of another namespace, or a later one.
    Stranger,
    /// The kernel does not let us access that process.
    Forbidden,
    /// Memory at either end is not there.
    Fault,
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        match error {
            Errno(libc::ESRCH) => Refusal::Gone,
            Errno(libc::EFAULT) => Refusal::Fault,
            _ => Refusal::Forbidden,
        }
    }
}
