//! What simulated connectors and listeners consist of.

use crate::provider::interface::Error;
use crate::provider::software::Outcomes;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    /// A connector that asked and has no answer.
    Asking,
    /// A connector whose request was accepted.
    Agreed,
    /// A listener's connector with a request.
    Asked,
    /// A listener's connector that accepted.
    Accepted,
    Connected,
    Ended(Option<Error>),
}

pub(super) struct SimulatedConnection {
    pub(super) ip: IpAddr,
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
    pub(super) peer: Option<u64>,
    pub(super) pair: Option<u64>,
    pub(super) phase: Phase,
    pub(super) private_data: Vec<u8>,
    pub(super) outcomes: Arc<Outcomes>,
    pub(super) connecting: Option<u64>,
    pub(super) awaiting_end: Option<u64>,
}

pub(super) struct SimulatedListening {
    pub(super) local: Option<SocketAddr>,
    pub(super) backlog: usize,
    /// Connectors of clients that wait for a connector of the server's.
    pub(super) waiting: VecDeque<u64>,
    pub(super) outcomes: Arc<Outcomes>,
    /// The request under way, and the connector it fills.
    pub(super) pending: Option<(u64, u64)>,
}
