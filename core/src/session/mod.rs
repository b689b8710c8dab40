//! The session protocol without I/O: headers, control messages, credits, sequence numbers, select counters (S1, S2, A1,
//! A15–A18); RDMA transfers, their modes, and the size of message buffers (S3–S5, A2–A14); control of a shared end
//! (D2), and its suspension (D4); how a connection comes to the SAN and goes back to TCP. Providers move the bytes, and
//! the switch decides when to send. This room calls no kernel, allocates nothing, and takes no lock. docs/protocol.md
//! describes what is on the wire.

mod agreement;
mod control;
mod direction;
mod end_word;
mod error;
mod flow;
mod header;
mod mode;
mod resize;
mod select_counter;
mod suspend;
mod sync;
pub mod token;
pub mod transfer;
mod turn;
mod way_back;
mod way_in;
mod way_out;

#[cfg(test)]
mod direction_tests;
#[cfg(test)]
mod end_word_tests;
#[cfg(test)]
mod model;
#[cfg(test)]
mod move_tests;
#[cfg(test)]
mod select_counter_tests;
#[cfg(test)]
mod suspend_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod token_tests;

pub(crate) use agreement::{Agreement, AgreementState, Role};
pub use control::{Advertisement, Available, Complete, Control, LARGEST_TRANSFER};
pub(crate) use direction::{Direction, DirectionState};
pub(crate) use end_word::{EndState, EndWord};
pub use error::{NoCredit, ProtocolError};
pub use flow::Session;
pub use header::{Header, Kind, HEADER_SIZE, LARGEST_BODY, VERSION};
pub use mode::{Behaviour, Mode};
pub use resize::Resize;
pub(crate) use select_counter::{Called, SelectCounter, Ticket};
pub use suspend::Suspension;
pub(crate) use turn::{turn, Inbound, Misplaced, Outbound, OverTcp};
pub(crate) use way_back::{end_reading, read_twice, resent};
pub(crate) use way_in::{InEvent, WayIn};
pub(crate) use way_out::{OutEvent, WayOut};
