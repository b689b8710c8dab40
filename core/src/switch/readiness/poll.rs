//! poll with SAN sockets among the descriptors: their streams first, then a sleep in the kernel with their select
//! counters raised.

use crate::switch::back_to_tcp::{self, idle};
use crate::switch::outcome::Outcome;
use crate::switch::readiness::polled_socket::PolledSocket;
use crate::switch::readiness::timeout::{shorter, Timeout};
use crate::switch::socket::table::{self, Pinned};
use crate::switch::spin;
use crate::sys::process::NapSignals;
use crate::sys::signal_mask::SignalMask;
use crate::sys::{blocking, poll as kernel, process, time, Errno, Result};
use smallvec::SmallVec;

/// Spinning has one history for all poll calls of a process: the descriptors change from call to
/// call.
static SPIN: spin::History = spin::History::new();

/// Descriptors that a call can have without allocating.
const FEW: usize = 32;

type Sockets = SmallVec<[PolledSocket; FEW]>;
/// Sockets on TCP among the descriptors: none goes to the SAN while the kernel alone watches it.
type OnTcp = SmallVec<[Pinned; FEW]>;
/// As the kernel takes them.
pub(super) type Descriptors = SmallVec<[libc::pollfd; FEW]>;

/// Which call asks. The kernel refuses a poll of more descriptors than RLIMIT_NOFILE allows (EINVAL), and no select.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// poll or ppoll
    Poll,
    /// select or pselect
    Select,
}

impl Call {
    /// Asks the kernel, which `ask` does as poll, for a call of `count` descriptors; `anyhow`, if it refused that for a reason
    /// that is not the call's.
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
                if self == Call::Select || count <= process::most_descriptors() =>
            {
                anyhow(work)
            }
            told => told,
        }
    }

    /// What it says of a descriptor that is not open any more, once something happens there.
    fn of_closed(self, events: i16) -> i16 {
        match self {
            Call::Poll => libc::POLLNVAL,
            Call::Select => events,
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

/// poll in all its forms. `timeout` in nanoseconds, `None` for ever.
pub fn poll(
    call: Call,
    fds: &mut [libc::pollfd],
    timeout: Option<u64>,
    mask: Option<SignalMask<'_>>,
) -> Outcome {
    // Before they are pinned: it takes away what sessions have left that are over.
    idle::check();
    let (sockets, on_tcp) = find_sockets(fds);
    match (sockets.is_empty(), on_tcp.is_empty()) {
        (true, true) => Outcome::Pass,
        (true, false) => Outcome::Done(call.sleep(fds.len(), fds, timeout, mask)),
        (false, _) => Outcome::Done(poll_sockets(call, fds, sockets, timeout, mask)),
    }
}

/// The sockets among the descriptors; whoever watches sets from outside is noted there.
#[inline]
fn find_sockets(fds: &[libc::pollfd]) -> (Sockets, OnTcp) {
    let (mut found, mut on_tcp) = (Sockets::new(), OnTcp::new());
    for (at, one) in fds.iter().enumerate() {
        if let Some(set) = table::set(one.fd) {
            set.note_watched();
            continue;
        }
        let Some(socket) = table::connected(one.fd) else { continue };
        socket.note_awaited();
        if socket.has_entered() {
            found.push(PolledSocket::new(at, socket, one.events));
        } else {
            on_tcp.push(socket);
        }
    }
    (found, on_tcp)
}

fn poll_sockets(
    call: Call,
    fds: &mut [libc::pollfd],
    sockets: Sockets,
    timeout: Option<u64>,
    mask: Option<SignalMask<'_>>,
) -> Result<usize> {
    let mut signals = NapSignals::default();
    // Dropped before the signals come again.
    let (mut timeout, mut sockets) = (Timeout::new(timeout), sockets);
    sockets.iter_mut().for_each(PolledSocket::look_for_urgent);
    loop {
        sockets.iter().for_each(PolledSocket::look_after);
        if sockets.iter().any(PolledSocket::has_left) {
            let (left, mask) = (timeout.left(), signals.mask(false, mask));
            return poll_anew(call, fds, left, mask);
        }
        let ready = report_now(call, fds, &mut sockets, timeout.is_zero());
        if ready > 0 || timeout.is_zero() {
            return Ok(ready + report_others(call, fds, &sockets)?);
        }
        let left = timeout.left();
        if left == Some(0) {
            return report_others(call, fds, &sockets);
        }
        let any_ready = || sockets.iter().any(|one| one.ready() != 0);
        // Under a mask of the program's a signal may be let in: only the kernel can do that.
        if mask.is_none() && spin::spin(&SPIN, left.unwrap_or(u64::MAX), any_ready) {
            continue;
        }
        back_to_tcp::look_around();
        let ready = sleep(call, fds, &mut sockets, &mut timeout, &mut signals, mask)?;
        if ready > 0 {
            return Ok(ready);
        }
    }
}

/// A socket went back to TCP: the kernel's readiness counts for it from now on.
fn poll_anew(
    call: Call,
    fds: &mut [libc::pollfd],
    left: Option<u64>,
    mask: Option<SignalMask<'_>>,
) -> Result<usize> {
    match poll(call, fds, left, mask) {
        Outcome::Pass => call.sleep(fds.len(), fds, left, mask),
        Outcome::Done(result) => result,
    }
}

/// Sleeps in the kernel with the sockets' select counters raised. How many descriptors are ready, which it reports;
/// zero: the sockets are to be looked at again.
fn sleep(
    call: Call,
    fds: &mut [libc::pollfd],
    sockets: &mut Sockets,
    timeout: &mut Timeout,
    signals: &mut NapSignals,
    mask: Option<SignalMask<'_>>,
) -> Result<usize> {
    sockets.iter_mut().for_each(PolledSocket::arm);
    if sockets.iter().any(PolledSocket::has_left) {
        sockets.iter_mut().for_each(PolledSocket::disarm);
        return Ok(0);
    }
    let mut work = Descriptors::from_slice(fds);
    let slept = if sockets.iter().any(|one| one.ready() != 0) {
        Ok(0)
    } else {
        let nap = sockets.iter().filter_map(PolledSocket::longest_nap).min();
        let left = shorter(timeout.left(), nap);
        for one in sockets.iter() {
            work[one.at] = one.on_anchor(one.sleeps_on(fds[one.at].fd));
        }
        work.extend(sockets.iter().filter_map(PolledSocket::on_bell));
        let mask = signals.mask(nap.is_some(), mask);
        call.sleep(fds.len(), &mut work, left, mask)
    };
    // While this thread counts as asleep: a ring may be another sleeper's.
    let bells = work.iter().skip(fds.len()).zip(sockets.iter());
    bells.filter(|(bell, _)| bell.revents != 0).for_each(|(_, one)| one.note_ring());
    sockets.iter_mut().for_each(PolledSocket::disarm);
    if slept? == 0 {
        return Ok(0);
    }
    Ok(report_slept(call, fds, sockets, &work))
}

/// Fills in the SAN sockets' readiness; how many have some. `only_now`: the program asks about this very moment, so the
/// kernel is asked about their anchors as well. What is ready may have ended besides, of which no ring tells.
#[inline]
fn report_now(
    call: Call,
    fds: &mut [libc::pollfd],
    sockets: &mut Sockets,
    only_now: bool,
) -> usize {
    let ready = report(call, fds, sockets);
    if ready > 0 {
        let now = time::ticks();
        let is_ready = |one: &&PolledSocket| fds[one.at].revents != 0;
        sockets.iter().filter(is_ready).for_each(|one| one.look_if_stale(now));
    } else if only_now {
        sockets.iter_mut().for_each(PolledSocket::look);
    } else {
        return 0;
    }
    report(call, fds, sockets)
}

/// Fills in the readiness of all after a sleep, in which the kernel filled in `work`; how many have some.
fn report_slept(
    call: Call,
    fds: &mut [libc::pollfd],
    sockets: &mut Sockets,
    work: &[libc::pollfd],
) -> usize {
    for one in sockets.iter_mut() {
        one.note(work[one.at].revents);
    }
    let mut ready = report(call, fds, sockets);
    each_other(fds.len(), sockets, |at| {
        fds[at].revents = work[at].revents;
        ready += usize::from(work[at].revents != 0);
    });
    ready
}

/// Fills in the SAN sockets' readiness; how many have some.
#[inline]
fn report(call: Call, fds: &mut [libc::pollfd], sockets: &[PolledSocket]) -> usize {
    let mut n = 0;
    for one in sockets {
        let mut ready = one.ready() as i16;
        if ready != 0 && one.is_closed() {
            // By another thread.
            ready = call.of_closed(fds[one.at].events);
        }
        fds[one.at].revents = ready;
        n += usize::from(ready != 0);
    }
    n
}

/// Calls `each` with the places that are not SAN sockets'.
fn each_other(count: usize, sockets: &[PolledSocket], mut each: impl FnMut(usize)) {
    let mut ours = sockets.iter().map(|one| one.at).peekable();
    for at in 0..count {
        if ours.next_if_eq(&at).is_none() {
            each(at);
        }
    }
}

/// Fills in the other descriptors' readiness, without waiting; how many have some.
#[inline]
fn report_others(call: Call, fds: &mut [libc::pollfd], sockets: &[PolledSocket]) -> Result<usize> {
    if sockets.len() == fds.len() {
        return Ok(0);
    }
    let mut work = Descriptors::from_slice(fds);
    for one in sockets {
        // poll leaves negative descriptors alone.
        work[one.at].fd = -1;
    }
    let ask = |work: &mut [_]| kernel::poll_within_limit(work, Some(0), None);
    let anyhow = |work: &mut [_]| kernel::poll(work, Some(0), None);
    let n = call.ask(fds.len(), &mut work, ask, anyhow)?;
    each_other(fds.len(), sockets, |at| fds[at].revents = work[at].revents);
    Ok(n)
}
