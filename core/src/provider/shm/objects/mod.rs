//! The objects of the provider interface (N1–N4) over shared memory: connections between processes of one host, with
//! the meaning that a device's have.
//!
//! Each connection has a memory file of its own, which only its two ends map ([`layout`]). The file has for each
//! direction a ring of bytes for messages, and the list of windows that an end has bound for its peer. A message waits
//! in the ring until its receiver has posted a buffer (A1). RDMA is the kernel's copy between processes, into what the
//! windows say (M2, M3). Nothing here has a thread: calls take the steps, and only `get_results` and `next_result` take
//! those of receives and completions.
//!
//! # Signal handlers
//!
//! A handler may post requests and flush a queue pair whatever it interrupted, except for posting to the same queue.
//! Neither act adds completions or waits for another thread's turn. Other calls take locks: asking completion queues,
//! posting to shared receive queues, connectors, listeners, and making and closing objects. There a client holds
//! signals back, or keeps handlers out.
//!
//! # Parts
//!
//! Each part uses only those above it. Those in one line use each other:
//!
//! - [`ring`], [`window`], [`layout`]: what lies in the shared memory
//! - [`channel`]: one connection's memory, and the doorbell
//! - [`work_queue`]: requests that were posted and are not over
//! - [`results`], [`shared_receives`]: what a queue pair holds of its completion queues and its shared receive queue
//! - [`pair`], [`progress`]: what a queue pair consists of, and how far it has come
//! - [`remote`] (RDMA), [`ending`], [`sending`], [`receiving`]: the steps of its work; [`engine`]: which thread has a
//!   turn
//! - [`completion_queue`], [`shared_receive_queue`]: the queues, which know their queue pairs
//! - [`queue_pair`] checks and posts
//! - [`handshake`]: how two processes find each other, and what they say before there is a connection
//! - [`connector`], then [`listener`]: making and ending connections
//! - [`limits`], [`adapter`]: the provider itself
//!
//! # Sleeping
//!
//! Two ends that look by themselves make no system call for a message. An end that sleeps is woken. A completion queue
//! that was asked to notify *arms* its queue pairs: it stores in shared memory what the peer is to ring for. Its client
//! then looks once more. The peer publishes, and then tests that word. Between the store and the load of either side
//! lies a fence (SeqCst), so at least one of the two sees what the other stored: either the look finds the message, or
//! the peer finds the word and rings. The peer takes the word back before it rings, so that each arming costs at most
//! one ring.
//!
//! # A peer's word
//!
//! The peer can write whatever lies in shared memory at any time. This end reads each value once, checks it and copies
//! it. An impossible value ends this connection alone. This end names buffers, and only lengths come from the peer.

mod adapter;
mod channel;
mod completion_queue;
mod connector;
mod ending;
mod engine;
mod handshake;
mod layout;
mod limits;
mod listener;
mod pair;
mod progress;
mod queue_pair;
mod receiving;
mod remote;
mod results;
mod ring;
mod sending;
mod shared_receive_queue;
mod shared_receives;
mod window;
mod work_queue;

#[cfg(test)]
mod tests;

pub use adapter::SharedMemory;

use crate::provider::interface::catalogue::BuiltIn;
use crate::provider::interface::library::Library;

/// The entry of the catalogue of providers (N2).
pub(crate) const BUILT_IN: BuiltIn = ("shm", Library::built_in::<SharedMemory>);

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use handshake::fuzz;
