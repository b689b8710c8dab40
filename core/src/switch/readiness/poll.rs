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
use crate::sys::{blocking, poll as kernel, Result};
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

/// poll in all its forms. `timeout` in nanoseconds, `None` for ever.
pub fn poll(
    fds: &mut [libc::pollfd],
    timeout: Option<u64>,
    mask: Option<SignalMask<'_>>,
) -> Outcome {
    // Before they are pinned: it takes away what sessions have left that are over.
    idle::check();
    let (sockets, on_tcp) = find_sockets(fds);
    match (sockets.is_empty(), on_tcp.is_empty()) {
        (true, true) => Outcome::Pass,
        (true, false) => Outcome::Done(blocking::poll(fds, timeout, mask)),
        (false, _) => Outcome::Done(poll_sockets(fds, sockets, timeout, mask)),
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
            return poll_anew(fds, left, mask);
        }
        let ready = report_now(fds, &mut sockets, timeout.is_zero());
        if ready > 0 || timeout.is_zero() {
            return Ok(ready + report_others(fds, &sockets)?);
        }
        let left = timeout.left();
        if left == Some(0) {
            return report_others(fds, &sockets);
        }
        let any_ready = || sockets.iter().any(|one| one.ready() != 0);
        // Under a mask of the program's a signal may be let in: only the kernel can do that.
        if mask.is_none() && spin::spin(&SPIN, left.unwrap_or(u64::MAX), any_ready) {
            continue;
        }
        back_to_tcp::look_around();
        let ready = sleep(fds, &mut sockets, &mut timeout, &mut signals, mask)?;
        if ready > 0 {
            return Ok(ready);
        }
    }
}

/// A socket went back to TCP: the kernel's readiness counts for it from now on.
fn poll_anew(
    fds: &mut [libc::pollfd],
    left: Option<u64>,
    mask: Option<SignalMask<'_>>,
) -> Result<usize> {
    match poll(fds, left, mask) {
        Outcome::Pass => blocking::poll(fds, left, mask),
        Outcome::Done(result) => result,
    }
}

/// Sleeps in the kernel with the sockets' select counters raised. How many descriptors are ready, which it reports;
/// zero: the sockets are to be looked at again.
fn sleep(
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
            work[one.at] = one.on_anchor(fds[one.at].fd);
        }
        work.extend(sockets.iter().filter_map(PolledSocket::on_bell));
        let mask = signals.mask(nap.is_some(), mask);
        blocking::poll(&mut work, left, mask)
    };
    sockets.iter_mut().for_each(PolledSocket::disarm);
    if slept? == 0 {
        return Ok(0);
    }
    let bells = work.iter().skip(fds.len()).zip(sockets.iter());
    bells.filter(|(bell, _)| bell.revents != 0).for_each(|(_, one)| one.note_ring());
    Ok(report_slept(fds, sockets, &work))
}

/// Fills in the SAN sockets' readiness; how many have some. `only_now`: the program asks about this very moment, so the
/// kernel is asked about their anchors as well.
#[inline]
fn report_now(fds: &mut [libc::pollfd], sockets: &mut Sockets, only_now: bool) -> usize {
    let ready = report(fds, sockets);
    if ready > 0 || !only_now {
        return ready;
    }
    sockets.iter_mut().for_each(PolledSocket::look);
    report(fds, sockets)
}

/// Fills in the readiness of all after a sleep, in which the kernel filled in `work`; how many have some.
fn report_slept(fds: &mut [libc::pollfd], sockets: &mut Sockets, work: &[libc::pollfd]) -> usize {
    for one in sockets.iter_mut() {
        one.note(work[one.at].revents);
    }
    let mut ready = report(fds, sockets);
    each_other(fds.len(), sockets, |at| {
        fds[at].revents = work[at].revents;
        ready += usize::from(work[at].revents != 0);
    });
    ready
}

/// Fills in the SAN sockets' readiness; how many have some.
#[inline]
fn report(fds: &mut [libc::pollfd], sockets: &[PolledSocket]) -> usize {
    let mut n = 0;
    for one in sockets {
        let ready = one.ready() as i16;
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
fn report_others(fds: &mut [libc::pollfd], sockets: &[PolledSocket]) -> Result<usize> {
    if sockets.len() == fds.len() {
        return Ok(0);
    }
    let mut work = Descriptors::from_slice(fds);
    for one in sockets {
        // poll leaves negative descriptors alone.
        work[one.at].fd = -1;
    }
    let n = kernel::poll(&mut work, Some(0), None)?;
    each_other(fds.len(), sockets, |at| fds[at].revents = work[at].revents);
    Ok(n)
}
