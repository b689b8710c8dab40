//! Sleeping on a connection whose peer is on another host: the doorbell is a descriptor of the link's beside the anchor.

use crate::fabric::{Ear, Link, Sleeper};
use crate::switch::anchor::doorbell::{self, let_sleepers_leave, Departure};
use crate::switch::anchor::ends;
use crate::switch::anchor::link;
use crate::switch::anchor::ready;
use crate::switch::anchor::returning;
use crate::switch::anchor::watchers;
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::counters::{self, Event};
use crate::switch::stream::{Hold, Stream};
use crate::switch::waiting::wait::{self, Woken};
use crate::sys::process::NapSignals;
use crate::sys::{blocking, handlers};
use crate::sys::{file, time, Errno, Result};
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
    wait::look_if_stale(socket, stream, time::ticks());
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

/// Sleeps until the event rings, the anchor tells something, or something arrived that this thread, the `sleeper`, hears. The
/// counter is raised. No longer than `limit`, and `slice`, at a time. `partial`: the call has moved bytes.
pub(in crate::switch) fn sleep(
    socket: &Socket,
    stream: &Stream,
    link: &Link,
    sleeper: Option<Sleeper>,
    (event, partial): (Event, bool),
    [limit, slice]: [Option<u64>; 2],
) -> Result<Woken> {
    let anchor = socket.anchor();
    if file::status_flags(anchor)? & libc::O_NONBLOCK != 0 {
        return Err(Errno(libc::EAGAIN));
    }
    let ear = sleeper.and_then(Sleeper::hear);
    if ear.is_none() {
        link.let_helper_hear();
    }
    let start = time::now();
    let mut signals = NapSignals::default();
    // The kernel's recv and send restart themselves where every handler asks for it.
    let restarts = || !partial && limit.is_none() && handlers::restart();
    loop {
        if link::is_unread_behind_end(stream) {
            link::look(socket, stream);
            return Ok(Woken::Perhaps);
        }
        let left = limit.map(|l| l.saturating_sub(time::now() - start));
        if left == Some(0) {
            return Err(Errno(libc::EAGAIN));
        }
        let silent = stream.endpoint.has(ends::ALWAYS_READABLE);
        let events = if silent { 0 } else { libc::POLLIN | libc::POLLRDHUP };
        let mut fds = [
            libc::pollfd { fd: if silent { -1 } else { anchor }, events, revents: 0 },
            libc::pollfd { fd: link.event(), events: libc::POLLIN, revents: 0 },
            libc::pollfd {
                fd: ear.as_ref().and_then(Ear::descriptor).unwrap_or(-1),
                events: libc::POLLIN,
                revents: 0,
            },
        ];
        let slice = [slice, link::longest_nap(stream)].into_iter().flatten().min();
        let nap = [left, slice].into_iter().flatten().min();
        let mask = signals.mask(slice.is_some(), std::ptr::null());
        let nap_on = |fds: &mut [libc::pollfd], nap| {
            // SAFETY: the mask is there as long as `signals`.
            match unsafe { blocking::poll(fds, nap, mask) } {
                Err(Errno(libc::EINTR)) if restarts() => Ok(()),
                slept => slept.map(drop),
            }
        };
        nap_on(&mut fds, nap)?;
        if fds[0].revents != 0 || ends::hears_no_end(stream) {
            ends::look(socket, stream);
        }
        link::look(socket, stream);
        if socket.is_pending() {
            crate::switch::anchor::untaken_offer::scan(socket);
        }
        if let Some(ear) = ear.as_ref().filter(|_| fds[2].revents & libc::POLLIN != 0) {
            // Who looks is awake: no event need ring.
            ear.heard();
            return Ok(Woken::Perhaps);
        }
        let happened = match event {
            Event::Read => ready::readable(stream),
            Event::Write => ready::writable(stream),
        };
        let returns = returning::is_due(stream);
        if fds[1].revents != 0 || happened || socket.phase() != phase::SAN {
            return Ok(Woken::Perhaps);
        }
        if fds[0].revents != 0 {
            // TCP tells what this end cannot heed before the link told as much. Signals come meanwhile.
            nap_on(&mut [], Some(link::PAUSE))?;
        }
        if returns {
            return Ok(Woken::Perhaps);
        }
    }
}
