//! Serves poll with SAN sockets among the descriptors. It looks at their streams first, and then sleeps in the kernel
//! with their select counters raised.

use crate::switch::back_to_tcp::{self, idle};
use crate::switch::outcome::Outcome;
use crate::switch::readiness::polled_socket::PolledSocket;
use crate::switch::readiness::timeout::{shorter, Timeout};
use crate::switch::socket::lane::Lane;
use crate::switch::socket::table::{self, Pinned};
use crate::switch::spin;
use crate::switch::waiting::wait;
use crate::sys::process::NapSignals;
use crate::sys::signal_mask::SignalMask;
use crate::sys::{blocking, poll as kernel, process, time, Errno, Fd, Result};
use smallvec::{Array, SmallVec};

/// Spinning has one history for all poll calls of a process: the descriptors change from call to
/// call.
static SPIN: spin::History = spin::History::new();

/// A call can have so many descriptors without allocating.
const FEW: usize = 32;
/// A call can have so many descriptors with little of the stack. The stack may be a signal handler's.
const FEWER: usize = 8;

/// The descriptors of a call in the form that the kernel takes.
pub(super) type Descriptors = SmallVec<[libc::pollfd; FEW]>;

/// An entry that the kernel leaves alone.
const NONE: libc::pollfd = libc::pollfd { fd: -1, events: 0, revents: 0 };

/// The program's call. The kernel refuses a poll of more descriptors than RLIMIT_NOFILE allows (EINVAL), but no such
/// select.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PollCall {
    /// poll or ppoll
    Poll,
    /// select or pselect
    Select,
}

impl PollCall {
    /// Asks the kernel for a call of `count` descriptors. `ask` does so as poll. If the kernel refuses that for a
    /// reason that is not the program's call, `anyhow` asks instead.
    #[inline]
    fn ask(
        self,
        count: usize,
        work: &mut [libc::pollfd],
        ask: impl FnOnce(&mut [libc::pollfd]) -> Result<usize>,
        anyhow: impl FnOnce(&mut [libc::pollfd]) -> Result<usize>,
    ) -> Result<usize> {
        match ask(work) {
            Err(Errno(libc::EINVAL))
                if self == PollCall::Select || count <= process::most_descriptors() =>
            {
                anyhow(work)
            }
            told => told,
        }
    }

    /// Gives the call's answer for a descriptor that is not open any more, once something happens there.
    fn of_closed(self, events: i16) -> i16 {
        match self {
            PollCall::Poll => libc::POLLNVAL,
            PollCall::Select => events,
        }
    }

    /// Sleeps in the kernel on `work`, for a call of `count` descriptors.
    fn sleep(
        self,
        count: usize,
        work: &mut [libc::pollfd],
        timeout: Option<u64>,
        mask: Option<SignalMask<'_>>,
    ) -> Result<usize> {
        let anyhow = |work: &mut [_]| blocking::wait_for(work, timeout, mask);
        self.ask(count, work, |work| blocking::poll(work, timeout, mask), anyhow)
    }
}

/// Serves poll in all its forms. `timeout` is in nanoseconds. `None` waits for ever.
pub fn poll(
    call: PollCall,
    fds: &mut [libc::pollfd],
    timeout: Option<u64>,
    mask: Option<SignalMask<'_>>,
) -> Outcome {
    // This takes away what finished sessions have left. It comes before the call pins sockets, because a socket that a
    // call has pinned keeps what it has.
    idle::check();
    match fds.len() {
        0..=FEWER => poll_up_to::<FEWER, { 2 * FEWER }>(call, fds, timeout, mask),
        _ => poll_up_to::<FEW, { 2 * FEW }>(call, fds, timeout, mask),
    }
}

/// Polls up to `MOST` descriptors, or more with memory that it allocates. `BOTH` counts as many descriptors and as many
/// bells.
#[inline(never)]
fn poll_up_to<const MOST: usize, const BOTH: usize>(
    call: PollCall,
    fds: &mut [libc::pollfd],
    timeout: Option<u64>,
    mask: Option<SignalMask<'_>>,
) -> Outcome
where
    [PolledSocket; MOST]: Array<Item = PolledSocket>,
    [(usize, Pinned); MOST]: Array<Item = (usize, Pinned)>,
    [libc::pollfd; BOTH]: Array<Item = libc::pollfd>,
{
    let (mut clock, signals) = (Timeout::new(timeout), NapSignals::default());
    let mut went_back = false;
    loop {
        // These sockets are dropped before the signals come again.
        let mut sockets = SmallVec::<[PolledSocket; MOST]>::new();
        // None of these sockets goes to the SAN while the kernel alone watches it.
        let mut on_tcp = SmallVec::<[(usize, Pinned); MOST]>::new();
        for (at, one) in fds.iter().enumerate() {
            match connected(one.fd) {
                Some(socket) if socket.await_lane() == Lane::San => {
                    sockets.push(PolledSocket::new(at, socket, one.events));
                }
                Some(socket) => on_tcp.push((at, socket)),
                None => {}
            }
        }
        if sockets.is_empty() {
            if on_tcp.is_empty() && !went_back {
                return Outcome::Pass;
            }
            let left = if went_back { clock.left() } else { timeout };
            let mask = signals.mask(false, mask);
            let slept = call.sleep(fds.len(), fds, left, mask);
            for (at, _) in on_tcp {
                let one = &mut fds[at];
                if one.revents & libc::POLLNVAL != 0 {
                    // Another thread closed the descriptor during the sleep.
                    one.revents = call.of_closed(one.events);
                }
            }
            return Outcome::Done(slept);
        }
        let mut work = SmallVec::<[libc::pollfd; BOTH]>::new();
        work.resize(fds.len() + sockets.len(), NONE);
        let all = Polled { call, fds, sockets: &mut sockets, work: &mut work };
        if let Some(polled) = poll_sockets(all, &mut clock, &signals, mask) {
            return Outcome::Done(polled);
        }
        went_back = true;
    }
}

/// Gives the connected socket of a descriptor. If the descriptor is an epoll set's, notes in the set that it is watched
/// from outside.
#[inline]
fn connected(fd: Fd) -> Option<Pinned> {
    if let Some(set) = table::set(fd) {
        set.note_watched();
        return None;
    }
    let socket = table::connected(fd)?;
    socket.note_awaited();
    Some(socket)
}

/// The descriptors of one call.
struct Polled<'a> {
    call: PollCall,
    fds: &'a mut [libc::pollfd],
    /// The sockets on the SAN among the descriptors.
    sockets: &'a mut [PolledSocket],
    /// Room for the questions to the kernel: the descriptors, and the sockets' bells.
    work: &'a mut [libc::pollfd],
}

/// Polls the descriptors. `None`: a socket went back to TCP, and the kernel's readiness counts for it from now on.
fn poll_sockets(
    mut all: Polled<'_>,
    timeout: &mut Timeout,
    signals: &NapSignals,
    mask: Option<SignalMask<'_>>,
) -> Option<Result<usize>> {
    all.sockets.iter_mut().for_each(PolledSocket::look_for_urgent);
    loop {
        all.sockets.iter().for_each(PolledSocket::look_after);
        if all.has_left() {
            return None;
        }
        let ready = all.report_now(timeout.is_zero());
        if all.has_left() {
            // A socket left during the look, which may serve a request of sanctl's.
            return None;
        }
        let left = timeout.left();
        if ready > 0 || left == Some(0) {
            return Some(all.report_all(ready));
        }
        // The program's mask may let a signal in, and only the kernel can do that.
        if mask.is_none() && spin::spin(&SPIN, left.unwrap_or(u64::MAX), || all.look_for_ready()) {
            continue;
        }
        back_to_tcp::look_around();
        match all.sleep(timeout, signals, mask) {
            Ok(0) => {}
            slept => return Some(slept),
        }
    }
}

impl Polled<'_> {
    fn has_left(&self) -> bool {
        self.sockets.iter().any(PolledSocket::has_left)
    }

    fn look_for_ready(&self) -> bool {
        self.sockets.iter().any(|one| one.ready() != 0)
    }

    fn disarm(&mut self) {
        self.sockets.iter_mut().for_each(PolledSocket::disarm);
    }

    /// Sleeps in the kernel with the sockets' select counters raised. Reports the descriptors that are ready, and gives
    /// their number. Zero: the caller looks at the sockets again.
    fn sleep(
        &mut self,
        timeout: &mut Timeout,
        signals: &NapSignals,
        mask: Option<SignalMask<'_>>,
    ) -> Result<usize> {
        wait::hold_for_fabric(signals);
        self.sockets.iter_mut().for_each(PolledSocket::arm);
        if self.has_left() {
            self.disarm();
            return Ok(0);
        }
        self.ask();
        let mut asked_at = 0;
        let slept = if self.look_for_ready() {
            Ok(0)
        } else {
            let nap = self.sockets.iter().filter_map(PolledSocket::longest_nap).min();
            let left = shorter(timeout.left(), nap);
            let mask = signals.mask(nap.is_some(), mask);
            asked_at = time::ticks();
            let slept = self.call.sleep(self.fds.len(), self.work, left, mask);
            // This comes while the thread still counts as asleep, because a ring may be another sleeper's.
            let bells = self.sockets.iter().zip(&self.work[self.fds.len()..]);
            bells.filter(|(_, bell)| bell.revents != 0).for_each(|(one, _)| one.note_ring());
            slept
        };
        self.disarm();
        if slept? == 0 {
            self.sockets.iter_mut().for_each(PolledSocket::look_for_end);
            return Ok(0);
        }
        self.report_slept(asked_at)
    }

    /// Prepares the questions that a sleep asks the kernel. The thread looks at the sockets afterwards: a question leaves
    /// out an anchor whose end is known, and a relative may note that end at any moment.
    fn ask(&mut self) {
        let (descriptors, bells) = self.work.split_at_mut(self.fds.len());
        descriptors.copy_from_slice(self.fds);
        for (one, bell) in self.sockets.iter().zip(bells) {
            descriptors[one.at] = one.on_anchor(one.sleeps_on(self.fds[one.at].fd));
            *bell = one.on_bell().unwrap_or(NONE);
        }
    }

    /// Fills in the SAN sockets' readiness, and gives the number of those that are ready. `only_now`: the program asks
    /// about this very moment, so this asks the kernel about all anchors as well. No ring reports an end. So a socket
    /// that is ready may also have ended, and a socket that is not ready may have ended, however often others are
    /// ready.
    #[inline]
    fn report_now(&mut self, only_now: bool) -> usize {
        if self.report() > 0 {
            let now = time::ticks();
            let is_ready = |one: &&PolledSocket| self.fds[one.at].revents != 0;
            self.sockets.iter().filter(is_ready).for_each(|one| one.look_if_stale(now));
            let age = if only_now { wait::FRESH_TICKS } else { wait::ALIVE_TICKS };
            if self.sockets.iter().any(|one| one.is_older(now, age)) {
                self.look_at_anchors(now);
            }
        } else if only_now {
            self.look_at_anchors(time::ticks());
        } else {
            return 0;
        }
        self.report()
    }

    /// Asks the kernel about all anchors at the time `now` (ticks).
    #[cold]
    fn look_at_anchors(&mut self, now: u64) {
        let anchors = &mut self.work[..self.sockets.len()];
        for (question, one) in anchors.iter_mut().zip(&*self.sockets) {
            *question = one.question();
        }
        if kernel::poll(anchors, Some(0), None).is_ok() {
            for (told, one) in anchors.iter().zip(&mut *self.sockets) {
                one.note_look(told.revents, now);
            }
        }
    }

    /// Fills in the readiness of all descriptors after a sleep that began at that time (ticks), and gives the number of
    /// those that are ready. The peer may have acted through the kernel after the kernel's answer, and then over the SAN.
    /// So the kernel is asked again in that case, and the sockets are looked at again.
    fn report_slept(&mut self, asked_at: u64) -> Result<usize> {
        for one in self.sockets.iter_mut() {
            one.note(self.work[one.at].revents);
        }
        let (ready, closed) = (self.report(), self.report_closed());
        if ready == 0 {
            return Ok(closed + self.take_others());
        }
        let acted = self.sockets.iter().any(|one| one.has_peer_acted_since(asked_at));
        let others = if acted { self.report_others()? } else { self.take_others() };
        let ready = if closed == 0 { self.report() } else { ready };
        Ok(ready + closed + others)
    }

    /// Fills in the SAN sockets that another thread closed during a sleep, and gives their number. The kernel, too,
    /// reports a closed descriptor once anything ends the sleep.
    fn report_closed(&mut self) -> usize {
        let mut n = 0;
        for at in self.sockets.iter().map(|one| one.at) {
            let one = &mut self.fds[at];
            if self.work[at].revents & libc::POLLNVAL != 0 && one.revents == 0 {
                one.revents = self.call.of_closed(one.events);
                n += 1;
            }
        }
        n
    }

    /// Fills in the SAN sockets' readiness, and gives the number of those that are ready.
    #[inline]
    fn report(&mut self) -> usize {
        let mut n = 0;
        for one in self.sockets.iter() {
            let mut ready = one.ready() as i16;
            if ready != 0 && one.is_closed() {
                // Another thread closed the socket.
                ready = self.call.of_closed(self.fds[one.at].events);
            }
            self.fds[one.at].revents = ready;
            n += usize::from(ready != 0);
        }
        n
    }

    /// Fills in the other descriptors' readiness too. Gives the number of all that are ready, with the `ready` SAN
    /// sockets. The answer also has each event of the SAN that came before an event of the kernel's.
    #[inline]
    fn report_all(&mut self, ready: usize) -> Result<usize> {
        match self.report_others()? {
            0 => Ok(ready),
            others => Ok(others + self.report()),
        }
    }

    /// Fills in the other descriptors' readiness without waiting, and gives the number of those that are ready.
    #[inline]
    fn report_others(&mut self) -> Result<usize> {
        if self.sockets.len() == self.fds.len() {
            return Ok(0);
        }
        let work = &mut self.work[..self.fds.len()];
        work.copy_from_slice(self.fds);
        for one in self.sockets.iter() {
            work[one.at] = NONE;
        }
        let ask = |work: &mut [_]| kernel::poll_within_limit(work, Some(0), None);
        let anyhow = |work: &mut [_]| kernel::poll(work, Some(0), None);
        self.call.ask(self.fds.len(), work, ask, anyhow)?;
        Ok(self.take_others())
    }

    /// Fills in the kernel's answer for the descriptors that are not SAN sockets, and gives the number of those that
    /// are ready.
    fn take_others(&mut self) -> usize {
        let mut ours = self.sockets.iter().map(|one| one.at).peekable();
        let mut n = 0;
        for (at, one) in self.fds.iter_mut().enumerate() {
            if ours.next_if_eq(&at).is_none() {
                one.revents = self.work[at].revents;
                n += usize::from(one.revents != 0);
            }
        }
        n
    }
}
