//! The switch's answer to a call.

use crate::sys::Errno;

/// What became of a call.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Not ours: the kernel does it.
    Pass,
    /// Done here, with the kernel's kind of result.
    Done(Result<usize, Errno>),
}
