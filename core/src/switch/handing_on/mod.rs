//! Connections with which somebody is to go on who cannot do so on the SAN: another program ([`exec`]), another process
//! ([`passing`]), or this one by ways that pass the library's hooks. They go back to TCP before ([`bring_back`]).
//!
//! This room decides which connections that concerns, and what becomes of those that cannot go back.
//! [`back_to_tcp`](crate::switch::back_to_tcp) knows how they go back. Where a vfork child may be the caller, this room
//! changes only what the processes of a connection share. In come descriptors, or a message. Out goes whether the call
//! may be made.

pub mod bring_back;
pub mod exec;
pub mod passing;
mod substitute;
