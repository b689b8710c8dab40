//! Serves epoll_wait: looks at the hot sockets' streams first, and then asks the kernel.

use super::hot::{self, ArmedSet, Next, Round};
use super::kernel_events::{deliver_in_place, look_at_kernel, note_rings, KernelEvents};
use super::watched_set;
use crate::switch::anchor::watchers;
use crate::switch::back_to_tcp::{self, idle};
use crate::switch::outcome::Outcome;
use crate::switch::readiness::timeout::{shorter, Timeout};
use crate::switch::socket::set::Set;
use crate::switch::socket::table;
use crate::switch::spin::{begin_turn, give_way, spin};
use crate::switch::waiting::wait;
use crate::sys::event_array::EventArray;
use crate::sys::process::NapSignals;
use crate::sys::signal_mask::SignalMask;
use crate::sys::{blocking, time, Errno, Fd, Result};
use std::sync::atomic::Ordering;

/// Serves epoll_wait in all its forms. `timeout` is in nanoseconds. `None` waits for ever.
#[link_section = "sanshim_path"]
pub fn wait(
    epoll: Fd,
    mut events: EventArray<'_>,
    timeout: Option<u64>,
    mask: Option<SignalMask<'_>>,
) -> Outcome {
    let Some(set) = table::set(epoll) else { return Outcome::Pass };
    if set.inherited.load(Ordering::Relaxed) && set.inherited.swap(false, Ordering::Relaxed) {
        watchers::take_over(set);
    }
    let mut timeout = Timeout::new(timeout);
    let result = match wait_in_kernel_alone(set, &mut events, &mut timeout, mask) {
        Ok(Some(n)) => Ok(n),
        Ok(None) => events.checked().and_then(|events| Wait::on(set, timeout, mask).run(events)),
        Err(e) => Err(e),
    };
    watched_set::before_return(set);
    Outcome::Done(result)
}

/// Waits in the kernel alone, as long as the set has no SAN sockets. `None`: the set has some, or another thread added
/// one.
#[inline]
fn wait_in_kernel_alone(
    set: &'static Set,
    events: &mut EventArray<'_>,
    timeout: &mut Timeout,
    mask: Option<SignalMask<'_>>,
) -> Result<Option<usize>> {
    if set.san.load(Ordering::SeqCst) != 0 {
        return Ok(None);
    }
    // This takes away what the set's members have of finished sessions.
    idle::check();
    while set.san.load(Ordering::SeqCst) == 0 {
        set.settle_members();
        let left = timeout.left();
        // With nothing of the library's in the kernel's set, the program gets as many events at once as it has room
        // for.
        let slept = match set.shadow.load(Ordering::Relaxed) < 0 {
            true => sleep_without_san(set, || {
                blocking::epoll_wait_into(set.kernel_fd(), events, left, mask)
            })?
            .map(|written| (written.len(), deliver_in_place(set, written))),
            false => sleep_beside_shadow(set, events.checked()?, left, mask)?,
        };
        let Some((n, kept)) = slept else { break };
        if kept > 0 || n == 0 || timeout.is_zero() {
            return Ok(Some(kept));
        }
    }
    Ok(None)
}

/// Sleeps unless the set has SAN sockets now (`None`).
#[inline]
fn sleep_without_san<T>(set: &'static Set, sleep: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
    let asleep = Sleeper::on(set);
    // This looks once more, because a thread that adds a SAN socket looks for sleepers afterwards.
    let slept = match set.san.load(Ordering::SeqCst) {
        0 => sleep().map(Some),
        _ => Ok(None),
    };
    asleep.awake();
    slept
}

/// Does the same with the shadow set in the kernel's set. Gives the number of events that came, and the number that the
/// program gets. It is not inlined, because its array would then be on its caller's stack.
#[inline(never)]
fn sleep_beside_shadow(
    set: &'static Set,
    events: &mut [libc::epoll_event],
    timeout: Option<u64>,
    mask: Option<SignalMask<'_>>,
) -> Result<Option<(usize, usize)>> {
    let (mut reported, at) = (KernelEvents::new(), time::ticks());
    let slept = sleep_without_san(set, || {
        blocking::epoll_wait(set.kernel_fd(), reported.room_for(events), timeout, mask)
    })?;
    Ok(slept.map(|n| (n, reported.deliver(set, n, at, events).0)))
}

/// One call on a set that has SAN sockets.
struct Wait<'a> {
    set: &'static Set,
    timeout: Timeout,
    /// The program's signal mask for the sleep.
    mask: Option<SignalMask<'a>>,
    signals: NapSignals,
}

impl<'a> Wait<'a> {
    #[inline(always)]
    fn on(set: &'static Set, timeout: Timeout, mask: Option<SignalMask<'a>>) -> Self {
        Wait { set, timeout, mask, signals: NapSignals::default() }
    }

    /// Serves the call. This is not inlined, so that calls on sets without SAN sockets touch none of it.
    #[inline(never)]
    fn run(mut self, events: &mut [libc::epoll_event]) -> Result<usize> {
        let (mut n, mut before_rings) = (0, None);
        loop {
            // The answer also has what came over the SAN before the kernel's events.
            n = self.look(events, n, before_rings)?;
            if n > 0 {
                give_way();
                return Ok(n);
            }
            let left = self.timeout.left();
            if left == Some(0) {
                return Ok(0);
            }
            before_rings = None;
            if self.spin(left.unwrap_or(u64::MAX)) {
                continue;
            }
            self.prepare_to_sleep();
            (n, before_rings) = self.sleep(events)?;
        }
    }

    /// Looks at the hot registrations' streams, and at the kernel's own descriptors where it is time for that. The
    /// kernel has told `n` events before. Gives the number of events in all. Of the kernel's events, `before_rings` came
    /// before the first ring: the kernel lists events in the order in which they came.
    #[inline]
    fn look(
        &mut self,
        events: &mut [libc::epoll_event],
        mut n: usize,
        mut before_rings: Option<usize>,
    ) -> Result<usize> {
        let set = self.set;
        // The kernel may report the same events once more: where it was asked before, or if a socket went back to it
        // meanwhile.
        let mut san = set.san.load(Ordering::Relaxed);
        let have_left = |san| set.san.load(Ordering::Relaxed) != san;
        let mut asked = n > 0;
        if !asked && set.kernel_was_passed_over.load(Ordering::Relaxed) {
            set.kernel_was_passed_over.store(false, Ordering::Relaxed);
            (n, _) = look_at_kernel(set, events, n, false)?;
            asked = true;
        }
        let (mut round, only_now) = (Round::default(), self.timeout.is_zero());
        loop {
            let collected = set.with(|inner| hot::collect(inner, &mut round, events, n, only_now));
            // This is `None` in a signal handler that interrupted the thread with the lock.
            let Some((now, next)) = collected else {
                return if n > 0 { Ok(n) } else { Err(Errno(libc::EINTR)) };
            };
            if let Some(before) = &mut before_rings {
                events[*before..now].rotate_left(n - *before);
                *before += now - n;
            }
            n = now;
            match next {
                Next::Rings => note_rings(set),
                Next::Kernel => {
                    (n, _) = look_at_kernel(set, events, n, asked || have_left(san))?;
                    asked = true;
                }
                Next::Done { look, scan } => {
                    if scan {
                        hot::look_after(set);
                    }
                    // The kernel reports the sockets that went to it meanwhile.
                    let now_there = set.san.load(Ordering::Relaxed);
                    if now_there == san && (!look || asked) {
                        return Ok(n);
                    }
                    if n == events.len() {
                        set.kernel_was_passed_over.store(true, Ordering::Relaxed);
                        return Ok(n);
                    }
                    back_to_tcp::look_around();
                    let (now, any) = look_at_kernel(set, events, n, asked || have_left(san))?;
                    (n, asked, san) = (now, true, now_there);
                    if !any {
                        return Ok(n);
                    }
                    // The loop looks once more, so that the answer has what came over the SAN before the kernel's
                    // events.
                }
            }
        }
    }

    /// True if a hot registration became ready within `budget` (ns).
    #[inline]
    fn spin(&self, budget: u64) -> bool {
        let set = self.set;
        // A signal that the program's mask lets in must not wait for a spin to end.
        let may_spin = set.san.load(Ordering::Relaxed) != 0 && self.mask.is_none();
        may_spin && spin(&set.spin, budget, || set.look_for_ready())
    }

    /// Does what a thread has to do that may not come back for long.
    fn prepare_to_sleep(&self) {
        self.set.settle_members();
        back_to_tcp::look_around();
        // The last receives may have left something to be done.
        hot::look_after_before_sleep(self.set);
    }

    /// Sleeps in the kernel with the hot registrations' counters raised. Gives the number of events that the program
    /// gets, and how many of them came before the first ring, if there was one.
    fn sleep(&mut self, events: &mut [libc::epoll_event]) -> Result<(usize, Option<usize>)> {
        wait::hold_for_fabric(&self.signals);
        let set = self.set;
        let mut reported = KernelEvents::new();
        let asleep = Sleeper::on(set);
        let raised = RaisedCounters(set);
        let (at, slept) = match hot::arm_for_sleep(set) {
            // Something is due here, so this does not ask the kernel.
            ArmedSet::Due => (0, Ok(0)),
            ArmedSet::Quiet(nap) => {
                let (to, left) = (reported.room_for(events), shorter(self.timeout.left(), nap));
                let mask = self.signals.mask(nap.is_some(), self.mask);
                (time::ticks(), blocking::epoll_wait(set.kernel_fd(), to, left, mask))
            }
        };
        asleep.awake();
        let needs_care = raised.lower();
        begin_turn();
        if needs_care {
            hot::care_for_some(set);
        }
        Ok(reported.deliver(set, slept?, at, events))
    }
}

/// Counts the calling thread as asleep on the set until it is [awake](Self::awake). The drop of this value ends that,
/// too, where the thread is cancelled in its sleep or a signal handler jumps out of the sleep.
struct Sleeper(&'static Set);

impl Sleeper {
    fn on(set: &'static Set) -> Sleeper {
        set.sleepers.fetch_add(1, Ordering::SeqCst);
        Sleeper(set)
    }

    fn awake(self) {
        self.0.sleepers.fetch_sub(1, Ordering::SeqCst);
        std::mem::forget(self);
    }
}

impl Drop for Sleeper {
    #[cold]
    fn drop(&mut self) {
        self.0.sleepers.fetch_sub(1, Ordering::SeqCst);
        // This thread lowered the counters by which the other threads sleep. So they look anew.
        if self.0.has_other_waiters() {
            self.0.wake();
        }
    }
}

/// The hot registrations' counters may be raised. The drop of this value lowers them.
struct RaisedCounters(&'static Set);

impl RaisedCounters {
    /// True if one of the registrations needs care.
    fn lower(self) -> bool {
        let set = self.0;
        std::mem::forget(self);
        hot::disarm(set)
    }
}

impl Drop for RaisedCounters {
    fn drop(&mut self) {
        hot::disarm(self.0);
    }
}
