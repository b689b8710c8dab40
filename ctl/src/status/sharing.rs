//! Which of the processes that share a socket controls it, from what each of them says.

use std::collections::HashMap;
use std::net::SocketAddr;

use sanshim_core::registry::{Connection, ControlStatus, Process};
use serde::Serialize;

/// Control of one direction of a connection's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct JoinedControl {
    /// The process that has control. `None` if control never changed hands.
    pub(super) controller: Option<u32>,
    /// How often control changed hands.
    pub(super) swaps: u64,
    /// How many threads of all processes wait for control.
    pub(super) waiters: u64,
}

impl JoinedControl {
    fn note(&mut self, pid: u32, said: ControlStatus) {
        if said.taken > self.swaps {
            (self.controller, self.swaps) = (Some(pid), said.taken);
        }
        self.waiters += said.waiting;
    }
}

/// Control of an end, from what all of its processes say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct JoinedEnd {
    /// Control of sending.
    pub(super) send: JoinedControl,
    /// Control of receiving.
    pub(super) receive: JoinedControl,
    /// How often the session was suspended for a change of control.
    pub(super) suspensions: u64,
    /// How long all these suspensions took.
    pub(super) suspended_microseconds: u64,
}

/// The ends of all connections, by their addresses and their processes' network namespaces.
pub(super) struct Sharing(HashMap<(Option<u64>, SocketAddr, SocketAddr), JoinedEnd>);

impl Sharing {
    /// What `processes` say together.
    pub(super) fn of(processes: &[Process]) -> Self {
        let mut ends: HashMap<_, JoinedEnd> = HashMap::new();
        for process in processes {
            for connection in &process.connections {
                let end = ends.entry(key(process, connection)).or_default();
                end.send.note(process.pid, connection.send_control);
                end.receive.note(process.pid, connection.receive_control);
                end.suspensions += connection.suspensions;
                end.suspended_microseconds += connection.suspended / 1000;
            }
        }
        Self(ends)
    }

    /// The end that this connection is.
    pub(super) fn end(&self, process: &Process, connection: &Connection) -> JoinedEnd {
        self.0.get(&key(process, connection)).copied().unwrap_or_default()
    }
}

fn key(process: &Process, connection: &Connection) -> (Option<u64>, SocketAddr, SocketAddr) {
    (process.network, connection.local, connection.peer)
}
