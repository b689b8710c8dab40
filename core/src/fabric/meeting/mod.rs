//! The two ends of a TCP connection between hosts find each other over RDMA, in the background.
//!
//! Both ends have seen that the connection is busy. The connector's end *awaits* the other at its own TCP port's
//! number, in the provider's own space of numbers. That number is this connection's alone, whichever process accepted
//! at the other end. The acceptor's end *approaches* it there, again and again for a moment, since the connector may
//! come later. A request carries the acceptor's port. Together with both hosts' addresses and the listener's number that
//! names the connection. The request and its answer prove that both processes have its ends ([`proof`](crate::proof)).
//!
//! - [`asking`]: what threads of the program call; [`rounds`]: what the helper does
//! - [`awaiting`], [`approach`]: what the helper does for either end; [`appointment`]: what both know of an end
//!
//! This room may open adapters and listeners, and make links. No thread of the program waits for anything here.

mod appointment;
mod approach;
mod asking;
mod awaiting;
mod rounds;
#[cfg(test)]
mod tests;

pub(crate) use appointment::Parties;
pub(crate) use asking::{Meeting, MeetingOutcome};
pub(super) use rounds::{after_fork_in_child, next_due, progress, retire};
