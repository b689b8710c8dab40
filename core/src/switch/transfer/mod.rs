//! Sending and receiving, with TCP's rules for flags, waiting and errors.

pub mod files;
mod from_tcp;
mod rdma;
mod receive;
mod send;
pub mod shutdown;
mod suspend;
#[cfg(test)]
mod tests;
mod told;
mod turn;
mod urgent;

pub use receive::{read, receive};
pub use send::send;
