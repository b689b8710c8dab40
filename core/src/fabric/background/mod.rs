//! The work of the helper thread, which goes on while the program is away. The helper sends what had no room, takes in
//! what comes while nobody looks, rings bells, answers connection requests, and ends links that were closed before all
//! was sent. TCP's kernel does the same in the background.
//!
//! - [`rounds`]: when the helper looks, and when it sleeps
//! - [`closed`]: links that the program closed; [`devices`]: devices that were removed; [`messages`]: requests of other
//!   processes' helpers
//! - [`calls`]: what the helper has the switch do
//!
//! This room may call everything below it. Nobody but the thread's start calls it.

mod calls;
mod closed;
mod devices;
mod messages;
mod rounds;

pub(crate) use calls::HelperCalls;
pub(super) use closed::finish;
pub(super) use rounds::install;
