//! Connections over a provider's queue pairs: two ends that share no memory.
//!
//! Each end has a segment of its own, in the layout of shared memory, and sees its peer in it. A [`Link`] plays the
//! peer's part there. It sends as [`frame`]s what this end publishes in its segment. It publishes what frames bring as
//! the peer would have done. So the session, the streams and their readiness are the same over every provider. A fork
//! child may use a connection whose queue pair is its parent's.
//!
//! Rooms and files lie on floors: each may call what lies below it, and docs/architecture.md has them in order. From
//! the top:
//!
//! - [`lifecycle`]: a process begins, forks, exits
//! - [`background`]: the helper's work, while the program is away
//! - [`meeting`]: both ends of a busy connection find each other
//! - [`sharing`]: processes that use a link which another process controls
//! - [`adapters`]: by their addresses; [`reception`]: connection requests there
//! - [`link`]: one connection; [`port`]: one adapter, and what completes over it
//! - [`helper`]: the thread that others wake; [`mailbox`]: messages between the helpers of several processes
//! - [`frame`], [`request`]: the forms of what is sent; [`source`]: where the provider comes from; [`fork_gate`]
//!
//! The fabric knows no `Socket`. Of the program's descriptors it keeps a closed connection's anchor, and does not read
//! it.

mod adapters;
mod background;
mod fork_gate;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod helper;
mod lifecycle;
mod link;
mod mailbox;
mod meeting;
mod port;
mod reception;
mod request;
mod sharing;
mod source;

#[cfg(test)]
mod tests;

pub(crate) use background::HelperCalls;
pub use lifecycle::call;
pub(crate) use lifecycle::{before_fork, enable, exiting, Forking};
pub(crate) use link::{Controller, Link, Users};
pub(crate) use meeting::{Meeting, MeetingOutcome, Parties};
pub(crate) use port::{Notified, Sleeper};
pub(crate) use request::geometry_of;
pub(crate) use source::{is_of_this_host, may_exist, Source};
