//! epoll_wait: the hot sockets' streams first, then the kernel.

use crate::fabric;
use crate::switch::anchor::ends;
use crate::switch::anchor::returning;
use crate::switch::anchor::untaken_offer;
use crate::switch::anchor::watchers;
use crate::switch::back_to_tcp::detach;
use crate::switch::back_to_tcp::request;
use crate::switch::endpoint::flag;
use crate::switch::outcome::Outcome;
use crate::switch::readiness::events;
use crate::switch::socket::set::{nudge_data, shadow_data, Inner, Registration, Set};
use crate::switch::socket::table;
use crate::switch::spin::spin;
use crate::switch::stream::Stream;
use crate::switch::waiting::ring;
use crate::sys::process::NapSignals;
use crate::sys::{blocking, poll, time, Errno, Fd, Result};
use std::sync::atomic::Ordering;

/// Looks in a row that found nothing, until a registration turns cold at the next sleep.
const COLD_AFTER: u32 = 64;
/// Longest time (clock ticks, some 100 µs) that the kernel's own descriptors wait behind busy
/// streams.
const LOOK_INTERVAL: u64 = 300_000;
/// Longest time (clock ticks, some 10 ms) that sessions which may go back to TCP are not looked after
/// in a set that is too busy to sleep.
const SCAN_INTERVAL: u64 = 30_000_000;
/// Busy calls after which idle registrations are turned cold without sleeping.
const COOL_INTERVAL: u32 = 1024;
/// Events taken from a set, and anchors drained, at a time.
const BATCH: usize = 64;

const NO_EVENT: libc::epoll_event = libc::epoll_event { events: 0, u64: 0 };

/// epoll_wait in all its forms. `timeout` in nanoseconds, `None` for ever.
///
/// # Safety
/// `mask` is null or a valid signal set.
pub unsafe fn wait(
    epoll: Fd,
    events: &mut [libc::epoll_event],
    timeout: Option<u64>,
    mask: *const libc::sigset_t,
) -> Outcome {
    let Some(set) = table::set(epoll) else { return Outcome::Pass };
    if set.inherited.swap(false, Ordering::Relaxed) {
        watchers::take_over(set);
    }
    // SAFETY: the caller's promise.
    let result = unsafe { wait_on(set, events, timeout, mask) };
    leave(set);
    Outcome::Done(result)
}

/// # Safety
/// `mask` is null or a valid signal set.
unsafe fn wait_on(
    set: &'static Set,
    events: &mut [libc::epoll_event],
    timeout: Option<u64>,
    mask: *const libc::sigset_t,
) -> Result<usize> {
    let (mut start, mut room) = (None, Room::new());
    // Without SAN sockets the kernel does it all. But another thread may add one meanwhile.
    while set.san.load(Ordering::SeqCst) == 0 {
        let left = remaining(timeout, &mut start);
        set.settle_members();
        // With nothing of ours in the kernel's set the program gets as much at once as it has room for.
        let alone = set.shadow.load(Ordering::Relaxed) < 0;
        let asleep = Sleeper::on(set);
        // Once more: who adds one looks for sleepers afterwards.
        let slept = (set.san.load(Ordering::SeqCst) == 0).then(|| {
            let to = if alone { &mut *events } else { room.for_at_most(events) };
            // SAFETY: the caller's promise.
            unsafe { blocking::epoll_wait(set.kernel_fd(), to, left, mask) }
        });
        drop(asleep);
        let Some(slept) = slept else { break };
        let n = slept?;
        let kept = match alone {
            true => sort_out_in_place(set, n, events),
            false => sort_out(set, room.first(n), events),
        };
        if kept > 0 || n == 0 || timeout == Some(0) {
            return Ok(kept);
        }
    }
    let mut signals = NapSignals::default();
    loop {
        let kernel_was_passed_over = set.kernel_was_passed_over.load(Ordering::Relaxed);
        let first = if kernel_was_passed_over {
            set.kernel_was_passed_over.store(false, Ordering::Relaxed);
            look_at_kernel(set, events)?
        } else {
            0
        };
        let Collected { n, look, scan } = set
            .with(|inner| collect(inner, &mut events[first..], timeout))
            .ok_or(Errno(libc::EINTR))?;
        let mut n = first + n;
        let look = look && !kernel_was_passed_over;
        if look && n == events.len() {
            set.kernel_was_passed_over.store(true, Ordering::Relaxed);
        } else if look {
            n += look_at_kernel(set, &mut events[n..])?;
        }
        if scan {
            scan_pending(set);
        }
        if look && n == 0 && set.has_hot_ready() {
            continue;
        }
        if n > 0 || timeout == Some(0) {
            return Ok(n);
        }
        let left = remaining(timeout, &mut start);
        if left == Some(0) {
            return Ok(0);
        }
        let budget = left.unwrap_or(u64::MAX);
        // With a mask of the program's, a signal it lets in must not wait for a spin to end.
        let hot = set.san.load(Ordering::Relaxed) != 0;
        if hot && mask.is_null() && spin(&set.spin, budget, || set.has_hot_ready()) {
            continue;
        }
        set.settle_members();
        request::check();
        make_up(set);
        // Before this thread counts as asleep: the others are told of what is taken off, not it.
        drain_doorbells(set, |_| true);
        let asleep = Sleeper::on(set);
        let raised = Raised(set);
        let slept = if arm(set) {
            Ok(0)
        } else {
            let (left, longest) = (remaining(timeout, &mut start), longest_sleep(set));
            let mask = signals.mask(longest.is_some(), mask);
            let left = match (left, longest) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            // SAFETY: the caller's promise; ours is there as long as `signals`.
            unsafe { blocking::epoll_wait(set.kernel_fd(), room.for_at_most(events), left, mask) }
        };
        drop(asleep);
        drop(raised);
        scan_pending(set);
        let n = sort_out(set, room.first(slept?), events);
        if n > 0 {
            return Ok(n);
        }
    }
}

/// The calling thread counts as asleep on the set until this is dropped, also where it is cancelled in its sleep.
struct Sleeper(&'static Set);

impl Sleeper {
    fn on(set: &'static Set) -> Sleeper {
        set.sleepers.fetch_add(1, Ordering::SeqCst);
        Sleeper(set)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The hot registrations' counters may be raised; [`disarm`]ed when it is dropped.
struct Raised(&'static Set);

impl Drop for Raised {
    fn drop(&mut self) {
        disarm(self.0);
    }
}

/// What is left of a time-out that began with the first call.
fn remaining(timeout: Option<u64>, start: &mut Option<u64>) -> Option<u64> {
    let timeout = timeout?;
    if timeout == 0 {
        return Some(0);
    }
    let now = time::now();
    Some(timeout.saturating_sub(now - *start.get_or_insert(now)))
}

/// What [`collect`] found.
struct Collected {
    /// Events reported.
    n: usize,
    /// The kernel should be asked too.
    look: bool,
    /// Sessions that may go back to TCP should be looked after.
    scan: bool,
}

/// Reports what is due among the hot registrations.
fn collect(inner: &mut Inner, events: &mut [libc::epoll_event], timeout: Option<u64>) -> Collected {
    let mut n = 0;
    let count = inner.hot.len();
    let mut at = inner.cursor;
    for _ in 0..count {
        if n == events.len() {
            break;
        }
        if at >= inner.hot.len() {
            at = 0;
        }
        let index = inner.hot[at];
        at += 1;
        let Some(Some(r)) = inner.registrations.get_mut(index as usize) else { continue };
        match r.take() {
            Some(ready) => {
                events[n] = libc::epoll_event { events: ready, u64: r.data };
                n += 1;
            }
            None => r.idle = r.idle.saturating_add(1),
        }
    }
    inner.cursor = at;
    inner.calls = inner.calls.wrapping_add(1);
    let now = time::ticks();
    let look =
        (n == 0 && timeout == Some(0)) || now.saturating_sub(inner.looked_at) > LOOK_INTERVAL;
    if look {
        inner.looked_at = now;
    }
    let scan = now.saturating_sub(inner.scanned_at) > SCAN_INTERVAL;
    if scan {
        inner.scanned_at = now;
    }
    Collected { n, look, scan }
}

/// Asks the kernel without waiting; reports its own descriptors' events.
fn look_at_kernel(set: &'static Set, events: &mut [libc::epoll_event]) -> Result<usize> {
    if events.is_empty() {
        return Ok(0);
    }
    request::check();
    let mut room = Room::new();
    let n = poll::epoll_wait(set.kernel_fd(), room.for_at_most(events), Some(0), None)?;
    let kept = sort_out(set, room.first(n), events);
    let cool = set.with(|inner| inner.calls % COOL_INTERVAL == 0).unwrap_or(false);
    if cool {
        cool_down(set);
    }
    Ok(kept)
}

/// Where the kernel reports events. Of these only the program's get into its array, which may hold what the program goes
/// on using, and which the kernel would not write to otherwise.
struct Room([libc::epoll_event; BATCH]);

impl Room {
    fn new() -> Room {
        Room([NO_EVENT; BATCH])
    }

    /// For as many as `events` has room for.
    fn for_at_most(&mut self, events: &[libc::epoll_event]) -> &mut [libc::epoll_event] {
        &mut self.0[..events.len().min(BATCH)]
    }

    fn first(&self, n: usize) -> &[libc::epoll_event] {
        &self.0[..n]
    }
}

/// Gives the program what the kernel reported, but for the shadow set's and the nudge's own events, and has the
/// sockets behind those looked at. Returns how many events it got.
fn sort_out(
    set: &'static Set,
    reported: &[libc::epoll_event],
    events: &mut [libc::epoll_event],
) -> usize {
    let (shadow, nudge) = (shadow_data(), nudge_data());
    let mut kept = 0;
    let mut bells = false;
    for event in reported {
        let data = event.u64;
        if data == shadow {
            bells = true;
        } else if data != nudge {
            events[kept] = *event;
            kept += 1;
        }
    }
    if bells {
        note_doorbells(set);
    }
    kept
}

/// As [`sort_out`] of the first `n` of the program's array, where the kernel reported into it. There is something of ours only
/// if another thread added it meanwhile.
fn sort_out_in_place(set: &'static Set, n: usize, events: &mut [libc::epoll_event]) -> usize {
    let mut kept = 0;
    for at in 0..n {
        let event = [events[at]];
        kept += sort_out(set, &event, &mut events[kept..]);
    }
    kept
}

/// Has the registrations looked at whose anchors the kernel reports.
fn note_doorbells(set: &'static Set) {
    let shadow = set.shadow.load(Ordering::Relaxed);
    if shadow < 0 {
        return;
    }
    let mut events = [NO_EVENT; BATCH];
    let n = poll::epoll_wait(shadow, &mut events, Some(0), None).unwrap_or(0);
    for event in &events[..n] {
        let (index, bits) = (event.u64 as u32, event.events);
        let socket = set.with(|inner| {
            let r = inner.registrations.get_mut(index as usize)?.as_mut()?;
            if r.in_kernel {
                // Of before it went there.
                return None;
            }
            r.note(bits);
            r.disarm();
            inner.make_hot(index);
            let r = inner.registrations[index as usize].as_ref()?;
            Some(table::Pinned::new(r.socket))
        });
        let Some(Some(socket)) = socket else { continue };
        // Not with the set's lock held: it may have to take the structure lock.
        events::note_kernel_events(&socket, bits);
        if let Some(stream) = socket.stream() {
            detach::look_after(&socket, &stream);
        }
        let silent = socket.stream().is_none_or(|s| {
            s.endpoint.has(flag::NO_MORE_DOORBELLS)
                || (s.endpoint.has(ends::ALWAYS_READABLE) && bits & libc::EPOLLRDHUP as u32 != 0)
        });
        set.with(|inner| {
            let r = inner.registrations.get_mut(index as usize)?.as_mut()?;
            // An ended stream would be reported for ever; and a parked registration was rung for
            // nobody, and enters again when it is added again.
            if r.in_shadow && (silent || r.parked) {
                let _ = poll::epoll_ctl(shadow, libc::EPOLL_CTL_DEL, r.fd, 0, 0);
                r.in_shadow = false;
            }
            if r.parked {
                r.unwatch_link(shadow);
            }
            Some(())
        });
    }
}

/// Raises the counters of all hot registrations and looks once more; true if something is due.
fn arm(set: &'static Set) -> bool {
    set.with(|inner| {
        let mut due = false;
        for at in 0..inner.hot.len() {
            let index = inner.hot[at] as usize;
            let Some(Some(r)) = inner.registrations.get_mut(index) else { continue };
            if !r.parked {
                r.arm();
                due |= r.due().is_some();
            }
        }
        due
    })
    .unwrap_or(true)
}

/// Lowers what [`arm`] raised, but for registrations that were idle long enough: those stay raised
/// and turn cold.
fn disarm(set: &'static Set) {
    set.with(|inner| {
        let Inner { hot, registrations, .. } = inner;
        hot.retain(|index| {
            let Some(Some(r)) = registrations.get_mut(*index as usize) else { return false };
            if r.parked {
                r.disarm();
                r.hot = false;
                return false;
            }
            if r.idle >= COLD_AFTER && !r.stays_hot() && r.due().is_none() {
                r.hot = false;
                return false;
            }
            r.disarm();
            true
        });
    });
}

/// Turns idle registrations cold while the set is too busy to sleep.
fn cool_down(set: &'static Set) {
    drain_doorbells(set, |idle| idle >= COLD_AFTER);
    set.with(|inner| {
        let Inner { hot, registrations, .. } = inner;
        hot.retain(|index| {
            let Some(Some(r)) = registrations.get_mut(*index as usize) else { return false };
            if r.idle < COLD_AFTER || r.stays_hot() {
                return true;
            }
            r.arm();
            if r.due().is_some() {
                r.disarm();
                return true;
            }
            r.hot = false;
            false
        });
    });
}

/// Takes heard doorbells off the anchors of sockets with nothing to report.
fn drain_doorbells(set: &'static Set, wanted: impl Fn(u32) -> bool) {
    loop {
        let mut batch: [Option<table::Pinned>; BATCH] = [const { None }; BATCH];
        let n = set.with(|inner| {
            let mut n = 0;
            for at in 0..inner.hot.len() {
                let index = inner.hot[at] as usize;
                let Some(Some(r)) = inner.registrations.get_mut(index) else { continue };
                if r.has_doorbell && wanted(r.idle) && r.due().is_none() && n < BATCH {
                    r.has_doorbell = false;
                    batch[n] = Some(table::Pinned::new(r.socket));
                    n += 1;
                }
            }
            n
        });
        for socket in batch.iter().flatten() {
            // There may be data all the same, reported before or not asked for. The byte must go
            // or the kernel would show it for ever; whoever else waits for it is told.
            if let Some(stream) = socket.stream() {
                ring::drain(socket, &stream, || false);
            }
        }
        if n.unwrap_or(0) < BATCH {
            return;
        }
    }
}

/// How long to sleep at most, because of sockets whose doorbell can not be relied on.
fn longest_sleep(set: &'static Set) -> Option<u64> {
    set.with(|inner| {
        inner
            .hot
            .iter()
            .filter_map(|index| inner.registrations.get(*index as usize)?.as_ref())
            .filter_map(Registration::longest_nap)
            .min()
    })
    .flatten()
}

/// Some of the sockets whose registrations are hot and `wanted`, to be seen to without the set's lock.
fn pin_hot(
    set: &'static Set,
    wanted: impl Fn(&Registration) -> bool,
) -> impl Iterator<Item = table::Pinned> {
    let mut batch: [Option<table::Pinned>; BATCH] = [const { None }; BATCH];
    set.with(|inner| {
        let hot = inner
            .hot
            .iter()
            .filter_map(|index| inner.registrations.get(*index as usize)?.as_ref())
            .filter(|r| wanted(r));
        for (to, r) in batch.iter_mut().zip(hot) {
            *to = Some(table::Pinned::new(r.socket));
        }
    });
    batch.into_iter().flatten()
}

/// Looks after sessions that were not taken yet, or are on their way back to TCP.
fn scan_pending(set: &'static Set) {
    for socket in pin_hot(set, |r| r.socket.is_pending() || returning::is_due_for(r.socket)) {
        if socket.is_pending() {
            untaken_offer::scan(&socket);
        } else if let Some(stream) = socket.stream() {
            detach::look_after(&socket, &stream);
        }
    }
}

/// Before a sleep: makes up for relatives that were killed inside a call.
fn make_up(set: &'static Set) {
    for socket in pin_hot(set, |r| ring::may_need_recovery(r.socket)) {
        if let Some(stream) = socket.stream() {
            ring::recover_if_needed(&socket, &stream);
        }
    }
}

/// Before a call returns to the program: others who wait on this set must hear what this thread
/// will not look at until it comes back.
fn leave(set: &'static Set) {
    if set.has_other_waiters() {
        settle(set);
    }
}

/// True if a registration waits for space that no doorbell will tell of: another thread of this end sends.
/// Who sleeps on the set itself looks every now and then; who watches it from outside does not.
fn is_held_up(set: &'static Set) -> bool {
    set.with(|inner| {
        let registrations = inner.hot.iter().filter_map(|at| inner.registrations.get(*at as usize));
        registrations.flatten().any(Registration::is_held_up)
    })
    .unwrap_or(false)
}

/// Waits for who takes what a fabric brought, and then rings: it would ring for what was read meanwhile.
fn catch_up(set: &'static Set) {
    let is_over_one = |stream: Stream| stream.fabric.is_some_and(|link| !link.is_foreign());
    for socket in pin_hot(set, |r| r.socket.stream().is_some_and(is_over_one)) {
        if let Some(link) = socket.stream().and_then(|stream| stream.fabric) {
            link.catch_up();
        }
    }
}

/// Raises all counters, and nudges the set if something is due.
pub(super) fn settle(set: &'static Set) {
    if set.nested.load(Ordering::Relaxed) && fabric::may_exist() {
        catch_up(set);
    }
    // What the kernel shows of the set from now on is to be the truth.
    note_doorbells(set);
    drain_doorbells(set, |_| true);
    if arm(set) || is_held_up(set) {
        set.wake();
    } else {
        set.withdraw_nudge();
    }
}

impl Set {
    #[inline]
    fn has_hot_ready(&self) -> bool {
        self.with(|inner| {
            inner.hot.iter().any(|index| {
                matches!(inner.registrations.get(*index as usize),
                    Some(Some(r)) if r.due().is_some())
            })
        })
        .unwrap_or(true)
    }
}
