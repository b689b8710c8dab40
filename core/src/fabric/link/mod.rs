//! One connection over a queue pair. The link plays the peer's part in this end's segment.
//!
//! One thread at a time sends. Another thread that wants to send leaves that one a note. The thread that takes the
//! port's completions receives. No thread waits for another. One process has the queue pair, and so controls the link.
//! Its fork relatives use the link through the helper of that process, or take control.
//!
//! - [`state`]: all that a link knows; its parts: [`body`] (the end's segment), [`sender`], [`wire`] (the queue pair),
//!   [`controller`] (the process that has the queue pair), [`course`] (of a move)
//! - [`proving`]: whether both ends have one connection; [`agreeing`]: whether both ends use the link; [`turning`]: from which byte on
//! - [`outgoing`], in frames that [`posting`] sends or by RDMA ([`direct`]); [`incoming`]; [`completing`]: taking what
//!   completed
//! - [`lending`]: the peer may use memory of this end's program; [`borrowing`]: this end uses the peer's
//! - [`waking`]: threads that sleep on the link; [`failing`]: the link broke
//! - [`delivery`]: whether the peer has everything; [`closing`]: nobody uses the link any more; [`ended`]: queue pairs
//!   that ended; [`returning`]: the way to TCP
//! - [`moving`]: the link goes to another process; [`following`]: the peer's end did; [`taking`]: this process takes
//!   control; [`former_links`]: what is left of links that another process controls
//!
//! This room may call the port below it, and wake the helper. It opens no listeners and no adapters, and never asks for
//! control: that is the business of `sharing`. It knows no sockets.

mod agreeing;
mod body;
mod borrowing;
mod closing;
mod completing;
mod controller;
mod course;
mod delivery;
mod direct;
pub(super) mod ended;
mod failing;
mod following;
pub(super) mod former_links;
mod incoming;
mod lending;
mod moving;
mod outgoing;
mod posting;
mod proving;
mod returning;
mod sender;
mod state;
mod taking;
mod turning;
mod waking;
mod wire;

pub(crate) use closing::Users;
pub(super) use closing::{after_fork_in_child, ClosedLink, CLOSED_LINKS};
pub(crate) use controller::Controller;
pub(super) use outgoing::Tell;
pub(crate) use state::Link;
pub(super) use state::{stage, LinkPort};
