//! What the kernel reports of an epoll set: the program gets its own descriptors' events, and the sockets behind the
//! shadow set's are looked at. Never waits.

use super::hot;
use crate::switch::anchor::{ends, returning, watchers};
use crate::switch::back_to_tcp::detach;
use crate::switch::event_bits as bit;
use crate::switch::socket::set::{nudge_data, shadow_data, Inner, Set};
use crate::switch::socket::table;
use crate::sys::{poll, time, Fd, Result};
use std::sync::atomic::Ordering;

/// Events taken from a set at a time: as many as a word has bits. The stack may be a small one.
const BATCH: usize = u32::BITS as usize;
const NO_EVENT: libc::epoll_event = libc::epoll_event { events: 0, u64: 0 };
/// Looks in a row that told of nothing but rings, which may have taken the room of what the program waits for.
const MOST_IN_VAIN: u32 = 4;
/// Busy calls after which idle registrations are turned cold without sleeping.
const COOL_INTERVAL: u32 = 1024;

/// Where the kernel reports events. Of these only the program's get into its array, which may hold what the program
/// goes on using, and which the kernel would not write to otherwise.
pub(super) struct KernelEvents([libc::epoll_event; BATCH]);

impl KernelEvents {
    #[inline]
    pub(super) fn new() -> KernelEvents {
        KernelEvents([NO_EVENT; BATCH])
    }

    /// For as many as `events` has room for.
    pub(super) fn room_for(&mut self, events: &[libc::epoll_event]) -> &mut [libc::epoll_event] {
        &mut self.0[..events.len().min(BATCH)]
    }

    /// Gives the program the first `n`, as far as they are its own; how many that were. They are what the kernel had `at` that
    /// time (ticks) or later.
    pub(super) fn deliver(
        &self,
        set: &'static Set,
        n: usize,
        at: u64,
        events: &mut [libc::epoll_event],
    ) -> usize {
        let is_all = n < events.len().min(BATCH);
        let (kept, has_rings) = deliver(set, &self.0[..n], events, 0, false);
        note_told(set, at, is_all, has_rings);
        kept
    }
}

/// Takes what is ours out of what the kernel has written to the program's array. There is something only if another thread
/// added it meanwhile.
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

/// Puts the reported events behind the `n` that are there, but for those of the shadow set and of the nudge; how many are there then.
/// If the shadow set has an event, its sockets are looked at, and the second value says so. `again`: some of the events may be
/// there from an earlier look.
fn deliver(
    set: &'static Set,
    reported: &[libc::epoll_event],
    events: &mut [libc::epoll_event],
    mut n: usize,
    again: bool,
) -> (usize, bool) {
    let (shadow, nudge) = (shadow_data(), nudge_data());
    let mut has_rings = false;
    for event in reported {
        let data = event.u64;
        let mut there = events[..n].iter_mut();
        if data == shadow {
            has_rings = true;
        } else if data == nudge {
        } else if let Some(there) = there.find(|there| again && { there.u64 } == data) {
            there.events |= event.events;
        } else {
            events[n] = *event;
            n += 1;
        }
    }
    if has_rings {
        note_rings(set);
    }
    (n, has_rings)
}

/// The kernel was asked `at` that time (ticks), and told all that it had, or not; of rings it told, or there was none.
fn note_told(set: &Set, at: u64, is_all: bool, has_rings: bool) {
    if is_all {
        set.with(|inner| {
            let told = &mut inner.told_until;
            told.acted = told.acted.max(at);
            // Else they were heard later.
            told.rang = told.rang.max(if has_rings { 0 } else { at });
            inner.answered_at = time::ticks();
        });
    }
}

/// Asks the kernel without waiting; reports its own descriptors' events behind the `n` that are there. How many are there then,
/// and whether the kernel had anything. `again`: some of what it has may be there.
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
        let (now, has_rings) = deliver(set, &reported.0[..took], events, n, again);
        any |= took > 0;
        let is_all = took < most;
        // Also where it had more than there is room for: else it would have the room of what it is asked for again and again.
        note_told(set, at, is_all || now == n || now == events.len(), has_rings);
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

/// Has the registrations looked at whose anchors or bells the kernel reports.
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

/// The kernel reported this event of a registration, of which the set looks at the stream itself from now on. True if nothing
/// else is to be done. `at`: when the kernel was asked (ticks).
fn note_ring(inner: &mut Inner, shadow: Fd, event: &libc::epoll_event, at: u64) -> bool {
    let (index, bits) = (event.u64 as u32, event.events);
    let Some(Some(r)) = inner.registrations.get_mut(index as usize) else { return true };
    if r.in_kernel {
        // The event is from before it went there.
        return true;
    }
    r.note(bits);
    r.disarm();
    let (socket, is_watched) = (r.socket, r.in_shadow);
    if r.parked {
        // It was rung for nobody, and enters again when it is added again.
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
    // The anchor has something: a bell is only read.
    let is_ring = bits & !bit::IN == 0;
    if is_ring && is_watched && !stream.endpoint.is_shared() {
        // The set watches the anchor as well, so the transfers that follow need not ask for it.
        stream.endpoint.looked_at.store(at, Ordering::Relaxed);
    }
    let goes_on = stream.is_undisturbed() && !returning::is_recalled(&stream);
    is_ring && goes_on && socket.watch_count.load(Ordering::Relaxed) <= 1
}

/// What a ring, or an event of the anchor, leaves to be done without the set's lock: it may take the structure lock.
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
