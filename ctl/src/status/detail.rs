//! `sanctl status --verbose`: the lines below a connection that tell of RDMA, of buffers, and of sharing.

use std::fmt::Write;

use sanshim_core::registry::Connection;
use sanshim_core::session::Behaviour;

use super::sharing::{JoinedControl, JoinedEnd};
use crate::units::{bytes, count};

/// Adds these lines. There are none for what never had a session: listeners, and connections that always were on TCP.
pub(super) fn push(text: &mut String, connection: &Connection, end: &JoinedEnd) {
    let transfers = &connection.transfers;
    if transfers.message_size == 0 {
        return;
    }
    // Because the peer may have ended RDMA on a connection that used it.
    let used = transfers.sent > 0 || transfers.received > 0;
    // Writing to a String cannot fail.
    let _ = match transfers.threshold {
        None if !used => writeln!(text, "      rdma: none"),
        threshold => writeln!(
            text,
            "      rdma: sent {} ({} otherwise), received {} ({} otherwise), {}",
            bytes(transfers.sent),
            // The two counts are not read at the same moment.
            bytes(connection.sent.bytes.saturating_sub(transfers.sent)),
            bytes(transfers.received),
            bytes(connection.received.bytes.saturating_sub(transfers.received)),
            threshold.map_or("off now".to_owned(), |from| format!("from {} on", bytes(from))),
        ),
    };
    if used || transfers.threshold.is_some() {
        let seen: Vec<_> = Behaviour::ALL
            .iter()
            .zip(transfers.behaviours)
            .map(|(behaviour, seen)| format!("{} {}", behaviour.name(), count(seen)))
            .collect();
        let _ = writeln!(text, "      mode: {}; seen: {}", transfers.mode.name(), seen.join(", "));
        let _ = writeln!(
            text,
            "      scans: {}; advertisements: used {}, dropped {}",
            count(transfers.scans),
            count(transfers.advertisements_used),
            count(transfers.advertisements_dropped)
        );
    }
    let _ = writeln!(
        text,
        "      buffers: message {}, send {}, fragmented {}, resizes {}",
        bytes(transfers.message_size),
        bytes(transfers.send_buffer),
        count(transfers.fragmented),
        count(transfers.resizes)
    );
    if *end != JoinedEnd::default() {
        let (send, receive) = (shown(&end.send), shown(&end.receive));
        let _ = writeln!(text, "      control: send {send}, receive {receive}");
    }
    if end.suspensions > 0 {
        let (times, spent) = (count(end.suspensions), count(end.suspended_microseconds));
        let _ = writeln!(text, "      suspended: {times} times, {spent} µs in all");
    }
}

fn shown(control: &JoinedControl) -> String {
    let Some(pid) = control.controller else { return "never swapped".to_owned() };
    format!("by pid {pid} ({} swaps, {} waiting)", count(control.swaps), count(control.waiters))
}
