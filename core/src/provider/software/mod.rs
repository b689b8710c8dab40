//! What providers share: completion queues, the base of asynchronous operations, registered memory with its checks, and
//! the fate of descriptors at a fork. This room knows nothing of how bytes travel.

mod completions;
pub mod inherited;
mod memory;
mod notifier;
mod outcomes;
mod waiting;

pub(crate) use completions::Completions;
pub(crate) use memory::{AdapterMemory, Region};
pub(crate) use notifier::Notifier;
pub(crate) use outcomes::Outcomes;
pub use waiting::Waiting;
