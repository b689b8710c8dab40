//! Providers: what carries the messages of a session.
//!
//! [`interface`] is what every provider implements. `shm` serves connections within the host;
//! [`simulation`] is a fabric inside one process, for tests. A provider moves bytes and headers; it
//! knows nothing of sockets, readiness or flow control.

pub mod interface;
pub mod shm;
pub mod simulation;
pub mod software;
