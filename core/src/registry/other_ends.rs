//! What a process does not say of its connections, and who reads all processes' files can tell.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::reader::{Connection, Process};
use super::slot::State;
use crate::reason::Reason;

/// Corrects the reasons.
pub(super) fn tell_apart(processes: &mut [Process]) {
    for process in processes.iter_mut() {
        after_listeners(&mut process.connections);
    }
    after_other_ends(processes);
}

/// What was accepted on a listener that stays on TCP does so for the listener's reason. The process keeps no account of it.
fn after_listeners(connections: &mut [Connection]) {
    let stays = |one: &&Connection| one.state == State::Listen && one.reason != Reason::Listener;
    // A file may say any number of both.
    let address = |of: SocketAddr| (Some(of.ip()).filter(|ip| !ip.is_unspecified()), of.port());
    let listeners: HashMap<_, _> =
        connections.iter().filter(stays).map(|one| (address(one.local), one.reason)).collect();
    for one in connections.iter_mut().filter(|one| one.reason == Reason::Quiet) {
        let (own, any) = (address(one.local), (None, one.local.port()));
        if let Some(reason) = listeners.get(&own).or_else(|| listeners.get(&any)) {
            one.reason = *reason;
        }
    }
}

/// A process that finds nobody at the other end takes it for one without the library. It may as well be one that does not
/// look: because it is not busy, or did not find this end when it looked; or because it must stay on TCP.
fn after_other_ends(processes: &mut [Process]) {
    let all = processes.iter().flat_map(|process| &process.connections);
    let ends: HashMap<_, _> = all.map(|one| ((one.local, one.peer), one.reason)).collect();
    for one in processes.iter_mut().flat_map(|process| &mut process.connections) {
        let other = ends.get(&(one.peer, one.local));
        match (one.reason, other) {
            (
                Reason::PeerNative,
                Some(Reason::Quiet | Reason::PeerNative | Reason::PeerReturned),
            )
            | (Reason::PeerReturned, Some(Reason::Quiet)) => one.reason = Reason::Pending,
            (Reason::PeerNative, Some(_)) => one.reason = Reason::PeerStays,
            _ => {}
        }
    }
}
