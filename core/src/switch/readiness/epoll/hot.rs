//! The hot registrations of a set. This module finds what is due among them. It raises their select counters before a
//! sleep, and lowers the counters after the sleep. Registrations that were idle for long turn cold, and at a sleep
//! those of this host's connections do. This module reads no event from the kernel, and waits for nothing.

use super::due::DueReport;
use crate::switch::back_to_tcp::detach;
use crate::switch::readiness::timeout::shorter;
use crate::switch::socket::set::{Inner, Registration, Set};
use crate::switch::socket::table;
use crate::switch::waiting::{ring, wait};
use crate::sys::time;

/// After so many looks in a row that found nothing, a registration of a connection with another host turns cold at a
/// sleep.
const COLD_AT_SLEEP: u32 = 2;
/// After so many looks, any registration turns cold in a set that is too busy to sleep.
const COLD_AFTER: u32 = 64;
/// A registration that had something to report within this time (clock ticks, some 500 µs) before a sleep stays hot: a
/// ring costs more than the look.
const BUSY: u64 = 1_500_000;
/// Longest time (clock ticks, some 100 µs) that the kernel's own descriptors wait behind busy
/// streams.
const LOOK_INTERVAL: u64 = 300_000;
/// Longest time (clock ticks, some 10 ms) between two looks after sessions that may go back to TCP, in a set that is
/// too busy to sleep.
const SCAN_INTERVAL: u64 = 30_000_000;
/// A thread sees to so many sockets at a time without the set's lock. The stack may be small.
const BATCH: usize = 32;

/// A wait's looks at the hot registrations.
#[derive(Default)]
pub(super) struct Round {
    /// The number of the wait. Zero before the first look.
    call: u32,
    /// Looks left in which a registration without events counts as idle. Each registration counts as idle once in a
    /// wait.
    fresh: usize,
    /// The registration for whose sake the wait last asked the kernel or heard the rings.
    looked_for: Option<u32>,
}

/// What the caller does before more is [collected](collect).
pub(super) enum Next {
    /// The caller does nothing: this is all.
    Done {
        /// The caller should ask the kernel too.
        look: bool,
        /// The caller should look after sessions that may go back to TCP.
        scan: bool,
    },
    /// The caller asks the kernel first.
    Kernel,
    /// The caller hears the rings first.
    Rings,
}

/// Reports what is due among the hot registrations, each once in a wait, behind the `n` events that are there. Gives
/// the number of events that are there then. `only_now`: the call does not wait.
///
/// A program that sees what a peer sent second must also see what that peer sent first. So once this look finds
/// something, it looks at all other registrations once more.
#[inline]
pub(super) fn collect(
    inner: &mut Inner,
    round: &mut Round,
    events: &mut [libc::epoll_event],
    mut n: usize,
    only_now: bool,
) -> (usize, Next) {
    let (now, mut kernel_first) = (time::ticks(), false);
    if round.call == 0 {
        inner.calls = inner.calls.wrapping_add(1).max(1);
        round.call = inner.calls;
        round.fresh = inner.hot.len();
        // The kernel comes first only where there is room for all. Otherwise the events that are due here come before
        // the kernel's.
        kernel_first = events.len() > inner.hot.len() && is_kernel_due(inner, now);
    }
    let (mut at, mut vain) = (inner.cursor, 0);
    while vain < inner.hot.len() && n < events.len() {
        if at >= inner.hot.len() {
            at = 0;
        }
        let index = inner.hot[at];
        inner.cursor = at;
        (at, vain) = (at + 1, vain + 1);
        let Some(Some(r)) = inner.registrations.get_mut(index as usize) else { continue };
        if kernel_first && r.due().is_some() {
            // The kernel is asked first, so that an end that only the kernel knows is reported with this registration's
            // other events.
            inner.looked_at = now;
            return (n, Next::Kernel);
        }
        let is_fresh = round.fresh > 0;
        round.fresh = round.fresh.saturating_sub(1);
        if r.reported_by == round.call {
            continue;
        }
        let told = (round.looked_for != Some(index)).then_some(inner.told_until);
        match r.take(told) {
            DueReport::Events(ready) => {
                events[n] = libc::epoll_event { events: ready, u64: r.data };
                (n, vain) = (n + 1, 0);
                (r.reported_by, r.reported_at) = (round.call, now);
            }
            DueReport::Nothing => r.idle = r.idle.saturating_add(u32::from(is_fresh)),
            behind @ (DueReport::BehindActions | DueReport::BehindRings) => {
                round.looked_for = Some(index);
                let asks = matches!(behind, DueReport::BehindActions);
                return (n, if asks { Next::Kernel } else { Next::Rings });
            }
        }
    }
    inner.cursor = at;
    // A call that waits asks the kernel when it sleeps.
    let look = if n == 0 { only_now } else { is_kernel_due(inner, now) };
    if look {
        inner.looked_at = now;
    }
    let scan = now.saturating_sub(inner.scanned_at) > SCAN_INTERVAL;
    if scan {
        inner.scanned_at = now;
    }
    (n, Next::Done { look, scan })
}

/// True if the kernel's own descriptors have waited long enough behind busy streams.
fn is_kernel_due(inner: &Inner, now: u64) -> bool {
    now.saturating_sub(inner.looked_at) > LOOK_INTERVAL
}

/// What [`arm`] found.
pub(super) enum ArmedSet {
    /// Something is due.
    Due,
    /// Nothing is due. The value is the longest sleep (ns), because of sockets whose ring cannot be relied on.
    Quiet(Option<u64>),
}

/// Raises the counters of all hot registrations and looks once more.
pub(super) fn arm(set: &Set) -> ArmedSet {
    set.with(raise_all).unwrap_or(ArmedSet::Due)
}

/// Does the same for a thread that sleeps if nothing is due. Before the sleep the set's registrations turn cold, except
/// [busy](BUSY) ones, those over a fabric, and those whose ring cannot be relied on. The thread hears the rings of cold
/// registrations, and looks at none of them that has not rung.
pub(super) fn arm_for_sleep(set: &Set) -> ArmedSet {
    set.with(|inner| {
        let armed = raise_all(inner);
        if let ArmedSet::Quiet(_) = armed {
            let now = time::ticks();
            let is_busy = |r: &Registration| now.wrapping_sub(r.reported_at) < BUSY;
            let Inner { hot, registrations, .. } = inner;
            hot.retain(|index| {
                let Some(Some(r)) = registrations.get_mut(*index as usize) else { return false };
                r.hot = !r.parked && (is_busy(r) || r.is_between_hosts() || r.stays_hot());
                r.hot
            });
        }
        armed
    })
    .unwrap_or(ArmedSet::Due)
}

fn raise_all(inner: &mut Inner) -> ArmedSet {
    let (mut due, mut nap) = (false, None);
    for at in 0..inner.hot.len() {
        let index = inner.hot[at] as usize;
        let Some(Some(r)) = inner.registrations.get_mut(index) else { continue };
        if !r.parked {
            r.arm();
            due |= r.due().is_some();
            nap = shorter(nap, r.longest_nap());
        }
    }
    match due {
        true => ArmedSet::Due,
        false => ArmedSet::Quiet(nap),
    }
}

/// Lowers the counters of hot registrations that [`arm`] raised, except those over a fabric that turn cold. True if a
/// registration [needs care](Registration::needs_care).
pub(super) fn disarm(set: &Set) -> bool {
    set.with(|inner| {
        let Inner { hot, registrations, .. } = inner;
        let mut care = false;
        hot.retain(|index| {
            let Some(Some(r)) = registrations.get_mut(*index as usize) else { return false };
            if r.parked {
                r.disarm();
                r.hot = false;
                return false;
            }
            care |= r.needs_care();
            // Over a fabric the set looks twice in vain before it relies on the ring: where it relied on the ring at once,
            // no ring came (`scripts/crash` between hosts).
            let stays = !r.is_between_hosts() || r.idle < COLD_AT_SLEEP || !r.turn_cold();
            if stays {
                r.disarm();
            }
            stays
        });
        inner.looked_at = time::ticks();
        care
    })
    .unwrap_or(true)
}

/// Turns idle registrations cold while the set is too busy to sleep.
pub(super) fn cool_down(set: &Set) {
    set.with(|inner| {
        let Inner { hot, registrations, .. } = inner;
        hot.retain(|index| {
            let Some(Some(r)) = registrations.get_mut(*index as usize) else { return false };
            r.idle < COLD_AFTER || !r.turn_cold()
        });
    });
}

/// Pins some of the sockets whose registrations are hot and `wanted`, so that the caller sees to them without the set's
/// lock.
pub(super) fn pin_hot(
    set: &Set,
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

/// Looks after connections on their way back to TCP, and after those whose end nothing reports.
#[inline]
pub(super) fn look_after(set: &Set) {
    if any_hot(set, Registration::needs_care) {
        care_for_some(set);
    }
}

/// Does the work of [`look_after`] where a registration [needs care](Registration::needs_care).
#[cold]
#[inline(never)]
pub(super) fn care_for_some(set: &Set) {
    for socket in pin_hot(set, Registration::needs_care) {
        if let Some(stream) = socket.stream() {
            detach::look_after(&socket, &stream);
            wait::look_if_stale(&socket, &stream, time::ticks());
        }
    }
}

/// Looks after connections before a sleep. Also completes what relatives left undone when they were killed inside a
/// call.
#[inline]
pub(super) fn look_after_before_sleep(set: &Set) {
    let may_need_recovery = |r: &Registration| ring::may_need_recovery(r.socket);
    if any_hot(set, |r| r.needs_care() || may_need_recovery(r)) {
        care_for_some(set);
        recover_from_the_dead(set);
    }
}

#[cold]
#[inline(never)]
fn recover_from_the_dead(set: &Set) {
    for socket in pin_hot(set, |r| ring::may_need_recovery(r.socket)) {
        if let Some(stream) = socket.stream() {
            ring::recover_if_needed(&socket, &stream);
        }
    }
}

/// True if a hot registration is `wanted`. False in a signal handler that interrupted the thread with the set's lock.
#[inline]
fn any_hot(set: &Set, wanted: impl Fn(&Registration) -> bool) -> bool {
    set.with(|inner| {
        let hot = inner.hot.iter();
        hot.filter_map(|at| inner.registrations.get(*at as usize)?.as_ref()).any(&wanted)
    })
    .unwrap_or(false)
}

impl Set {
    /// True if a hot registration has something to report.
    #[inline]
    pub(super) fn look_for_ready(&self) -> bool {
        self.with(|inner| {
            inner.hot.iter().any(|index| {
                matches!(inner.registrations.get(*index as usize),
                    Some(Some(r)) if r.due().is_some())
            })
        })
        .unwrap_or(true)
    }

    /// True if a registration waits for space that no ring will report, because another thread of this end sends. A
    /// thread that sleeps on the set itself looks every now and then. A thread that watches the set from outside does
    /// not.
    pub(super) fn look_for_held_up(&self) -> bool {
        any_hot(self, Registration::is_held_up)
    }
}
