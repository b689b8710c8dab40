//! `sanctl status --json`: the stable form for programs (docs/sanctl.md).

use std::net::SocketAddr;

use sanshim_core::registry;
use serde::Serialize;

#[derive(Serialize)]
struct Status<'a> {
    processes: Vec<Process<'a>>,
}

#[derive(Serialize)]
struct Process<'a> {
    pid: u32,
    uid: u32,
    program: &'a str,
    connections: Vec<Connection>,
}

#[derive(Serialize)]
struct Connection {
    fd: i32,
    local: SocketAddr,
    peer: SocketAddr,
    provider: &'static str,
    reason: &'static str,
    state: &'static str,
    sent: Traffic,
    received: Traffic,
    credits: u64,
    credit_updates_sent: u64,
    buffered_bytes: u64,
    wakeups: Wakeups,
}

#[derive(Serialize)]
struct Traffic {
    bytes: u64,
    messages: u64,
}

#[derive(Serialize)]
struct Wakeups {
    sent: u64,
    avoided: u64,
    received: u64,
}

impl From<&registry::Connection> for Connection {
    fn from(connection: &registry::Connection) -> Self {
        let traffic = |t: &registry::Traffic| Traffic { bytes: t.bytes, messages: t.messages };
        Connection {
            fd: connection.fd,
            local: connection.local,
            peer: connection.peer,
            provider: connection.provider.name(),
            reason: connection.reason.code(),
            state: connection.state.name(),
            sent: traffic(&connection.sent),
            received: traffic(&connection.received),
            credits: connection.credits,
            credit_updates_sent: connection.credit_updates_sent,
            buffered_bytes: connection.buffered_bytes,
            wakeups: Wakeups {
                sent: connection.wakeups_sent,
                avoided: connection.wakeups_avoided,
                received: connection.wakeups_received,
            },
        }
    }
}

/// One object and a line feed.
pub(super) fn render(processes: &[registry::Process]) -> String {
    let processes = processes
        .iter()
        .map(|process| Process {
            pid: process.pid,
            uid: process.uid,
            program: &process.program,
            connections: process.connections.iter().map(Connection::from).collect(),
        })
        .collect();
    let text = serde_json::to_string_pretty(&Status { processes });
    // Only a map with keys that are no strings, or a failing Serialize, could be an error.
    text.unwrap_or_default() + "\n"
}
