//! Sending and receiving on the SAN, with TCP's rules for flags, waiting and errors: from a stream's steps to a call's
//! result.
//!
//! May wait, and have connections go back to TCP. Must not decide that one comes to the SAN, nor know of epoll.

pub mod files;
mod from_tcp;
mod rdma;
mod receive;
mod send;
mod send_queue;
pub mod shutdown;
mod suspending;
#[cfg(test)]
mod tests;
mod told;
mod urgent;

pub use receive::{read, receive};
pub use send::{send, write_vector};
