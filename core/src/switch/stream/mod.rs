//! The byte stream of one connection over the session and the shm provider.
//!
//! Order (A1, A19): unread messages come before unread bytes of the send buffer, because the sender uses messages only
//! while its send buffer is empty. A stream never waits for the peer's program. It makes system calls only for RDMA,
//! for a copy under way, and to ask what TCP still has. Where somebody sleeps for an event, a call returns "ring".

#[cfg(test)]
mod advertisement_tests;
mod arrived;
mod at_once;
pub(in crate::switch) mod batching;
pub(in crate::switch) mod carrier;
mod control_messages;
pub(in crate::switch) mod counters;
mod due_messages;
mod growth;
mod holding;
#[cfg(any(test, feature = "fuzzing"))]
mod hostile;
#[cfg(test)]
mod hostile_tests;
mod lending;
mod order;
mod posted;
mod rdma_receive;
mod rdma_send;
mod readable;
mod receive;
mod recovery;
mod send;
mod send_buffer;
mod shown;
mod suspension;
#[cfg(test)]
mod suspension_tests;
#[cfg(any(test, feature = "fuzzing"))]
mod test_ends;
#[cfg(test)]
mod tests;
mod unread;
#[cfg(test)]
mod unread_tests;
mod whole;

pub use holding::before_jump;
pub(in crate::switch) use holding::Hold;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use hostile::fuzz_words;
pub(in crate::switch) use posted::Posted;
use whole::{payload_of, CHUNK};
pub(in crate::switch) use whole::{Broken, Denied, Held, Moved};
pub(crate) use whole::{Stream, Take};
