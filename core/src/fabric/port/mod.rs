//! One adapter in use: its device, the buffers, and the routes of what completes.
//!
//! - [`device`]: its objects until it is removed, the room for sends, the completion queue's notification
//! - [`completions`]: which link a completion belongs to, and which thread takes it
//! - [`notification`]: which thread the queue's notification wakes
//! - [`places`]: the links, by number; [`memory`]: registered buffers; [`receives`]: those for what comes in
//!
//! This room may call the provider and the helper. It does not know what a connection is, or what its frames mean: it
//! says what completed, and of which number.

mod completions;
mod device;
mod memory;
mod notification;
mod places;
mod receives;

pub(super) use completions::{PairEvent, Port};
pub(super) use device::Objects;
pub(super) use memory::{after_fork_in_child, Buffer};
pub(crate) use notification::{Notified, Sleeper};
