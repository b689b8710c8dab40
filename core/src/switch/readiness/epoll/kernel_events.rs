//! Takes what the kernel reports of an epoll set. The program gets the events of its own descriptors. At an event of
//! the shadow set this module looks at the sockets behind the event. It never waits.

use super::hot;
use crate::switch::anchor::{ends, returning, watchers};
use crate::switch::back_to_tcp::detach;
use crate::switch::event_bits as bit;
use crate::switch::socket::set::{nudge_data, shadow_data, Inner, Set};
use crate::switch::socket::table;
use crate::sys::{poll, time, Fd, Result};
use std::sync::atomic::Ordering;

/// So many events are taken from a set at a time: as many as a word has bits. The stack may be small.
const BATCH: usize = u32::BITS as usize;
const NO_EVENT: libc::epoll_event = libc::epoll_event { events: 0, u64: 0 };
/// The most looks in a row that report nothing but rings. Rings may have taken the room of events that the program
/// waits for.
const MOST_IN_VAIN: u32 = 4;
/// After so many busy calls, idle registrations turn cold without a sleep.
const COOL_INTERVAL: u32 = 1024;

/// The array into which the kernel reports events. Only the program's own events get into the program's array. That
/// array may hold data that the program goes on using, and the kernel alone would write nothing more there.
pub(super) struct KernelEvents([libc::epoll_event; BATCH]);

impl KernelEvents {
    #[inline]
    pub(super) fn new() -> KernelEvents {
        KernelEvents([NO_EVENT; BATCH])
    }

    /// Gives the room for as many events as `events` has room for.
    pub(super) fn room_for(&mut self, events: &[libc::epoll_event]) -> &mut [libc::epoll_event] {
        &mut self.0[..events.len().min(BATCH)]
    }

    /// Gives the program those of the first `n` events that are its own, and returns their number. The second number is
    /// how many of them came before the first ring, if there was one. The kernel had these events at the time `at`
    /// (ticks) or later.
    pub(super) fn deliver(
        &self,
        set: &'static Set,
        n: usize,
        at: u64,
        events: &mut [libc::epoll_event],
    ) -> (usize, Option<usize>) {
        let is_all = n < events.len().min(BATCH);
        let (kept, before_rings) = deliver(set, &self.0[..n], events, 0, false);
        note_told(set, at, is_all, before_rings.is_some());
        (kept, before_rings)
    }
}

/// Takes the library's events out of the program's array, to which the kernel has written. There are such events only
/// if another thread added their descriptor meanwhile.
#[inline]
pub(super) fn deliver_in_place(set: &'static Set, events: &mut [libc::epoll_event]) -> usize {
    let ours = [shadow_data(), nudge_data()];
    let is_ours = |event: &libc::epoll_event| {
        let data = event.u64;
        ours.contains(&data)
    };
    if !events.iter().any(is_ours) {
        return events.len();
    }
    let mut kept = 0;
    for at in 0..events.len() {
        let event = [events[at]];
        (kept, _) = deliver(set, &event, events, kept, false);
    }
    kept
}

/// Puts the reported events behind the `n` that are there, except those of the shadow set and of the nudge. Gives the
/// number of events that are there then. If the shadow set has an event, this looks at its sockets, and the second
/// value says how many events were there before that one. `again`: some of the events may be there from an earlier look.
fn deliver(
    set: &'static Set,
    reported: &[libc::epoll_event],
    events: &mut [libc::epoll_event],
    mut n: usize,
    again: bool,
) -> (usize, Option<usize>) {
    let (shadow, nudge) = (shadow_data(), nudge_data());
    let mut before_rings = None;
    for event in reported {
        let data = event.u64;
        let mut there = events[..n].iter_mut();
        if data == shadow {
            before_rings = Some(n);
        } else if data == nudge {
        } else if let Some(there) = there.find(|there| again && { there.u64 } == data) {
            there.events |= event.events;
        } else {
            events[n] = *event;
            n += 1;
        }
    }
    if before_rings.is_some() {
        note_rings(set);
    }
    (n, before_rings)
}

/// Notes the kernel's answer to a question at the time `at` (ticks). `is_all`: the kernel told all that it had.
/// `has_rings`: it told of rings.
fn note_told(set: &Set, at: u64, is_all: bool, has_rings: bool) {
    if is_all {
        set.with(|inner| {
            let told = &mut inner.told_until;
            told.acted = told.acted.max(at);
            // If the kernel told of rings, `note_rings` has noted when the set heard them.
            told.rang = told.rang.max(if has_rings { 0 } else { at });
            inner.answered_at = time::ticks();
        });
    }
}

/// Asks the kernel without waiting. Reports the events of its own descriptors behind the `n` that are there. Gives the
/// number of events that are there then, and whether the kernel had anything. `again`: some of the kernel's events may
/// be there already.
pub(super) fn look_at_kernel(
    set: &'static Set,
    events: &mut [libc::epoll_event],
    mut n: usize,
    mut again: bool,
) -> Result<(usize, bool)> {
    let (mut any, mut vain) = (false, 0);
    while n < events.len() && vain < MOST_IN_VAIN {
        let (mut reported, at) = (KernelEvents::new(), time::ticks());
        let room = reported.room_for(&events[n..]);
        let (most, took) = (room.len(), poll::epoll_wait(set.kernel_fd(), room, Some(0), None)?);
        let (now, before_rings) = deliver(set, &reported.0[..took], events, n, again);
        any |= took > 0;
        let is_all = took < most;
        // The answer counts as all also where the kernel had more than there is room for. Otherwise the kernel would be
        // asked again and again, and would take the room of the events for whose sake it is asked.
        note_told(set, at, is_all || now == n || now == events.len(), before_rings.is_some());
        vain = if now == n { vain + 1 } else { 0 };
        (n, again) = (now, true);
        if is_all {
            break;
        }
    }
    let cool = set.with(|inner| inner.calls % COOL_INTERVAL == 0).unwrap_or(false);
    if cool {
        hot::cool_down(set);
    }
    Ok((n, any))
}

/// Has the set look at the registrations whose anchors or bells the kernel reports.
pub(super) fn note_rings(set: &'static Set) {
    let shadow = set.shadow.load(Ordering::Relaxed);
    if shadow < 0 {
        return;
    }
    let mut events = [NO_EVENT; BATCH];
    loop {
        let at = time::ticks();
        let n = poll::epoll_wait(shadow, &mut events, Some(0), None).unwrap_or(0);
        let is_all = n < BATCH;
        let rung = &events[..n];
        let unsettled = set.with(|inner| {
            if is_all {
                inner.told_until.rang = inner.told_until.rang.max(at);
            }
            let mut unsettled = 0u32;
            for (i, event) in rung.iter().enumerate() {
                unsettled |= u32::from(!note_ring(inner, shadow, event, at)) << i;
            }
            unsettled
        });
        let unsettled = unsettled.unwrap_or(0);
        for (_, event) in rung.iter().enumerate().filter(|(i, _)| unsettled >> i & 1 != 0) {
            look_closer(set, event);
        }
        if is_all {
            return;
        }
    }
}

/// Notes that the kernel reported this event of a registration. From now on the set looks at the registration's stream
/// itself. True if nothing else is to be done. `at`: when the kernel was asked (ticks).
fn note_ring(inner: &mut Inner, shadow: Fd, event: &libc::epoll_event, at: u64) -> bool {
    let (index, bits) = (event.u64 as u32, event.events);
    let Some(Some(r)) = inner.registrations.get_mut(index as usize) else { return true };
    if r.in_kernel {
        // The event is from before the registration went to the kernel's set.
        return true;
    }
    r.note(bits);
    r.disarm();
    let (socket, is_watched) = (r.socket, r.in_shadow);
    if r.parked {
        // The ring was for no one. The registration enters again when the program adds it again.
        if r.in_shadow && r.has_descriptor() {
            let _ = poll::epoll_ctl(shadow, libc::EPOLL_CTL_DEL, r.fd, 0, 0);
            r.in_shadow = false;
        }
        if r.unwatch_bell(shadow) && socket.watch_count.load(Ordering::Relaxed) > 1 {
            inner.pass_bell_on(shadow, socket);
        }
    }
    inner.make_hot(index);
    let Some(stream) = socket.stream() else { return true };
    // Another bit than EPOLLIN is the anchor's: a bell only becomes readable.
    let is_ring = bits & !bit::IN == 0;
    if is_ring && is_watched && !stream.endpoint.is_shared() {
        // The set watches the anchor as well, so the transfers that follow need not ask the kernel about the anchor.
        stream.endpoint.looked_at.store(at, Ordering::Relaxed);
    }
    let goes_on = stream.is_undisturbed() && !returning::is_recalled(&stream);
    is_ring && goes_on && socket.watch_count.load(Ordering::Relaxed) <= 1
}

/// Does what a ring, or an event of the anchor, leaves to be done. The caller does not hold the set's lock, because
/// this may take the structure lock.
#[cold]
#[inline(never)]
fn look_closer(set: &'static Set, event: &libc::epoll_event) {
    let pinned = set.with(|inner| {
        let r = inner.registrations.get(event.u64 as usize)?.as_ref()?;
        (!r.in_kernel).then(|| table::Pinned::new(r.socket))
    });
    let Some(socket) = pinned.flatten() else { return };
    if let Some(stream) = socket.stream() {
        if event.events & !bit::IN != 0 {
            ends::look(&socket, &stream);
        }
        detach::look_after(&socket, &stream);
    }
    if socket.watch_count.load(Ordering::Relaxed) > 1 {
        // The bell is in the shadow set once for all registrations of the socket there.
        watchers::look_again(&socket);
    }
}
