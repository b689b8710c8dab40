//! What poll, select and epoll say of sockets on the SAN, and how a thread sleeps in them.
//!
//! They look at the streams, spin while that pays, raise the select counters and sleep in the kernel, which watches
//! everything else. May wait ([`waiting`](crate::switch::waiting)) and have connections go back to TCP. Moves no bytes
//! of the program's. `poll`, `select` and `epoll` are the program's calls; [`events`] says what is ready on one socket.

pub mod epoll;
pub(in crate::switch) mod events;
pub mod poll;
mod polled_socket;
pub mod select;
mod timeout;
