//! One connection of a process under the shim.

use std::fmt::Write;

use sanshim_core::registry::{Connection, Event, Follower, Noted, Process};

use super::{other_end, push_remedy};
use crate::filter::is_connection;
use crate::happened::{sentence, Clock};
use crate::units::{bytes, count};
use crate::who::who;

/// All that can be said of it.
pub(super) fn explain(process: &Process, one: &Connection, all: &[Process]) -> String {
    let mut text = String::new();
    let (who, fd) = (who(process), one.fd);
    let (provider, reason) = (one.provider.name(), one.reason);
    if !is_connection(one) {
        let _ = writeln!(text, "{who}, descriptor {fd}, {}", one.local);
        let _ = writeln!(text, "  {provider}: {}", reason.sentence());
        return text;
    }
    let _ = writeln!(text, "{who}, descriptor {fd}, {} to {}", one.local, one.peer);
    let _ = writeln!(text, "  {provider}: {}", reason.sentence());
    let _ = writeln!(text, "  Other end: {}", other_end::describe(process, one, all));
    push_remedy(&mut text, reason);
    push_history(&mut text, process, one);
    push_traffic(&mut text, one);
    text
}

/// Adds what happened to it, as far as the process still has it.
fn push_history(text: &mut String, process: &Process, one: &Connection) {
    let Some(number) = one.number else {
        text.push_str("\nIt has made so few transfers that the process keeps no account of it.\n");
        return;
    };
    let read = Follower::of(&process.file).and_then(|mut all| all.read());
    let events = read.map(|read| of_connection(&read.events, number)).unwrap_or_default();
    let clock = Clock::now();
    text.push_str("\nWhat happened:\n");
    if !matches!(events.first(), Some(Noted { event: Event::Opened(_), .. })) {
        text.push_str(
            "  (what came before is not kept any more, or happened in the parent process)\n",
        );
    }
    for noted in events {
        let _ = writeln!(text, "  {}  {}", clock.shown(noted.time), sentence(noted.event));
    }
}

/// The events of the connection that has this number now, without those of an earlier one.
fn of_connection(events: &[Noted], number: usize) -> Vec<Noted> {
    let mut own: Vec<_> = events.iter().filter(|one| one.connection == number).copied().collect();
    let begins = |noted: &Noted| matches!(noted.event, Event::Opened(_));
    let first = own.iter().rposition(begins).unwrap_or(0);
    own.split_off(first)
}

fn push_traffic(text: &mut String, one: &Connection) {
    let (sent, received) = (one.sent, one.received);
    if sent.bytes == 0 && received.bytes == 0 {
        return;
    }
    let _ = writeln!(
        text,
        "\nSo far: sent {} in {} messages, received {} in {}; {} calls to wake the peer, {} avoided.",
        bytes(sent.bytes),
        count(sent.messages),
        bytes(received.bytes),
        count(received.messages),
        count(one.wakeups_sent),
        count(one.wakeups_avoided),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use sanshim_core::reason::Reason;

    #[test]
    fn events_of_an_earlier_connection_with_the_same_number_are_left_out() {
        let noted = |connection, event| Noted { time: 0, connection, fd: 7, event };
        let events = [
            noted(3, Event::Opened(Reason::Quiet)),
            noted(3, Event::Closed),
            noted(4, Event::Offered),
            noted(3, Event::Opened(Reason::Quiet)),
            noted(3, Event::Looks),
        ];
        assert_eq!(of_connection(&events, 3), events[3..]);
        assert_eq!(of_connection(&events, 4), events[2..3]);
        assert_eq!(of_connection(&events, 5), []);
    }
}
