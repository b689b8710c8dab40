//! Sleeping on a connection of this host: the doorbell is a byte on the anchor.

use super::how::{Wait, Woken};
use crate::switch::anchor::ends;
use crate::switch::anchor::returning;
use crate::switch::endpoint::flag;
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::counters::Event;
use crate::switch::stream::Stream;
use crate::sys::process::NapSignals;
use crate::sys::{blocking, file, time, Errno, Result};

/// Sleeps in the kernel until the anchor tells something, or something arrived. The counter is raised. No longer than
/// `limit`, and `nap`, at a time.
pub(super) fn sleep(
    socket: &Socket,
    stream: &Stream,
    how: &Wait,
    [limit, nap]: [Option<u64>; 2],
) -> Result<Woken> {
    let anchor = socket.anchor();
    // The kernel's own recv honours SO_RCVTIMEO, restarts and cancellation exactly.
    let Some(nap) = nap else {
        let end = |n| if n == 0 { Woken::Ended } else { Woken::Perhaps };
        return blocking::peek(anchor).map(end);
    };
    if !how.is_in_transfer() && file::status_flags(anchor)? & libc::O_NONBLOCK != 0 {
        return Err(Errno(libc::EAGAIN));
    }
    let start = time::now();
    let mut signals = NapSignals::default();
    let mask = signals.mask(!how.is_in_transfer(), None);
    loop {
        let left = limit.map(|l| l.saturating_sub(time::now() - start));
        if left == Some(0) {
            return Err(Errno(libc::EAGAIN));
        }
        let mut anchor = [libc::pollfd { fd: anchor, events: awaited(stream, how), revents: 0 }];
        let nap = left.map_or(nap, |l| l.min(nap));
        let n = match blocking::wait_for(&mut anchor, Some(nap), mask) {
            // As the kernel's own recv; poll is never restarted.
            Err(Errno(libc::EINTR)) if how.restarts(limit.is_some()) => 0,
            slept => slept?,
        };
        let ended = n > 0 && anchor[0].revents & (libc::POLLHUP | libc::POLLERR) != 0;
        if how.is_in_transfer() {
            return Ok(if ended { Woken::Ended } else { Woken::Perhaps });
        }
        if ended || ends::hears_no_end(stream) {
            ends::look(socket, stream);
        }
        let happened = how.has_happened(stream);
        let returns = returning::is_due(stream) || socket.phase() != phase::SAN;
        if n > 0 || happened || returns {
            return Ok(Woken::Perhaps);
        }
    }
}

/// What of the anchor is to end the sleep.
fn awaited(stream: &Stream, how: &Wait) -> i16 {
    match how.event {
        // It would do so at once: only time passes then.
        _ if stream.endpoint.has(ends::ALWAYS_READABLE) => 0,
        // What is there to read does not matter.
        Event::Write if stream.endpoint.has(flag::SENDS_TCP) => libc::POLLOUT,
        _ => libc::POLLIN,
    }
}
