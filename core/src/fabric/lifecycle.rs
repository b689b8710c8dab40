//! The fabric in the life of a process: its start allows the fabric, its forks and its exit pass through here, and
//! other processes reach it here.

use super::background::{self, HelperCalls};
use super::source::Source;
use super::{adapters, fork_gate, helper, link, mailbox, meeting, sharing};
use crate::sys::lock_order::RankGuard;
use crate::sys::{file, packet, Errno};
use std::sync::RwLockWriteGuard;

/// How long (ns) the exit of a process waits for peers to take what it sent.
const PATIENCE: u64 = 5_000_000_000;

/// Allows the use of a provider for connections, if there may be any: not on a host without RDMA devices, or without
/// the library. At the start, before the program has threads, or forbids itself anything.
///
/// `calls` is for connections that go back to TCP.
pub(crate) fn enable(source: Source, calls: HelperCalls) {
    if source.may_be_there() {
        background::install(calls);
        source.allow();
    }
}

/// Has the helper of another process, which is reachable there, look for what it was asked for.
///
/// # Errors
/// ECONNREFUSED where it is gone, or in another network namespace; EAGAIN where it was called often enough.
pub fn call(helper: u64) -> Result<(), Errno> {
    let from = packet::datagrams()?;
    let called = mailbox::kick(from, helper);
    file::close(from);
    called
}

/// Held over a fork, by parent and child.
pub(crate) struct Forking {
    _nobody_else: RankGuard<RwLockWriteGuard<'static, ()>>,
}

/// Before a fork. Signals are held back.
pub(crate) fn before_fork() -> Forking {
    Forking { _nobody_else: fork_gate::only_fork() }
}

impl Forking {
    /// In the child: it begins anew. Connections that exist are carried by the process that made them.
    pub(crate) fn in_child(self) {
        fork_gate::begin_anew();
        adapters::after_fork_in_child();
        meeting::after_fork_in_child();
        sharing::invitations::after_fork_in_child();
        link::after_fork_in_child();
        link::former_links::after_fork_in_child();
        link::ended::after_fork_in_child();
        helper::after_fork_in_child();
    }
}

/// Before the process exits: sends what closed links have not delivered, as long as that takes, within reason. After
/// the exit no thread is left to send it.
pub(crate) fn exiting() {
    background::finish(PATIENCE);
}
