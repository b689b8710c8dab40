//! What providers without a device of their own share: completion queues, the base of asynchronous
//! operations, and registered memory with its checks. Knows nothing of how bytes travel.

mod completions;
mod memory;
mod notifier;
mod outcomes;

pub use completions::Completions;
pub use memory::{Memory, Region};
pub use outcomes::Outcomes;
