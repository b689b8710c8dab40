//! How a thread waits in one call, and why a wait ends. This module waits for nothing.

use crate::switch::anchor::ready;
use crate::switch::socket::Socket;
use crate::switch::stream::counters::CountedEvent;
use crate::switch::stream::Stream;
use crate::sys::process::NapSignals;
use crate::sys::signal_mask::SignalMask;
use crate::sys::{handlers, net, time};
use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

/// What a call keeps from one wait to the next.
#[derive(Default)]
pub(in crate::switch) struct Limit {
    /// The call's time-out: SO_RCVTIMEO or SO_SNDTIMEO. The clock starts at the call's first wait.
    until: Cell<Option<Option<u64>>>,
    /// The call holds them back between its sleeps.
    pub(super) signals: NapSignals,
}

impl Limit {
    /// Gives the mask to sleep with: signals come in the call's sleeps.
    pub(in crate::switch) fn mask(&self) -> Option<SignalMask<'_>> {
        self.signals.mask(false, None)
    }

    /// Gives the rest of the time-out in ns. `None`: the call has not waited, or has no time-out.
    pub(in crate::switch) fn rest(&self) -> Option<u64> {
        self.until.get().flatten().map(|until| until.saturating_sub(time::now()))
    }

    /// Gives the rest of the time-out in ns, and starts the clock if this is the first wait. `None`: the call has no
    /// time-out.
    pub(in crate::switch) fn left(&self, socket: &Socket, event: CountedEvent) -> Option<u64> {
        let until = self.until.get().unwrap_or_else(|| {
            let limit = match event {
                CountedEvent::Read => libc::SO_RCVTIMEO,
                CountedEvent::Write => libc::SO_SNDTIMEO,
            };
            let may_be = socket.has_options.load(Relaxed);
            let limit = may_be.then(|| net::time_out(socket.anchor(), limit)).flatten();
            limit.map(|limit| time::now().saturating_add(limit))
        });
        self.until.set(Some(until));
        until.map(|until| until.saturating_sub(time::now()))
    }
}

/// How a thread waits.
pub(in crate::switch) struct Wait<'a> {
    pub(super) event: CountedEvent,
    /// The call has moved bytes, so it is not restarted after a signal.
    pub(super) partial: bool,
    pub(super) limit: &'a Limit,
    /// How long (ns) until a thread that holds the send lock has work of its own. Such a thread handles the
    /// connection's end itself.
    pub(super) nap: Option<u64>,
}

impl<'a> Wait<'a> {
    /// Waits for `event`. `partial`: the call has moved bytes.
    pub(in crate::switch) fn new(event: CountedEvent, partial: bool, limit: &'a Limit) -> Self {
        Wait { event, partial, limit, nap: None }
    }

    /// Waits at most `nap` ns for the peer to act on a transfer. The calling thread holds the send lock.
    pub(in crate::switch) fn in_transfer(nap: u64, limit: &'a Limit) -> Self {
        Wait { event: CountedEvent::Write, partial: true, limit, nap: Some(nap.max(1)) }
    }

    /// True if the thread waits within a transfer, with the send lock held.
    pub(super) fn is_in_transfer(&self) -> bool {
        self.nap.is_some()
    }

    /// True if the event has come.
    pub(super) fn look(&self, stream: &Stream) -> bool {
        match self.event {
            CountedEvent::Read => ready::poll_readable(stream),
            CountedEvent::Write => ready::poll_writable(stream),
        }
    }

    /// True if the kernel's own recv or send would go on after the signal that came. `has_limit`: the call has a
    /// time-out.
    pub(super) fn restarts(&self, has_limit: bool) -> bool {
        !self.is_in_transfer() && !self.partial && !has_limit && handlers::restart()
    }
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::switch) enum Woken {
    /// Something may have happened, so the caller looks again.
    Perhaps,
    /// The connection ended. Only a wait in a transfer gives this: the sender first counts as sent what the peer read
    /// by RDMA, and then notes the end.
    Ended,
}
