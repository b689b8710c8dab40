//! What poll, select and epoll say of sockets on the SAN, and how a thread sleeps in them.
//!
//! These calls look at the streams, spin while that pays, raise the select counters and sleep in the kernel. The kernel
//! watches everything else. This folder may wait ([`waiting`](crate::switch::waiting)), and may have connections go
//! back to TCP. It moves none of the program's bytes. `poll`, `select` and `epoll` are the program's calls; [`events`]
//! says what is ready on one socket.

pub mod epoll;
pub(in crate::switch) mod events;
pub mod poll;
mod polled_socket;
pub mod select;
mod timeout;
