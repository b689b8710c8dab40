//! How far a queue pair has come: what the thread whose turn it is keeps ([`PairProgress`]), and what others see of
//! that ([`SeenProgress`]).

use std::sync::atomic::{AtomicBool, AtomicU64};

/// How far a queue pair has come. Positions count bytes, numbers messages and requests, from zero.
#[derive(Default)]
pub(super) struct PairProgress {
    /// Bytes put into the ring.
    pub(super) written: u64,
    /// How many of them the peer took.
    pub(super) acknowledged: u64,
    /// Messages put there.
    pub(super) sent: u64,
    /// Bytes taken out of the peer's ring.
    pub(super) taken: u64,
    /// Requests that were begun.
    pub(super) issued: u64,
    /// One of them failed: those after it are not begun.
    pub(super) broken: bool,
    /// No message is taken any more.
    pub(super) is_deaf: bool,
}

/// What the engine saw last, by which others tell whether it would find something. Relaxed: a turn of the engine ends
/// with a store in SeqCst, so a thread that asks afterwards sees what the turn left.
#[derive(Default)]
pub(super) struct SeenProgress {
    /// Bytes taken from the peer.
    pub(super) taken: AtomicU64,
    /// Bytes that the peer took.
    pub(super) acknowledged: AtomicU64,
    /// Receives that the peer posted.
    pub(super) posted: AtomicU64,
    /// Requests that were begun.
    pub(super) issued: AtomicU64,
    /// A message waits for a buffer.
    pub(super) not_ready: AtomicBool,
    /// The first request has ended.
    pub(super) ripe: AtomicBool,
    /// A window that has to be closed waits for a write of the peer's.
    pub(super) stuck: AtomicBool,
    /// The requests that were left when it ended have been told.
    pub(super) settled: AtomicBool,
}
