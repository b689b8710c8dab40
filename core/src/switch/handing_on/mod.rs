//! Connections that somebody is to go on with who cannot do so on the SAN: another program ([`exec`]), another process
//! ([`passing`]), or this one by ways that pass the library's hooks. They go back to TCP before ([`bring_back`]).
//!
//! Decides which connections that concerns, and what becomes of those that cannot go back. How they go back is
//! [`back_to_tcp`](crate::switch::back_to_tcp)'s. Changes only what the processes of a connection share where a vfork
//! child may be the caller. In come descriptors, or a message; out goes whether the call may be made.

pub mod bring_back;
pub mod exec;
pub mod passing;
mod substitute;
