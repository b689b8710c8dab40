//! Providers: what carries the messages of a session.
//!
//! `shm` serves connections within the host. A provider moves bytes and headers; it knows nothing
//! of sockets, readiness or flow control.

pub mod shm;
