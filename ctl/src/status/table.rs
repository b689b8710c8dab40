//! `sanctl status`: the table for people, 99 columns wide with IPv4 addresses.

use std::fmt::Write;
use std::net::SocketAddr;

use sanshim_core::reason::Reason;
use sanshim_core::registry::{Connection, Process};

use super::detail;
use super::sharing::Sharing;
use crate::units::{bytes, count};
use crate::who::who;

const COLUMNS: usize = 11;
const HEADINGS: [&str; COLUMNS] = [
    "FD", "LOCAL", "PEER", "STATE", "SENT", "MSGS", "RECV", "MSGS", "CREDIT", "WAKEUPS", "AVOIDED",
];
/// Columns of text. The others hold numbers, which are aligned to the right.
const TEXT: std::ops::Range<usize> = 1..4;

/// The processes, each with a line for every connection. Connections are grouped by the reason why they are where they
/// are. With `sharing` the lines of [`detail`] are added.
pub(super) fn render(processes: &[Process], sharing: Option<&Sharing>) -> String {
    let mut text = String::new();
    for (index, process) in processes.iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        let sockets = match process.connections.len() {
            0 => "no sockets".to_owned(),
            1 => "1 socket".to_owned(),
            number => format!("{number} sockets"),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}: {sockets}", who(process));
        if let Some((taken, most)) = process.budget {
            let _ = writeln!(text, "  memory of segments: {} of {}", bytes(taken), bytes(most));
        }
        if sharing.is_some() && !process.returned.is_empty() {
            let one =
                |(why, number): &(_, u64)| format!("{} {}", count(*number), Reason::code(*why));
            let all: Vec<_> = process.returned.iter().map(one).collect();
            let _ = writeln!(text, "  returned to TCP: {}", all.join(", "));
        }
        if !process.connections.is_empty() {
            render_connections(&mut text, process, sharing);
        }
    }
    text
}

fn render_connections(text: &mut String, process: &Process, sharing: Option<&Sharing>) {
    let connections = &process.connections;
    let rows: Vec<_> = connections.iter().map(row).collect();
    let mut widths = HEADINGS.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    push_row(text, &widths, &HEADINGS.map(str::to_owned));

    let mut groups: Vec<_> = connections.iter().map(group).collect();
    groups.sort_unstable();
    groups.dedup();
    for wanted in groups {
        let (provider, code, sentence) = wanted;
        let _ = writeln!(text, "  {provider}: {sentence} ({code})");
        for (connection, row) in connections.iter().zip(&rows) {
            if group(connection) == wanted {
                push_row(text, &widths, row);
                if let Some(sharing) = sharing {
                    detail::push(text, connection, &sharing.end(process, connection));
                }
            }
        }
    }
}

/// What the connections of a group have in common.
fn group(connection: &Connection) -> (&'static str, &'static str, &'static str) {
    let reason = connection.reason;
    (connection.provider.name(), reason.code(), reason.sentence())
}

fn row(connection: &Connection) -> [String; COLUMNS] {
    [
        connection.fd.to_string(),
        connection.local.to_string(),
        peer(&connection.peer),
        connection.state.name().to_owned(),
        bytes(connection.sent.bytes),
        count(connection.sent.messages),
        bytes(connection.received.bytes),
        count(connection.received.messages),
        count(connection.credits),
        count(connection.wakeups_sent),
        count(connection.wakeups_avoided),
    ]
}

fn peer(address: &SocketAddr) -> String {
    if address.port() == 0 && address.ip().is_unspecified() {
        return "-".to_owned();
    }
    address.to_string()
}

fn push_row(text: &mut String, widths: &[usize; COLUMNS], row: &[String; COLUMNS]) {
    text.push_str("  ");
    for (index, (cell, &width)) in row.iter().zip(widths).enumerate() {
        let gap = match index {
            0 => "",
            _ if index <= TEXT.end => "  ",
            _ => " ",
        };
        let _ = if TEXT.contains(&index) {
            write!(text, "{gap}{cell:<width$}")
        } else {
            write!(text, "{gap}{cell:>width$}")
        };
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use sanshim_core::registry::{
        ControlStatus, DirectionTraffic, Provider, State, TransferStatus,
    };
    use sanshim_core::session::Mode;

    const NO_SESSION: TransferStatus = TransferStatus {
        sent: 0,
        received: 0,
        mode: Mode::Discovery,
        behaviours: [0; 3],
        threshold: None,
        message_size: 0,
        send_buffer: 0,
        fragmented: 0,
        resizes: 0,
        scans: 0,
        advertisements_used: 0,
        advertisements_dropped: 0,
    };

    fn connection(fd: i32, provider: Provider, reason: Reason) -> Connection {
        Connection {
            number: None,
            fd,
            local: "127.0.0.1:65535".parse().expect("an address"),
            peer: "127.0.0.1:40000".parse().expect("an address"),
            provider,
            reason,
            state: State::Established,
            session: None,
            sent: DirectionTraffic { bytes: u64::MAX, messages: 1234 },
            received: DirectionTraffic { bytes: 1999, messages: 999 },
            wakeups_sent: 5,
            wakeups_avoided: 81_000_000,
            wakeups_received: 7,
            credits: 14,
            credit_updates_sent: 3,
            buffered_bytes: 0,
            send_control: ControlStatus::default(),
            receive_control: ControlStatus::default(),
            suspensions: 0,
            suspended: 0,
            transfers: NO_SESSION,
        }
    }

    /// A session of which everything can be told.
    fn session_with_numbers() -> Connection {
        let largest = TransferStatus {
            sent: 1 << 60,
            received: 1000,
            mode: Mode::SmallThenLarge,
            behaviours: [u64::MAX; 3],
            threshold: Some(999_999),
            message_size: 1536,
            send_buffer: 1 << 20,
            fragmented: u64::MAX,
            resizes: 2,
            scans: 999,
            advertisements_used: 999,
            advertisements_dropped: 1234,
        };
        Connection {
            transfers: largest,
            send_control: ControlStatus { taken: 4, waiting: 2 },
            receive_control: ControlStatus { taken: 7, waiting: 0 },
            suspensions: 2,
            suspended: 4_500_000,
            ..connection(7, Provider::Shm, Reason::OnSan)
        }
    }

    #[test]
    fn connections_are_grouped_under_the_sentence() {
        let listener = Connection {
            peer: "0.0.0.0:0".parse().expect("an address"),
            state: State::Listen,
            ..connection(6, Provider::Tcp, Reason::Listener)
        };
        let connections = vec![
            listener,
            connection(7, Provider::Shm, Reason::OnSan),
            connection(10, Provider::Tcp, Reason::NotLocal),
            connection(11, Provider::Shm, Reason::OnSan),
        ];
        let program = "evil\x1b[2J".to_owned();
        let returned = vec![(Reason::Detached, 1)];
        let budget = Some((3 << 20, 8 << 20));
        let process =
            Process { pid: 4711, program, connections, returned, budget, ..Process::default() };
        let text = render(&[process], None);
        let expected = "\
evil\\u{1b}[2J (pid 4711): 4 sockets
  memory of segments: 3.0M of 8.0M
  FD  LOCAL            PEER             STATE        SENT MSGS RECV MSGS CREDIT WAKEUPS AVOIDED
  shm: is on the SAN (on-san)
   7  127.0.0.1:65535  127.0.0.1:40000  established   15E 1.2k 1.9K  999     14       5     81M
  11  127.0.0.1:65535  127.0.0.1:40000  established   15E 1.2k 1.9K  999     14       5     81M
  tcp: a listening socket (listener)
   6  127.0.0.1:65535  -                listen        15E 1.2k 1.9K  999     14       5     81M
  tcp: the peer's address is not this host's (not-local)
  10  127.0.0.1:65535  127.0.0.1:40000  established   15E 1.2k 1.9K  999     14       5     81M
";
        assert_eq!(text, expected);
        assert!(text.lines().all(|line| line.len() <= 100));
    }

    #[test]
    fn verbose_tells_of_sessions_only() {
        let without_rdma = TransferStatus { message_size: 16384, ..NO_SESSION };
        let without_rdma = Connection {
            fd: 8,
            peer: "127.0.0.1:40001".parse().expect("an address"),
            transfers: without_rdma,
            ..connection(8, Provider::Shm, Reason::OnSan)
        };
        let connections = vec![
            session_with_numbers(),
            without_rdma,
            connection(10, Provider::Tcp, Reason::NotLocal),
        ];
        let program = "p".to_owned();
        let other = Connection {
            send_control: ControlStatus { taken: 5, waiting: 1 },
            suspensions: 1001,
            suspended: 3_000_000,
            ..connection(7, Provider::Shm, Reason::OnSan)
        };
        let name = program.clone();
        let relative =
            Process { pid: 2, program: name, connections: vec![other], ..Process::default() };
        let returned = vec![(Reason::HandedOver, 2), (Reason::PeerReturned, 1234)];
        let process = Process { pid: 1, program, connections, returned, ..Process::default() };
        let sharing = Sharing::of(&[process.clone(), relative]);
        let text = render(&[process], Some(&sharing));
        let expected = "\
p (pid 1): 3 sockets
  returned to TCP: 2 handed-over, 1.2k peer-returned
  FD  LOCAL            PEER             STATE        SENT MSGS RECV MSGS CREDIT WAKEUPS AVOIDED
  shm: is on the SAN (on-san)
   7  127.0.0.1:65535  127.0.0.1:40000  established   15E 1.2k 1.9K  999     14       5     81M
      rdma: sent 1.0E (14E otherwise), received 1000 (999 otherwise), from 976K on
      mode: small-then-large; seen: large-receive 18E, small-then-large 18E, small-receive 18E
      scans: 999; advertisements: used 999, dropped 1.2k
      buffers: message 1.5K, send 1.0M, fragmented 18E, resizes 2
      control: send by pid 2 (5 swaps, 3 waiting), receive by pid 1 (7 swaps, 0 waiting)
      suspended: 1.0k times, 7.5k µs in all
   8  127.0.0.1:65535  127.0.0.1:40001  established   15E 1.2k 1.9K  999     14       5     81M
      rdma: none
      buffers: message 16K, send 0, fragmented 0, resizes 0
  tcp: the peer's address is not this host's (not-local)
  10  127.0.0.1:65535  127.0.0.1:40000  established   15E 1.2k 1.9K  999     14       5     81M
";
        assert_eq!(text, expected);
        assert!(text.lines().all(|line| line.len() <= 100));
    }
}
