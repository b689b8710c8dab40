//! Sleeping on a connection whose peer is on another host: the doorbell is a descriptor of the link's beside the
//! anchor.

use super::how::{Wait, Woken};
use super::look;
use crate::fabric::{Link, Notified, Sleeper};
use crate::switch::anchor::doorbell::{self, let_sleepers_leave, Departure};
use crate::switch::anchor::ends;
use crate::switch::anchor::link;
use crate::switch::anchor::returning;
use crate::switch::anchor::watchers;
use crate::switch::endpoint::flag;
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::counters::{self, Event};
use crate::switch::stream::{Hold, Stream};
use crate::sys::process::NapSignals;
use crate::sys::{blocking, file, time, Errno, Result};
use std::sync::atomic::Ordering::Relaxed;

/// Takes the rings off the event. Only for who found the stream empty and is about to raise a
/// counter; waits until the threads it was to wake are awake.
pub(in crate::switch) fn drain(
    socket: &Socket,
    stream: &Stream,
    link: &Link,
    timeout: u64,
    ready: impl FnMut() -> bool,
) {
    let e = stream.endpoint;
    look::look_if_stale(socket, stream, time::ticks());
    let forced = match let_sleepers_leave(stream, link.event(), timeout, ready) {
        Departure::Done => false,
        Departure::Never => true,
        Departure::Awaited => return,
    };
    let _hold = Hold::of(stream);
    if e.anchor.lock().is_err() {
        return;
    }
    if !forced && e.sleepers.any() {
        e.anchor.unlock();
        return;
    }
    if !returning::is_due(stream) {
        doorbell::take_off_urgent(stream, socket.anchor());
    }
    let mut rings = [0u8; 8];
    let drained = file::read(link.event(), rings.as_mut_ptr(), rings.len()).is_ok();
    if forced {
        e.sleepers.clear();
    }
    e.anchor.unlock();
    if forced || (drained && e.holders.load(Relaxed) > 1) {
        for event in [Event::Read, Event::Write] {
            let _ = counters::raise(stream, event);
        }
    }
    if drained {
        socket.statistics().wakeups_received.add(1);
        watchers::doorbell_drained(socket);
    }
}

/// Sleeps until the event rings, the anchor tells something, or something arrived of which this thread, the `sleeper`,
/// is notified. The counter is raised. No longer than `limit`, and `nap`, at a time.
pub(super) fn sleep(
    socket: &Socket,
    stream: &Stream,
    link: &Link,
    sleeper: Option<Sleeper>,
    how: &Wait,
    [limit, nap]: [Option<u64>; 2],
) -> Result<Woken> {
    if file::status_flags(socket.anchor())? & libc::O_NONBLOCK != 0 {
        return Err(Errno(libc::EAGAIN));
    }
    let notified = sleeper.and_then(Sleeper::be_notified);
    if notified.is_none() {
        link.notify_helper();
    }
    let start = time::now();
    let mut signals = NapSignals::default();
    // The kernel's recv and send restart themselves where every handler asks for it.
    let restarts = || how.restarts(limit.is_some());
    loop {
        if link::is_unread_behind_end(stream) {
            link::look(socket, stream);
            return Ok(Woken::Perhaps);
        }
        let left = limit.map(|l| l.saturating_sub(time::now() - start));
        if left == Some(0) {
            return Err(Errno(libc::EAGAIN));
        }
        let mut fds = descriptors(socket, stream, (link, notified.as_ref()), how);
        let nap = [nap, link::longest_nap(stream)].into_iter().flatten().min();
        let mask = signals.mask(nap.is_some(), None);
        let nap_on = |fds: &mut [libc::pollfd], nap| match blocking::wait_for(fds, nap, mask) {
            Err(Errno(libc::EINTR)) if restarts() => Ok(()),
            slept => slept.map(drop),
        };
        nap_on(&mut fds, [left, nap].into_iter().flatten().min())?;
        let (anchor_told, rang) = (fds[0].revents != 0, fds[1].revents != 0);
        look_after_nap(socket, stream, anchor_told);
        if let Some(notified) = notified.as_ref().filter(|_| fds[2].revents & libc::POLLIN != 0) {
            // Who looks is awake: no event need ring.
            notified.take_notice();
            return Ok(Woken::Perhaps);
        }
        let happened = how.has_happened(stream);
        let returns = returning::is_due(stream);
        if rang || happened || socket.phase() != phase::SAN {
            return Ok(Woken::Perhaps);
        }
        if anchor_told {
            // TCP tells what this end cannot heed before the link told as much. Signals come meanwhile.
            nap_on(&mut [], Some(link::PAUSE))?;
        }
        if returns {
            return Ok(Woken::Perhaps);
        }
    }
}

/// What is slept on: the anchor, the link's event, and the completion queue that this thread is notified by.
fn descriptors(
    socket: &Socket,
    stream: &Stream,
    (link, notified): (&Link, Option<&Notified>),
    how: &Wait,
) -> [libc::pollfd; 3] {
    let one = |fd, events| libc::pollfd { fd, events, revents: 0 };
    let anchor = if stream.endpoint.has(ends::ALWAYS_READABLE) {
        one(-1, 0)
    } else {
        let has_stream = stream.endpoint.has(flag::RECEIVES_TCP);
        let mut events = libc::POLLRDHUP;
        if how.event == Event::Read || !has_stream {
            events |= libc::POLLIN;
        }
        if how.event == Event::Write && stream.endpoint.has(flag::SENDS_TCP) {
            events |= libc::POLLOUT;
        }
        one(socket.anchor(), events)
    };
    let notified = notified.and_then(Notified::descriptor).unwrap_or(-1);
    [anchor, one(link.event(), libc::POLLIN), one(notified, libc::POLLIN)]
}

/// Looks at what no event tells.
fn look_after_nap(socket: &Socket, stream: &Stream, anchor_told: bool) {
    if anchor_told || ends::hears_no_end(stream) {
        ends::look(socket, stream);
    }
    link::look(socket, stream);
}
