//! The client's side of the interface: safe objects over the C table of whatever provider.
//!
//! Each object holds what it was made from, so that the order of closing is right by itself, and
//! the library stays loaded as long as an object of it lives. Objects are cheap to clone; the last
//! clone closes. Operations begin, succeed or fail at once; results are fetched, never delivered.

mod adapter;
mod completion_queue;
mod connector;
mod listener;
mod memory_region;
mod overlapped;
mod owned;
mod queue_pair;
mod shared_receive_queue;

pub use adapter::{Adapter, Provider};
pub use completion_queue::CompletionQueue;
pub use connector::Connector;
pub use listener::Listener;
pub use memory_region::MemoryRegion;
pub use overlapped::Overlapped;
pub use queue_pair::QueuePair;
pub use shared_receive_queue::SharedReceiveQueue;
