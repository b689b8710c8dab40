//! The acceptor's side: which link belongs to which accepted TCP connection.
//!
//! A connector asks for a link before it connects over TCP, and binds it to the two addresses once TCP's source port is
//! known. The acceptor finds the link by them when it has accepted; that one arrived, bound or not yet, tells it that
//! there is something to wait for.
//!
//! - [`serving`]: listeners; [`arrivals`]: links that came there and wait
//! - [`mod@accept`]: an accepted connection looks for its link; [`claims`]: also at another process, by what the
//!   processes of the listener share ([`shared_backlog`])
//! - [`state`]: all of that in this process
//!
//! May invite peers to this process's own listeners. Must not attach links to segments: whoever accepts does.

mod accept;
pub(super) mod arrivals;
pub(super) mod claims;
pub(super) mod serving;
mod shared_backlog;
mod state;

pub(crate) use accept::accept;
pub(crate) use claims::Claim;
pub(crate) use serving::{serve, Serving};
pub(crate) use shared_backlog::SharedBacklog;
pub(super) use state::after_fork_in_child;
