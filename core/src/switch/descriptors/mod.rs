//! The calls that make, change and end sockets and epoll sets, as the program makes them on descriptors.
//!
//! Each does what the kernel's call has left to do: it enters sockets into the books and takes them out, asks for
//! connections between hosts and ends them, and notes options. This room may call every room below, and have
//! connections go back to TCP. It moves no bytes of the program's. It brings no connection to the SAN by itself
//! ([`setup`](crate::switch::setup)), except for those between hosts. In come descriptors and libc's arguments. Out
//! goes an [`Outcome`](crate::switch::Outcome), or nothing.

pub(super) mod accept;
pub(super) mod connect;
pub mod lifecycle;
pub(in crate::switch) mod link_end;
pub mod options;
pub mod sets;
