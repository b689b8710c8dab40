//! Rates: by how much counters grow in a second, from one look to the next.

use crate::filter::is_connection;
use sanshim_core::registry::{Connection, Container, Process, Provider};
use serde::Serialize;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::time::{Duration, Instant};

/// What happened in a second: bytes of the program's stream, messages in both directions, calls to wake the peer, and
/// events that needed no such call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Rates {
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
    pub(super) messages: u64,
    pub(super) wakeups_sent: u64,
    pub(super) wakeups_avoided: u64,
}

impl Rates {
    /// All that happened since the connection began.
    fn total(connection: &Connection) -> Rates {
        Rates {
            sent_bytes: connection.sent.bytes,
            received_bytes: connection.received.bytes,
            messages: connection.sent.messages + connection.received.messages,
            wakeups_sent: connection.wakeups_sent,
            wakeups_avoided: connection.wakeups_avoided,
        }
    }

    fn since(&self, before: &Rates, elapsed: Duration) -> Rates {
        let seconds = elapsed.as_secs_f64();
        // If a number went down, it is another connection's.
        let rate =
            |now: u64, before: u64| (now.saturating_sub(before) as f64 / seconds).round() as u64;
        Rates {
            sent_bytes: rate(self.sent_bytes, before.sent_bytes),
            received_bytes: rate(self.received_bytes, before.received_bytes),
            messages: rate(self.messages, before.messages),
            wakeups_sent: rate(self.wakeups_sent, before.wakeups_sent),
            wakeups_avoided: rate(self.wakeups_avoided, before.wakeups_avoided),
        }
    }
}

impl AddAssign for Rates {
    fn add_assign(&mut self, other: Rates) {
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.messages += other.messages;
        self.wakeups_sent += other.wakeups_sent;
        self.wakeups_avoided += other.wakeups_avoided;
    }
}

/// A connection and what it does.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) pid: u32,
    /// For people; nothing if it is the caller's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) container: Option<String>,
    pub(super) program: String,
    pub(super) fd: i32,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    pub(super) provider: &'static str,
    pub(super) reason: &'static str,
    pub(super) mode: &'static str,
    pub(super) credits: u64,
    #[serde(flatten)]
    pub(super) rates: Rates,
    #[serde(skip)]
    pub(super) on_san: bool,
}

type Key = (u32, i32, SocketAddr, SocketAddr);

/// Remembers the last look, from which rates are reckoned.
#[derive(Default)]
pub(super) struct Sampler {
    before: HashMap<Key, Rates>,
    at: Option<Instant>,
}

impl Sampler {
    /// The connections of a look at `now`, with their rates since the last look. A connection that was not there then
    /// has rates of zero.
    pub(super) fn take(&mut self, processes: &[Process], now: Instant) -> Vec<Row> {
        let elapsed = self.at.map_or(Duration::ZERO, |at| now - at);
        let mut totals = HashMap::new();
        let mut rows = Vec::new();
        for process in processes {
            for connection in process.connections.iter().filter(|one| is_connection(one)) {
                let key = (process.pid, connection.fd, connection.local, connection.peer);
                let total = Rates::total(connection);
                let before = self.before.get(&key).filter(|_| !elapsed.is_zero());
                let rates = before.map(|before| total.since(before, elapsed)).unwrap_or_default();
                totals.insert(key, total);
                rows.push(row(process, connection, rates));
            }
        }
        (self.before, self.at) = (totals, Some(now));
        rows
    }
}

fn row(process: &Process, connection: &Connection, rates: Rates) -> Row {
    let on_san = connection.provider != Provider::Tcp;
    Row {
        pid: process.pid,
        container: process.container.as_ref().map(Container::shown),
        program: process.program.clone(),
        fd: connection.fd,
        local: connection.local,
        peer: connection.peer,
        provider: connection.provider.name(),
        reason: connection.reason.code(),
        mode: if on_san { connection.transfers.mode.name() } else { "" },
        credits: connection.credits,
        rates,
        on_san,
    }
}

/// A process and what its connections do together.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ProcessRow {
    pub(super) pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) container: Option<String>,
    pub(super) program: String,
    pub(super) connections: u64,
    pub(super) on_san: u64,
    #[serde(flatten)]
    pub(super) rates: Rates,
}

/// The rates by process, in the order of each one's first connection.
pub(super) fn by_process(rows: &[Row]) -> Vec<ProcessRow> {
    let mut at = HashMap::new();
    let mut found: Vec<ProcessRow> = Vec::new();
    for row in rows {
        let index = *at.entry(row.pid).or_insert_with(|| {
            let (pid, program) = (row.pid, row.program.clone());
            found.push(ProcessRow {
                pid,
                container: row.container.clone(),
                program,
                connections: 0,
                on_san: 0,
                rates: Rates::default(),
            });
            found.len() - 1
        });
        found[index].connections += 1;
        found[index].on_san += u64::from(row.on_san);
        found[index].rates += row.rates;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_differences_a_second() {
        let before = Rates { sent_bytes: 1000, messages: 7, ..Rates::default() };
        let now = Rates { sent_bytes: 3000, messages: 8, received_bytes: 5, ..before };
        let rates = now.since(&before, Duration::from_millis(500));
        assert_eq!(
            rates,
            Rates { sent_bytes: 4000, messages: 2, received_bytes: 10, ..Rates::default() }
        );
        assert_eq!(before.since(&now, Duration::from_secs(1)), Rates::default());
    }
}
