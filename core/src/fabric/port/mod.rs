//! One adapter in use: its device, the buffers, and who is told of what completes.
//!
//! - [`device`]: its objects until it is removed, the room for sends, the completion queue's notification
//! - [`completions`]: whose it is what has completed, and who takes it
//! - [`notification`]: whom the queue's notification wakes
//! - [`places`]: the links, by number; [`memory`]: registered buffers
//!
//! May call the provider and the helper. Must not know what a connection is, or what its frames mean: it says what
//! completed, and of which number.

mod completions;
mod device;
mod memory;
mod notification;
mod places;

pub(super) use completions::{PairEvent, Port};
pub(super) use device::Objects;
pub(super) use memory::Buffer;
pub(crate) use notification::{Notified, Sleeper};
