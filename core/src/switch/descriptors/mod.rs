//! The calls that make, change and end sockets and epoll sets, as the program makes them on descriptors.
//!
//! Each does what the kernel's call has left to do: sockets enter and leave the books, connections between hosts are
//! asked for and ended, options are noted. May call every room below, and have connections go back to TCP. Moves no
//! bytes of the program's, and never brings a connection to the SAN by itself ([`setup`](crate::switch::setup)) but for
//! those between hosts. In come descriptors and libc's arguments; out goes an [`Outcome`](crate::switch::Outcome), or
//! nothing.

pub(super) mod accept;
pub(super) mod connect;
pub mod lifecycle;
pub(in crate::switch) mod link_end;
pub mod options;
pub mod sets;
