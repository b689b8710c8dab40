//! The message part of the session protocol without I/O (S1, S2, A1, A15–A18): headers, credits,
//! sequence numbers, select counters. Providers move the bytes; the switch decides when to send.
//! Must not call the kernel, allocate, or lock. docs/protocol.md describes what is on the wire.

mod doorbells;
mod error;
mod flow;
mod header;
mod select_counter;
mod sync;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use doorbells::{Doorbells, Rung};
pub use error::{NoCredit, ProtocolError};
pub use flow::Session;
pub use header::{Header, Kind, HEADER_SIZE, VERSION};
pub use select_counter::{SelectCounter, Ticket};
