//! poll and select with SAN sockets among the descriptors.

use crate::switch::anchor::ends;
use crate::switch::anchor::link;
use crate::switch::anchor::returning;
use crate::switch::back_to_tcp::detach;
use crate::switch::back_to_tcp::request;
use crate::switch::endpoint::flag;
use crate::switch::event_bits as bit;
use crate::switch::outcome::Outcome;
use crate::switch::readiness::events;
use crate::switch::socket::phase;
use crate::switch::socket::table::{self, Pinned};
use crate::switch::spin;
use crate::switch::stream::counters::Event;
use crate::switch::waiting::ring;
use crate::switch::waiting::wait::{self, Armed};
use crate::sys::process::NapSignals;
use crate::sys::{blocking, poll as kernel, time, Errno, Fd, Result};
use smallvec::SmallVec;

/// Spinning has one memory for all poll calls of a process: the descriptors change from call to
/// call.
static SPIN: spin::History = spin::History::new();

/// Descriptors that a call can have without allocating.
const FEW: usize = 32;

type Entries = SmallVec<[Entry; FEW]>;
/// Sockets on TCP among the descriptors: none goes to the SAN while the kernel alone watches it.
type OnTcp = SmallVec<[Pinned; FEW]>;
type Descriptors = SmallVec<[libc::pollfd; FEW]>;

/// A SAN socket among the polled descriptors. Dropped, also where its thread is cancelled in its
/// sleep, it sleeps no more.
struct Entry {
    /// Which of the descriptors; entries are in this order.
    at: usize,
    socket: Pinned,
    interest: u32,
    /// Urgent data of what came by TCP, as the kernel said last.
    urgent: u32,
    read: Option<Armed>,
    write: Option<Armed>,
}

/// poll in all its forms. `timeout` in nanoseconds, `None` for ever.
///
/// # Safety
/// `mask` is null or a valid signal set.
pub unsafe fn poll(
    fds: &mut [libc::pollfd],
    timeout: Option<u64>,
    mask: *const libc::sigset_t,
) -> Outcome {
    let (entries, on_tcp) = entries(fds);
    match (entries.is_empty(), on_tcp.is_empty()) {
        (true, true) => Outcome::Pass,
        // SAFETY: the caller's promise.
        (true, false) => Outcome::Done(unsafe { blocking::poll(fds, timeout, mask) }),
        // SAFETY: the caller's promise.
        (false, _) => Outcome::Done(unsafe { poll_entries(fds, entries, timeout, mask) }),
    }
}

fn entries(fds: &[libc::pollfd]) -> (Entries, OnTcp) {
    let (mut found, mut on_tcp) = (Entries::new(), OnTcp::new());
    for (at, one) in fds.iter().enumerate() {
        if let Some(set) = table::set(one.fd) {
            set.watched();
            continue;
        }
        let connected =
            table::connected(one.fd).or_else(|| crate::switch::setup::connecting(one.fd));
        let Some(socket) = connected else {
            crate::switch::setup::serving(one.fd);
            continue;
        };
        if !socket.has_entered() {
            on_tcp.push(socket);
            continue;
        }
        let interest = u32::from(one.events as u16);
        found.push(Entry { at, socket, interest, urgent: 0, read: None, write: None });
    }
    (found, on_tcp)
}

/// # Safety
/// `mask` is null or a valid signal set.
unsafe fn poll_entries(
    fds: &mut [libc::pollfd],
    entries: Entries,
    timeout: Option<u64>,
    mask: *const libc::sigset_t,
) -> Result<usize> {
    let mut signals = NapSignals::default();
    // Dropped before the signals come again.
    let (mut start, mut entries) = (None, entries);
    for e in entries.iter_mut().filter(|e| e.urgent_interest() != 0) {
        e.look();
    }
    loop {
        entries.iter().for_each(Entry::look_after);
        if entries.iter().any(|e| e.socket.phase() != phase::SAN) {
            // One went back to TCP: the kernel's readiness counts for it from now on.
            let mask = signals.mask(false, mask);
            let left = remaining(timeout, start);
            // SAFETY: the caller's promise.
            return match unsafe { poll(fds, left, mask) } {
                // SAFETY: as above.
                Outcome::Pass => unsafe { blocking::poll(fds, left, mask) },
                Outcome::Done(result) => result,
            };
        }
        let mut ready = report(fds, &entries);
        if ready == 0 && timeout == Some(0) {
            // The program asks about this very moment.
            entries.iter_mut().for_each(Entry::look);
            ready = report(fds, &entries);
        }
        if ready > 0 || timeout == Some(0) {
            return Ok(ready + others(fds, &entries)?);
        }
        start.get_or_insert_with(time::now);
        let left = remaining(timeout, start);
        if left == Some(0) {
            return others(fds, &entries);
        }
        let any_ready = || entries.iter().any(|e| e.ready() != 0);
        // Under a mask of the program's a signal may be let in: only the kernel can do that.
        if mask.is_null() && spin::spin(&SPIN, left.unwrap_or(u64::MAX), any_ready) {
            continue;
        }
        request::check();
        entries.iter_mut().for_each(Entry::arm);
        if entries.iter().any(|e| e.socket.phase() != phase::SAN) {
            entries.iter_mut().for_each(Entry::disarm);
            continue;
        }
        let mut work = Descriptors::from_slice(fds);
        let slept = if entries.iter().any(|e| e.ready() != 0) {
            Ok(0)
        } else {
            let slice = entries.iter().filter_map(Entry::longest_nap).min();
            let nap = match (remaining(timeout, start), slice) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            for e in &entries {
                work[e.at] = e.on_anchor(fds[e.at].fd);
            }
            work.extend(entries.iter().filter_map(Entry::on_link));
            let mask = signals.mask(slice.is_some(), mask);
            // SAFETY: the caller's promise; ours is there as long as `signals`.
            unsafe { blocking::poll(&mut work, nap, mask) }
        };
        entries.iter_mut().for_each(Entry::disarm);
        if slept? == 0 {
            continue;
        }
        for e in &mut entries {
            e.note(work[e.at].revents);
        }
        let mut ready = report(fds, &entries);
        each_other(fds.len(), &entries, |at| {
            fds[at].revents = work[at].revents;
            ready += usize::from(work[at].revents != 0);
        });
        if ready > 0 {
            return Ok(ready);
        }
    }
}

fn remaining(timeout: Option<u64>, start: Option<u64>) -> Option<u64> {
    let passed = start.map_or(0, |start| time::now().saturating_sub(start));
    timeout.map(|t| t.saturating_sub(passed))
}

/// Fills in the SAN sockets' readiness; how many have some.
fn report(fds: &mut [libc::pollfd], entries: &[Entry]) -> usize {
    let mut n = 0;
    for e in entries {
        let ready = e.ready() as i16;
        fds[e.at].revents = ready;
        n += usize::from(ready != 0);
    }
    n
}

/// Calls `each` with the places that are not SAN sockets'.
fn each_other(count: usize, entries: &[Entry], mut each: impl FnMut(usize)) {
    let mut ours = entries.iter().map(|e| e.at).peekable();
    for at in 0..count {
        if ours.next_if_eq(&at).is_none() {
            each(at);
        }
    }
}

/// Fills in the other descriptors' readiness, without waiting; how many have some.
fn others(fds: &mut [libc::pollfd], entries: &[Entry]) -> Result<usize> {
    if entries.len() == fds.len() {
        return Ok(0);
    }
    let mut work = Descriptors::from_slice(fds);
    for e in entries {
        // poll leaves negative descriptors alone.
        work[e.at].fd = -1;
    }
    let n = kernel::poll(&mut work, Some(0), None)?;
    each_other(fds.len(), entries, |at| fds[at].revents = work[at].revents);
    Ok(n)
}

impl Entry {
    #[inline]
    fn ready(&self) -> u32 {
        events::of_socket(&self.socket, self.interest) | (self.urgent & self.interest)
    }

    /// Asks the kernel about the anchor.
    fn look(&mut self) {
        let asked = self.on_anchor(self.socket.anchor());
        if let Ok(events) = kernel::poll_one(self.socket.anchor(), asked.events) {
            self.note(events);
        }
    }

    fn note(&mut self, events: i16) {
        let events = u32::from(events as u16);
        self.urgent = events & bit::PRI;
        events::note_kernel_events(&self.socket, events);
    }

    /// POLLPRI if the kernel has to be asked for it. Else the doorbell tells.
    fn urgent_interest(&self) -> i16 {
        let interest = self.interest as i16 & libc::POLLPRI;
        if interest != 0 && detach::tells_urgent_data(&self.socket) {
            interest
        } else {
            0
        }
    }

    /// What the kernel is asked for the socket's sake.
    fn on_anchor(&self, fd: Fd) -> libc::pollfd {
        let silent = self.socket.stream().is_some_and(|s| s.endpoint.has(ends::ALWAYS_READABLE));
        let events = libc::POLLIN | libc::POLLRDHUP | self.urgent_interest();
        libc::pollfd { fd: if silent { -1 } else { fd }, events, revents: 0 }
    }

    /// And where the peer is on another host.
    fn on_link(&self) -> Option<libc::pollfd> {
        let fd = self.socket.stream()?.fabric?.event();
        Some(libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
    }

    fn arm(&mut self) {
        let Some(stream) = self.socket.stream() else { return };
        ring::drain(&self.socket, &stream, || false);
        self.read = Some(wait::arm(&stream, Event::Read));
        if self.interest & bit::ANY_OUT != 0 {
            self.write = Some(wait::arm(&stream, Event::Write));
        }
        if let Some(link) = stream.fabric {
            link.let_helper_hear();
        }
        ring::recover_if_needed(&self.socket, &stream);
    }

    fn disarm(&mut self) {
        if self.read.is_none() && self.write.is_none() {
            return;
        }
        let Some(stream) = self.socket.stream() else { return };
        for armed in [self.read.take(), self.write.take()].into_iter().flatten() {
            wait::disarm(&stream, armed);
        }
    }

    /// Longest sleep on this socket, where no doorbell can be relied on.
    fn longest_nap(&self) -> Option<u64> {
        let stream = self.socket.stream()?;
        if self.socket.is_pending() {
            return Some(stream.endpoint.unanswered.nap());
        }
        let silent = stream.endpoint.has(ends::ALWAYS_READABLE | flag::LEFT | flag::SENDS_TCP);
        let unbelled = ((silent || stream.is_kept_from_sending())
            && self.interest & bit::ANY_OUT != 0)
            .then_some(wait::NAP_WITHOUT_DOORBELL);
        unbelled.or_else(|| returning::longest_nap(&stream)).or_else(|| link::longest_nap(&stream))
    }

    /// Looks after a connection that may have to go back to TCP.
    fn look_after(&self) {
        if let Some(stream) = self.socket.stream() {
            if self.socket.is_pending() {
                wait::look_if_stale(&self.socket, &stream, time::ticks());
            } else if returning::is_due(&stream) {
                detach::look_after(&self.socket, &stream);
            }
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.disarm();
    }
}

/// select, by poll. The sets are the kernel's bit arrays of `nfds` bits, or null; `timeout` is asked for only if one
/// of the descriptors is ours.
///
/// # Safety
/// The sets are null or hold `nfds` bits; `mask` is null or a valid signal set.
pub unsafe fn select(
    nfds: i32,
    sets: [*mut u64; 3],
    timeout: impl FnOnce() -> Result<Option<u64>>,
    mask: *const libc::sigset_t,
) -> Outcome {
    if !(0..=1 << 20).contains(&nfds) {
        return Outcome::Pass;
    }
    let words = (nfds as usize).div_ceil(64);
    let bits = |set: *mut u64, word: usize| match set.is_null() {
        true => 0,
        // SAFETY: the caller's promise.
        false => unsafe { set.add(word).read_unaligned() },
    };
    const WANTED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
    let mut fds = Descriptors::new();
    let mut ours = false;
    for word in 0..words {
        let mut any = sets.iter().fold(0, |any, set| any | bits(*set, word));
        while any != 0 {
            let bit = any.trailing_zeros() as usize;
            any &= any - 1;
            let fd = (word * 64 + bit) as Fd;
            if fd >= nfds {
                break;
            }
            let mut events = 0;
            for (set, wanted) in sets.iter().zip(WANTED) {
                if bits(*set, word) >> bit & 1 != 0 {
                    events |= wanted;
                }
            }
            crate::switch::setup::serving(fd);
            ours |= table::connected(fd).is_some()
                || table::set(fd).is_some()
                || crate::switch::setup::connecting(fd).is_some();
            fds.push(libc::pollfd { fd, events, revents: 0 });
        }
    }
    if !ours {
        return Outcome::Pass;
    }
    let timeout = match timeout() {
        Ok(timeout) => timeout,
        Err(e) => return Outcome::Done(Err(e)),
    };
    // SAFETY: the caller's promise.
    let polled = match unsafe { poll(&mut fds, timeout, mask) } {
        Outcome::Pass => return Outcome::Pass,
        Outcome::Done(polled) => polled,
    };
    if let Err(e) = polled {
        return Outcome::Done(Err(e));
    }
    if fds.iter().any(|one| one.revents & libc::POLLNVAL != 0) {
        return Outcome::Done(Err(Errno(libc::EBADF)));
    }
    let mut result = [(); 3].map(|()| SmallVec::<[u64; 16]>::new());
    for set in &mut result {
        set.resize(words, 0u64);
    }
    let mut count = 0;
    for one in &fds {
        const COUNTS: [i16; 3] = [
            libc::POLLIN | libc::POLLHUP | libc::POLLERR | libc::POLLRDHUP,
            libc::POLLOUT | libc::POLLERR,
            libc::POLLPRI,
        ];
        for set in 0..3 {
            if one.events & WANTED[set] != 0 && one.revents & COUNTS[set] != 0 {
                result[set][one.fd as usize / 64] |= 1 << (one.fd as usize % 64);
                count += 1;
            }
        }
    }
    for (set, bits) in result.iter().enumerate() {
        if sets[set].is_null() {
            continue;
        }
        for (word, value) in bits.iter().enumerate() {
            // The last word may reach beyond the program's array only by bits it rounds up to as
            // well: fd_set is an array of longs.
            // SAFETY: the caller's promise.
            unsafe { sets[set].add(word).write_unaligned(*value) };
        }
    }
    Outcome::Done(Ok(count))
}
