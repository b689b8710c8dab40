//! The columns of both tables, and which of them a terminal has room for.

use super::rates::{ProcessRow, Rates, Row};
use crate::output::printable;
use crate::units::{bytes, count};

/// A column of rows of that kind.
pub(super) struct Column<Of> {
    pub(super) heading: &'static str,
    pub(super) width: usize,
    pub(super) is_number: bool,
    /// A text that is too long loses its beginning, so that an address keeps its port.
    keeps_end: bool,
    cell: fn(&Of) -> String,
}

impl<Of> Column<Of> {
    /// The text of a cell. A text that is longer than the column is wide is cut, and a sign shows that.
    pub(super) fn cell(&self, row: &Of) -> String {
        let text = (self.cell)(row);
        let length = text.chars().count();
        if length <= self.width {
            return text;
        }
        let left = self.width - 1;
        match self.keeps_end {
            true => format!("…{}", text.chars().skip(length - left).collect::<String>()),
            false => format!("{}…", text.chars().take(left).collect::<String>()),
        }
    }
}

const fn text<Of>(heading: &'static str, width: usize, cell: fn(&Of) -> String) -> Column<Of> {
    Column { heading, width, is_number: false, keeps_end: false, cell }
}

const fn address<Of>(heading: &'static str, cell: fn(&Of) -> String) -> Column<Of> {
    Column { heading, width: 21, is_number: false, keeps_end: true, cell }
}

const fn number<Of>(heading: &'static str, width: usize, cell: fn(&Of) -> String) -> Column<Of> {
    Column { heading, width, is_number: true, keeps_end: false, cell }
}

/// The columns of connections. Where there is no room, the last ones are left out first. The first nine fit into 80
/// characters.
pub(super) const CONNECTIONS: &[Column<Row>] = &[
    number("PID", 7, |row| row.pid.to_string()),
    text("PROGRAM", 10, |row| printable(&row.program)),
    number("FD", 5, |row| row.fd.to_string()),
    address("PEER", |row| row.peer.to_string()),
    text("ON", 5, |row| row.provider.to_owned()),
    number("OUT/s", 6, |row| bytes(row.rates.sent_bytes)),
    number("IN/s", 6, |row| bytes(row.rates.received_bytes)),
    number("MSGS/s", 6, |row| count(row.rates.messages)),
    number("WAKE/s", 6, |row| count(row.rates.wakeups_sent)),
    number("AVOID/s", 7, |row| count(row.rates.wakeups_avoided)),
    number("CREDIT", 6, |row| count(row.credits)),
    text("WHY", 18, |row| row.reason.to_owned()),
    text("MODE", 16, |row| row.mode.to_owned()),
    address("LOCAL", |row| row.local.to_string()),
    text("CONTAINER", 24, |row| printable(row.container.as_deref().unwrap_or_default())),
];

/// The columns of processes. All of them fit into 80 characters.
pub(super) const PROCESSES: &[Column<ProcessRow>] = &[
    number("PID", 7, |row| row.pid.to_string()),
    text("PROGRAM", 18, |row| printable(&row.program)),
    number("CONNS", 5, |row| count(row.connections)),
    number("ON SAN", 6, |row| count(row.on_san)),
    number("OUT/s", 6, |row| bytes(row.rates.sent_bytes)),
    number("IN/s", 6, |row| bytes(row.rates.received_bytes)),
    number("MSGS/s", 6, |row| count(row.rates.messages)),
    number("WAKE/s", 6, |row| count(row.rates.wakeups_sent)),
    number("AVOID/s", 7, |row| count(row.rates.wakeups_avoided)),
];

/// How many columns fit beside each other, with a space between them.
pub(super) fn fitting<Of>(columns: &[Column<Of>], width: usize) -> usize {
    let mut used = 0;
    let fits = |column: &&Column<Of>| {
        used += column.width + usize::from(used > 0);
        used <= width
    };
    columns.iter().take_while(fits).count()
}

/// What rows can be ordered by; the largest comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Order {
    /// Bytes of both ways
    #[default]
    Bytes,
    /// Messages of both ways
    Messages,
    /// Wake-ups sent
    Wakeups,
    /// Wake-ups avoided
    Avoided,
    /// Process id, the smallest first
    Pid,
}

impl Order {
    pub(super) const ALL: [Order; 5] =
        [Order::Bytes, Order::Messages, Order::Wakeups, Order::Avoided, Order::Pid];

    pub(super) fn name(self) -> &'static str {
        match self {
            Order::Bytes => "bytes",
            Order::Messages => "messages",
            Order::Wakeups => "wake-ups",
            Order::Avoided => "avoided",
            Order::Pid => "pid",
        }
    }

    /// The number by which rows are ordered. The largest comes first.
    pub(super) fn key(self, pid: u32, rates: &Rates) -> u64 {
        match self {
            Order::Bytes => rates.sent_bytes.saturating_add(rates.received_bytes),
            Order::Messages => rates.messages,
            Order::Wakeups => rates.wakeups_sent,
            Order::Avoided => rates.wakeups_avoided,
            Order::Pid => u64::from(u32::MAX - pid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_says_so_and_an_address_keeps_its_port() {
        let name = text("", 5, |name: &&str| (*name).to_owned());
        assert_eq!([name.cell(&"redis"), name.cell(&"memcached")], ["redis", "memc…"]);
        let peer = address("", |peer: &&str| (*peer).to_owned());
        assert_eq!(peer.cell(&"127.0.0.1:40000"), "127.0.0.1:40000");
        assert_eq!(peer.cell(&"[fe80::fc:ff:fe00:1]:40000"), "…:fc:ff:fe00:1]:40000");
    }

    #[test]
    fn both_tables_fit_an_ordinary_terminal() {
        assert_eq!(fitting(CONNECTIONS, 80), 9);
        assert_eq!(fitting(PROCESSES, 80), PROCESSES.len());
        assert_eq!(fitting(CONNECTIONS, 200), CONNECTIONS.len());
        assert_eq!(fitting(CONNECTIONS, 3), 0);
    }
}
