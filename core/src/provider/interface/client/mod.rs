//! The client's side of the interface: safe objects over the C table of whatever provider.
//!
//! Each object holds what it was made from. So objects close in the right order by themselves, and the library stays
//! loaded as long as an object of it lives. Objects are cheap to clone, and the last clone closes. Operations begin,
//! succeed or fail at once. The client fetches results, and the provider never delivers them.

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
