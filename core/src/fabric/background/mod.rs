//! What goes on where the program is away: the work of the helper thread. It sends what has no room yet, takes what
//! comes while nobody looks, rings bells, answers connection requests, and ends links that were closed with something
//! unsent. TCP's kernel does the same in the background.
//!
//! - [`rounds`]: when it looks, and when it sleeps: while the completion queues are armed, ticking for a moment after
//!   something happened
//! - [`closed`]: links that the program closed; [`devices`]: that were removed; [`messages`]: of other processes'
//!   helpers
//! - [`calls`]: what the switch is to do then
//!
//! May call everything below. Nobody but the thread's start calls it.

mod calls;
mod closed;
mod devices;
mod messages;
mod rounds;

pub(crate) use calls::HelperCalls;
pub(super) use closed::finish;
pub(super) use rounds::install;
