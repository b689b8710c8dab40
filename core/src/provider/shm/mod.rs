//! The shared-memory provider.
//!
//! Each connection has one segment, which both ends map. It has for each direction the message buffers, used cyclically
//! by sequence number, and the send buffer. The peer can write everything in a segment at any time. So an end reads
//! each value once and checks it, and takes no index and no length from there unchecked.
//!
//! Connections of this host use segments directly: a queue pair in between would cost a copy and a completion for each
//! message. [`objects`] has the same memory behind the provider interface.

mod bells;
pub(crate) mod budget;
mod exchange;
#[cfg(test)]
mod field_tests;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod layout;
mod lent_elsewhere;
pub(crate) mod objects;
mod proof;
mod refusal;
mod registration;
mod segment;
mod send_buffer;
mod side;
mod slot;
mod span;

pub(crate) use crate::session::{AgreementState, Role};
pub(crate) use bells::Bells;
pub(crate) use layout::{Geometry, SegmentError};
pub(crate) use lent_elsewhere::Usage;
pub(crate) use refusal::Refusal;
pub(crate) use registration::{MemoryRegistration, Right, THRESHOLD};
pub(crate) use segment::{Part, Segment};
pub(crate) use send_buffer::{Overrun, SendBuffer};
pub(crate) use side::{
    Asked, SendingSide, Side, BOTH_SHUT, CLOSED, DEAF, FAILED, FINISHED, READ_SHUT, RETURNED,
};
pub(crate) use slot::MessageSlot;
pub(crate) use span::Span;
