//! Connections over a provider's queue pairs: two ends that do not share memory.
//!
//! Each end has a segment of its own, in the layout of shared memory, and sees its peer in it. A
//! [`Link`] plays the peer's part there: what this end publishes in its segment goes out as
//! [`frame`]s, and what frames bring is published as the peer would have done it. So the session, the
//! streams and their readiness are the same over every provider, and a fork child may use a
//! connection whose queue pair is its parent's.
//!
//! Rooms and files lie on floors: each may call what lies below it, and docs/architecture.md has them in order. From
//! the top:
//!
//! - [`lifecycle`]: a process begins, forks, exits
//! - [`background`]: what goes on where the program is away
//! - [`meeting`]: both ends of a busy connection find each other
//! - [`sharing`]: what processes do that use a link which another one controls
//! - [`adapters`]: by their addresses; [`reception`]: who asks for a link there
//! - [`link`]: one connection; [`port`]: one adapter with what completes over it
//! - [`helper`]: the thread that others wake; [`mailbox`]: what those of several processes say to each other
//! - [`frame`], [`request`]: the forms of what is sent; [`source`]: where the provider comes from; [`fork_gate`]
//!
//! Knows no `Socket`. Of the program's descriptors it keeps a closed
//! connection's anchor, unread.

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
