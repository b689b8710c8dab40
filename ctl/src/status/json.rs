//! `sanctl status --json`: the stable form for programs (docs/sanctl.md).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use sanshim_core::registry;
use serde::Serialize;

use super::sharing::{JoinedEnd, Sharing};
use crate::output::printable_json;

#[derive(Serialize)]
struct Status<'a> {
    processes: Vec<Process<'a>>,
}

#[derive(Serialize)]
struct Process<'a> {
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    own_pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<Container<'a>>,
    uid: u32,
    program: &'a str,
    returned: BTreeMap<&'static str, u64>,
    /// Bytes that its segments have or may touch, and that they may have; nothing where no limit holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    segment_memory: Option<[u64; 2]>,
    connections: Vec<Connection>,
}

/// The container that a process is in.
#[derive(Serialize)]
struct Container<'a> {
    kind: &'a str,
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<&'a str>,
}

impl<'a> From<&'a registry::Container> for Container<'a> {
    fn from(container: &'a registry::Container) -> Self {
        let registry::Container { kind, id, pod } = container;
        Container { kind, id, pod: pod.as_deref() }
    }
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
    control: JoinedEnd,
    rdma: Rdma,
    buffers: Buffers,
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

#[derive(Serialize)]
struct Rdma {
    mode: &'static str,
    threshold: Option<u64>,
    sent_bytes: u64,
    received_bytes: u64,
    behaviours: Behaviours,
    scans: u64,
    advertisements: Advertisements,
}

#[derive(Serialize)]
struct Behaviours {
    large_receive: u64,
    small_then_large: u64,
    small_receive: u64,
}

#[derive(Serialize)]
struct Advertisements {
    used: u64,
    dropped: u64,
}

impl From<&registry::TransferStatus> for Rdma {
    fn from(transfers: &registry::TransferStatus) -> Self {
        let [large_receive, small_then_large, small_receive] = transfers.behaviours;
        Rdma {
            mode: transfers.mode.name(),
            threshold: transfers.threshold,
            sent_bytes: transfers.sent,
            received_bytes: transfers.received,
            behaviours: Behaviours { large_receive, small_then_large, small_receive },
            scans: transfers.scans,
            advertisements: Advertisements {
                used: transfers.advertisements_used,
                dropped: transfers.advertisements_dropped,
            },
        }
    }
}

#[derive(Serialize)]
struct Buffers {
    message_size: u64,
    send_buffer: u64,
    fragmented: u64,
    resizes: u64,
}

impl From<&registry::TransferStatus> for Buffers {
    fn from(transfers: &registry::TransferStatus) -> Self {
        Buffers {
            message_size: transfers.message_size,
            send_buffer: transfers.send_buffer,
            fragmented: transfers.fragmented,
            resizes: transfers.resizes,
        }
    }
}

impl Connection {
    fn new(
        process: &registry::Process,
        connection: &registry::Connection,
        sharing: &Sharing,
    ) -> Self {
        let traffic =
            |t: &registry::DirectionTraffic| Traffic { bytes: t.bytes, messages: t.messages };
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
            control: sharing.end(process, connection),
            rdma: (&connection.transfers).into(),
            buffers: (&connection.transfers).into(),
        }
    }
}

/// The text: one object and a line feed.
pub(super) fn render(processes: &[registry::Process], sharing: &Sharing) -> String {
    let processes = processes
        .iter()
        .map(|process| Process {
            pid: process.pid,
            own_pid: process.own_pid,
            container: process.container.as_ref().map(Container::from),
            uid: process.uid,
            program: &process.program,
            segment_memory: process.budget.map(|(taken, most)| [taken, most]),
            returned: process.returned.iter().map(|(why, count)| (why.code(), *count)).collect(),
            connections: process
                .connections
                .iter()
                .map(|connection| Connection::new(process, connection, sharing))
                .collect(),
        })
        .collect();
    let text = serde_json::to_string_pretty(&Status { processes });
    // Does not fail. Only a map whose keys are no strings would, or a Serialize that fails.
    printable_json(&text.unwrap_or_default()) + "\n"
}
