//! The shared-memory provider.
//!
//! One segment per connection, mapped by both ends: per direction the message buffers, used
//! cyclically by sequence number, and the send buffer. Everything in a segment can be written by
//! the peer at any time, so every value is read once and checked, and no index or length is ever
//! taken from it unchecked.
//!
//! Connections of this host use segments directly: a queue pair in between would cost a copy and a
//! completion for each message. [`objects`] has the same memory behind the provider interface.

mod bells;
pub(crate) mod budget;
#[cfg(test)]
mod field_tests;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod layout;
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
pub(crate) use refusal::Refusal;
pub(crate) use registration::{Registration, Right, THRESHOLD};
pub(crate) use segment::{Part, Segment};
pub(crate) use send_buffer::{Overrun, SendBuffer};
pub(crate) use side::{Asked, SendingSide, Side, CLOSED, FAILED, FINISHED, READ_SHUT, RETURNED};
pub(crate) use slot::MessageSlot;
pub(crate) use span::Span;
