//! What a process cannot say of its connections, and a reader of all processes' files can tell.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::ends::Ends;
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

/// Connections that were accepted on a listener that stays on TCP do so for the listener's reason. The process keeps no
/// account of them.
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

/// A process that finds nobody at the other end takes it for one without the library. But the other end may not have
/// looked: it is not busy, or did not find this end when it looked. Or it must stay on TCP, or is in another container.
fn after_other_ends(processes: &mut [Process]) {
    let ends = Ends::of(processes);
    let said: Vec<_> = processes
        .iter()
        .map(|process| {
            let reasons: Vec<_> = process.connections.iter().map(|one| one.reason).collect();
            (process.network, process.file.shared, reasons)
        })
        .collect();
    for process in processes {
        for one in &mut process.connections {
            let Some((at, number)) = ends.other_end(process.network, one) else { continue };
            let (network, shared, reasons) = &said[at];
            let is_apart =
                differ(*network, process.network) || differ(*shared, process.file.shared);
            one.reason = after_other_end(one.reason, reasons[number], is_apart);
        }
    }
}

/// True of what is known of both.
fn differ<T: PartialEq>(one: Option<T>, other: Option<T>) -> bool {
    one.zip(other).is_some_and(|(one, other)| one != other)
}

/// The reason of an end, from that of its other end. `is_apart`: they are where they cannot meet.
fn after_other_end(reason: Reason, other: Reason, is_apart: bool) -> Reason {
    match (reason, other) {
        (Reason::PeerNative | Reason::Pending | Reason::NotLocal | Reason::NoDevice, _)
            if is_apart =>
        {
            Reason::OtherNamespace
        }
        (
            Reason::PeerNative | Reason::Pending,
            Reason::Quiet | Reason::PeerNative | Reason::PeerReturned | Reason::Pending,
        )
        | (Reason::PeerReturned, Reason::Quiet) => Reason::Pending,
        (Reason::PeerNative | Reason::Pending, _) => Reason::PeerStays,
        _ => reason,
    }
}
