//! RDMA transfers and adaptive flow control, each direction of a connection by itself: when much
//! data is announced, advertised, read, written, or sent in messages after all (S3–S5, A3–A8,
//! A10–A14).
//!
//! The sender's half is [`Sending`], the receiver's [`Receiving`]; the caller exchanges their control
//! messages and does the provider's operations. Must not move bytes, wait, or know a clock.

mod preference;
mod receiving;
mod sending;

#[cfg(test)]
mod tests;

pub use preference::{Preference, Way};
pub use receiving::{Call, Posting, Receiving, Rest};
pub use sending::{End, Plan, Progress, Sending};

/// What the provider of a connection offers (A2). Asked of the provider, never assumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Smallest transfer in bytes that RDMA is worth; `u32::MAX`: never.
    pub threshold: u32,
    /// It has RDMA read.
    pub read: bool,
    /// It has RDMA write.
    pub write: bool,
}

impl Abilities {
    /// A provider, or a connection, on which messages carry everything.
    pub const NONE: Abilities = Abilities { threshold: u32::MAX, read: false, write: false };

    fn rdma(&self) -> bool {
        self.read || self.write
    }
}
