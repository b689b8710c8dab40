//! What poll, select and epoll say of sockets on the SAN.

pub mod epoll;
pub(in crate::switch) mod events;
pub mod poll;
