//! Providers carry the messages of a session.
//!
//! Every provider implements [`interface`]. [`shm`] serves connections within the host, by segments, and has the
//! interface's objects as well. [`simulation`] is a fabric inside one process, for tests. A provider moves bytes and
//! headers. It knows nothing of sockets, readiness or flow control.

pub mod interface;
pub(crate) mod shm;
pub mod simulation;
pub mod software;

pub use shm::objects::SharedMemory;

/// The providers that are part of this library (N2), in the order of preference.
pub const BUILT_IN: &[interface::catalogue::BuiltIn] = &[shm::objects::BUILT_IN];
