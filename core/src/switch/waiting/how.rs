//! How a thread waits in one call, and why a wait ends. Waits for nothing itself.

use crate::switch::anchor::ready;
use crate::switch::socket::Socket;
use crate::switch::stream::counters::CountedEvent;
use crate::switch::stream::Stream;
use crate::sys::{handlers, net, time};
use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

/// A call's SO_RCVTIMEO or SO_SNDTIMEO, from its first wait on.
#[derive(Debug, Default)]
pub(in crate::switch) struct Limit(Cell<Option<Option<u64>>>);

impl Limit {
    /// What is left of it in ns, in a call that has waited; `None`: it has not, or there is none.
    pub(in crate::switch) fn rest(&self) -> Option<u64> {
        self.0.get().flatten().map(|until| until.saturating_sub(time::now()))
    }

    /// What is left of it in ns; `None`: there is none.
    pub(in crate::switch) fn left(&self, socket: &Socket, event: CountedEvent) -> Option<u64> {
        let until = self.0.get().unwrap_or_else(|| {
            let limit = match event {
                CountedEvent::Read => libc::SO_RCVTIMEO,
                CountedEvent::Write => libc::SO_SNDTIMEO,
            };
            let may_be = socket.has_options.load(Relaxed);
            let limit = may_be.then(|| net::time_out(socket.anchor(), limit)).flatten();
            limit.map(|limit| time::now().saturating_add(limit))
        });
        self.0.set(Some(until));
        until.map(|until| until.saturating_sub(time::now()))
    }
}

/// How a thread waits.
pub(in crate::switch) struct Wait<'a> {
    pub(super) event: CountedEvent,
    /// The call has moved bytes: it is not restarted after a signal.
    pub(super) partial: bool,
    pub(super) limit: &'a Limit,
    /// How long (ns) until a thread that holds the send lock has something to do itself, the end of the
    /// connection included.
    pub(super) nap: Option<u64>,
}

impl<'a> Wait<'a> {
    /// For `event`, in a call that has moved bytes (`partial`) or not.
    pub(in crate::switch) fn new(event: CountedEvent, partial: bool, limit: &'a Limit) -> Self {
        Wait { event, partial, limit, nap: None }
    }

    /// For what the peer does about the transfer of a thread that holds the send lock, at most `nap` ns.
    pub(in crate::switch) fn in_transfer(nap: u64, limit: &'a Limit) -> Self {
        Wait { event: CountedEvent::Write, partial: true, limit, nap: Some(nap.max(1)) }
    }

    /// True for one within a transfer, with the send lock held.
    pub(super) fn is_in_transfer(&self) -> bool {
        self.nap.is_some()
    }

    /// Looks whether what is waited for is there.
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
    /// Something happened, or may have: to be looked at.
    Perhaps,
    /// The connection ended. Told only in a transfer, where what was read by RDMA is to count as sent
    /// before the end is noted.
    Ended,
}
