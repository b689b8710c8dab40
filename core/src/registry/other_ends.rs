//! What one process cannot know of the other ends of its connections, and who reads all processes' files can.

use std::collections::HashSet;

use super::reader::Process;
use crate::reason::Reason;

/// A process that finds nobody at the other end takes it for one without the library. It may as well be one that does not
/// look, because its end is not busy, or must stay on TCP.
pub(super) fn tell_apart(processes: &mut [Process]) {
    let all = processes.iter().flat_map(|process| &process.connections);
    let ends: HashSet<_> = all.map(|one| (one.local, one.peer)).collect();
    for one in processes.iter_mut().flat_map(|process| &mut process.connections) {
        if one.reason == Reason::PeerNative && ends.contains(&(one.peer, one.local)) {
            one.reason = Reason::PeerStays;
        }
    }
}
