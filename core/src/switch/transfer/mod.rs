//! Sends and receives on the SAN, with TCP's rules for flags, waiting and errors: makes a call's result from a stream's
//! steps.
//!
//! This folder may wait, and may have connections go back to TCP. It must not decide that a connection comes to the
//! SAN, and must not know of epoll.

mod announced;
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
