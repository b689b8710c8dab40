//! Counts a thread as asleep on a socket and raises its select counter, so that the peer rings. This module puts no
//! thread to sleep.

use crate::fabric::Sleeper;
use crate::session::Ticket;
use crate::switch::endpoint::sleepers::Place;
use crate::switch::stream::carrier::SleepStep;
use crate::switch::stream::counters::{self, CountedEvent};
use crate::switch::stream::{Hold, Stream};

/// A thread that counts as asleep on a socket. Its select counter is raised.
#[derive(Clone, Copy)]
pub(in crate::switch) struct Armed {
    event: CountedEvent,
    ticket: Ticket,
    place: Place,
    pub(super) on_link: Option<Sleeper>,
}

/// Announces a sleeper. The sleeper looks for its event once more before it sleeps.
pub(in crate::switch) fn arm(stream: &Stream, event: CountedEvent) -> Armed {
    let _hold = Hold::of(stream);
    let locked = stream.endpoint.anchor.lock().is_ok();
    let place = stream.endpoint.sleepers.enter();
    if locked {
        stream.endpoint.anchor.unlock();
    }
    let on_link = stream.carrier().sleep(SleepStep::Counted);
    Armed { event, ticket: counters::raise(stream, event), place, on_link }
}

/// Takes the announcement back: the sleeper is awake.
pub(in crate::switch) fn disarm(stream: &Stream, armed: Armed) {
    counters::withdraw(stream, armed.event, armed.ticket);
    stream.endpoint.sleepers.leave(armed.place);
    if let Some(sleeper) = armed.on_link {
        sleeper.wakes();
    }
}

/// Counts its thread as asleep until this value is dropped, also where the thread is cancelled in its sleep.
pub(in crate::switch) struct Asleep<'a> {
    stream: &'a Stream<'a>,
    pub(super) armed: Armed,
    _hold: Hold<'a>,
}

/// Does what [`arm`] does, until the caller drops the result.
pub(in crate::switch) fn fall_asleep<'a>(
    stream: &'a Stream<'a>,
    event: CountedEvent,
) -> Asleep<'a> {
    let hold = Hold::of(stream);
    Asleep { stream, armed: arm(stream, event), _hold: hold }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        disarm(self.stream, self.armed);
    }
}
