//! Sleeps on one connection. The TCP connection tells its end, and the bell beside it tells all else.

use super::how::{Wait, Woken};
use super::wait::nap_without_end;
use crate::fabric::{Notified, Sleeper};
use crate::session::{WayIn, WayOut};
use crate::switch::anchor::bell;
use crate::switch::anchor::broken;
use crate::switch::anchor::ends;
use crate::switch::anchor::link;
use crate::switch::anchor::returning;
use crate::switch::endpoint::flag;
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::carrier::SleepStep;
use crate::switch::stream::counters::CountedEvent;
use crate::switch::stream::Stream;
use crate::sys::{blocking, poll, time, Errno, Result};

/// Sleeps until the bell rings, the anchor tells something, or the link notifies this thread, its `sleeper`, of an
/// arrival. The caller has raised the counter. The thread sleeps `limit` ns in all, and `nap` ns at a time, at most.
///
/// # Errors
/// EAGAIN where the call's time is over, EINTR where TCP would give it.
pub(super) fn sleep(
    socket: &Socket,
    stream: &Stream,
    sleeper: Option<Sleeper>,
    how: &Wait,
    [limit, nap]: [Option<u64>; 2],
) -> Result<Woken> {
    let notified = sleeper.and_then(Sleeper::be_notified);
    if notified.is_none() {
        stream.carrier().sleep(SleepStep::OnBell);
    }
    let until = limit.map(|limit| time::now().saturating_add(limit));
    let mut looks = 0;
    loop {
        if link::is_unread_behind_end(stream) {
            link::look(socket, stream);
            return Ok(Woken::Perhaps);
        }
        let left = until.map(|until| until.saturating_sub(time::now()));
        if left == Some(0) {
            return Err(Errno(libc::EAGAIN));
        }
        let mut fds = descriptors(socket, stream, notified.as_ref(), how);
        if fds[0].fd < 0 && !how.is_in_transfer() && how.look(stream) {
            // The anchor tells nothing more, perhaps since a relative noted its end a moment ago.
            return Ok(Woken::Perhaps);
        }
        // This end shut its receiving direction down, so the anchor does not tell the peer's end any more.
        let is_deaf = !how.is_in_transfer() && stream.endpoint.has(flag::RECEIVE_SHUT);
        let deaf_nap = is_deaf.then(|| nap_without_end(looks));
        let nap = [nap, deaf_nap, link::longest_nap(stream)].into_iter().flatten().min();
        looks += 1;
        let mask = how.limit.signals.mask(nap.is_some() && !how.is_in_transfer(), None);
        // The kernel's recv and send restart themselves where the handler asks for it; poll does not.
        let interrupted = || match how.restarts(limit.is_some()) {
            true => Ok(()),
            false => Err(Errno(libc::EINTR)),
        };
        let nap_on = |fds: &mut [libc::pollfd], nap| match blocking::wait_for(fds, nap, mask) {
            Err(Errno(libc::EINTR)) => interrupted(),
            slept => slept.map(drop),
        };
        let time = [left, nap].into_iter().flatten().min();
        let awake = time.map(|time| time::now().saturating_add(time));
        nap_on(&mut fds, time)?;
        if fds[0].revents & libc::POLLNVAL != 0 {
            // Another thread closed the number. The kernel says so whatever ended the sleep. The socket has another
            // number.
            fds = descriptors(socket, stream, notified.as_ref(), how);
            let _ = poll::poll(&mut fds, Some(0), None);
            let is_early = awake.is_none_or(|awake| time::now() < awake);
            if is_early && fds.iter().all(|one| one.revents == 0) {
                // Nothing happened: a signal came.
                interrupted()?;
            }
        }
        let [anchor, bell, queue] = fds.map(|one| one.revents);
        if bell != 0 {
            bell::note_ring(socket, stream);
        }
        if how.is_in_transfer() {
            let ended = anchor & (libc::POLLHUP | libc::POLLERR | libc::POLLRDHUP) != 0;
            return Ok(if ended { Woken::Ended } else { Woken::Perhaps });
        }
        let stream = &stream.over(socket.anchor());
        ends::look_here(socket, stream);
        if anchor != 0 || (bell == 0 && ends::hears_no_end(stream)) {
            ends::look(socket, stream);
        }
        link::look(socket, stream);
        if let Some(notified) = notified.as_ref().filter(|_| queue & libc::POLLIN != 0) {
            // This thread is awake and looks, so no bell need ring for it.
            notified.take_notice();
            return Ok(Woken::Perhaps);
        }
        if bell != 0 || how.look(stream) || socket.phase() != phase::SAN {
            return Ok(Woken::Perhaps);
        }
        let returns = returning::is_due(stream);
        if anchor != 0 && stream.is_between_hosts() {
            // TCP reports an end that this end cannot heed before the link reports as much. The nap lets signals in
            // meanwhile.
            nap_on(&mut [], Some(link::PAUSE))?;
        }
        if returns {
            return Ok(Woken::Perhaps);
        }
    }
}

/// The descriptors that a thread sleeps on: the anchor, the bell, and the completion queue that notifies this thread.
fn descriptors(
    socket: &Socket,
    stream: &Stream,
    notified: Option<&Notified>,
    how: &Wait,
) -> [libc::pollfd; 3] {
    let one = |fd, events| libc::pollfd { fd, events, revents: 0 };
    let events = anchor_events(stream, how.event);
    let anchor = if events == 0 { -1 } else { socket.anchor() };
    let notified = notified.and_then(Notified::descriptor).unwrap_or(-1);
    [one(anchor, events), one(stream.bell(), libc::POLLIN), one(notified, libc::POLLIN)]
}

/// The anchor's events that end a sleep for this event. Zero: none does.
pub(in crate::switch) fn anchor_events(stream: &Stream, event: CountedEvent) -> i16 {
    if stream.endpoint.has(broken::SHOWS_END) {
        // The kernel would report the end at once, for ever.
        return 0;
    }
    // An end that half left does not heed the kernel's report of the stream's end (`ends::look`). The kernel would
    // repeat that report at once, for ever. So such an end looks by the clock.
    let is_unheeded = !stream.is_between_hosts()
        && returning::is_half_left(stream)
        && returning::is_kernels(stream);
    let mut events = if is_unheeded { 0 } else { libc::POLLRDHUP };
    let reads_tcp = stream.endpoint.way_in() != WayIn::San;
    if event == CountedEvent::Read && (reads_tcp || returning::comes_again(stream)) {
        events |= libc::POLLIN;
    }
    if event == CountedEvent::Write {
        events |= match stream.endpoint.way_out() {
            WayOut::San => 0,
            WayOut::Tcp | WayOut::Left => libc::POLLOUT,
            WayOut::Leaving => returning::room_events(stream),
        };
    }
    events
}
