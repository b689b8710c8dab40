//! Raising the select counters of this end's events. A bell tells a thread that raised a counter of the event (A18).

use crate::session::Ticket;
use crate::switch::stream::carrier::SleepStep;
use crate::switch::stream::Stream;

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::switch) enum CountedEvent {
    /// Data, the end of the stream, or an error.
    Read,
    /// Space in the send buffer, or an error.
    Write,
}

/// Raises the counter of an event.
pub(in crate::switch) fn raise(stream: &Stream, event: CountedEvent) -> Ticket {
    let counters = &stream.own().counters.0;
    let ticket = match event {
        CountedEvent::Read => counters.read.raise(),
        CountedEvent::Write => counters.write.raise(),
    };
    stream.carrier().sleep(SleepStep::Raised);
    ticket
}

/// [`raise`] for a thread that sleeps in no call on the socket: on an epoll set, or until a signal.
pub(in crate::switch) fn raise_elsewhere(stream: &Stream, event: CountedEvent) -> Ticket {
    stream.carrier().sleep(SleepStep::Elsewhere);
    raise(stream, event)
}

/// Takes it back.
pub(in crate::switch) fn withdraw(stream: &Stream, event: CountedEvent, ticket: Ticket) {
    let counters = &stream.own().counters.0;
    match event {
        CountedEvent::Read => counters.read.withdraw(ticket),
        CountedEvent::Write => counters.write.withdraw(ticket),
    }
}
