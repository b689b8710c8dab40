//! One connection over a queue pair: plays the peer's part in this end's segment.
//!
//! Going out one thread is at it at a time, and who finds another leaves it a note. Coming in it is whoever takes the
//! port's completions. Nobody waits for anybody. The queue pair is that of one process, which controls the link; fork
//! relatives use it through that one's helper, or take control.
//!
//! - [`state`]: all that a link knows; its parts: [`body`] (the end's segment), [`sender`], [`wire`] (the queue pair),
//!   [`controller`] (which process has that), [`course`] (of a move)
//! - [`agreeing`]: how both ends come to use it; [`turning`]: from which byte on
//! - [`outgoing`], in frames that [`posting`] sends or by RDMA ([`direct`]); [`incoming`]; [`completing`]: taking what
//!   completed
//! - [`waking`]: who sleeps on it; [`failing`]: it broke
//! - [`delivery`]: whether the peer has everything; [`closing`]: nobody uses it any more; [`ended`] queue pairs;
//!   [`returning`]: to TCP
//! - [`moving`]: to another process; [`following`] a peer that does; [`taking`] control; [`former_links`]: what is left
//!   of links that another process controls
//!
//! May call the port below it and wake the helper. Must not open listeners or adapters, nor ask for control by itself:
//! that is the business of `sharing`. Nor does it know of sockets.

mod agreeing;
mod body;
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
mod moving;
mod outgoing;
mod posting;
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
