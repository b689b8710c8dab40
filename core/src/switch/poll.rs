//! poll and select with SAN sockets among the descriptors.

use super::endpoint::flag;
use super::readiness::{self, bit};
use super::spin::spin;
use super::table::{self, Pinned};
use super::wait::{self, Armed, Event};
use super::Outcome;
use crate::sys::{blocking, poll as kernel, time, Errno, Fd, Result};
use std::sync::atomic::AtomicI32;

/// Spinning has one memory for all poll calls of a process: the descriptors change from call to
/// call.
static SPIN_SCORE: AtomicI32 = AtomicI32::new(0);

/// A SAN socket among the polled descriptors.
struct Entry {
    at: usize,
    socket: Pinned,
    interest: u32,
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
    let entries = entries(fds);
    if entries.is_empty() {
        return Outcome::Pass;
    }
    // SAFETY: the caller's promise.
    Outcome::Done(unsafe { poll_entries(fds, entries, timeout, mask) })
}

fn entries(fds: &[libc::pollfd]) -> Vec<Entry> {
    let mut found = Vec::new();
    for (at, one) in fds.iter().enumerate() {
        if let Some(set) = table::set(one.fd) {
            set.watched();
            continue;
        }
        let Some(socket) = table::san(one.fd).or_else(|| super::connecting(one.fd)) else {
            continue;
        };
        let interest = one.events as u16 as u32;
        found.push(Entry { at, socket, interest, read: None, write: None });
    }
    found
}

impl Entry {
    #[inline]
    fn ready(&self) -> u32 {
        match self.socket.stream() {
            Some(stream) => readiness::of(&stream, self.interest),
            None => 0,
        }
    }
}

/// # Safety
/// `mask` is null or a valid signal set.
unsafe fn poll_entries(
    fds: &mut [libc::pollfd],
    mut entries: Vec<Entry>,
    timeout: Option<u64>,
    mask: *const libc::sigset_t,
) -> Result<usize> {
    let start = time::now();
    // Under a mask of its own a signal may be let in: only the kernel can do that.
    let may_spin = mask.is_null();
    let mut work: Vec<libc::pollfd> = fds.to_vec();
    loop {
        let ready = report(fds, &entries);
        if ready > 0 || timeout == Some(0) {
            let others = others(fds, &mut work, &entries)?;
            return Ok(ready + others);
        }
        let left = timeout.map(|t| t.saturating_sub(time::now() - start));
        if left == Some(0) {
            return others(fds, &mut work, &entries);
        }
        let any_ready = || entries.iter().any(|e| e.ready() != 0);
        if may_spin && spin(&SPIN_SCORE, left.unwrap_or(u64::MAX), any_ready) {
            continue;
        }
        for e in &mut entries {
            e.arm();
        }
        let slept = if entries.iter().any(|e| e.ready() != 0) {
            Ok(0)
        } else {
            for e in &entries {
                let events = libc::POLLIN | libc::POLLRDHUP | (e.interest as i16 & libc::POLLPRI);
                let silent = e.socket.stream().is_some_and(|s| s.endpoint.has(wait::SILENT));
                // poll leaves negative descriptors alone.
                let fd = if silent { -1 } else { fds[e.at].fd };
                work[e.at] = libc::pollfd { fd, events, revents: 0 };
            }
            let left = timeout.map(|t| t.saturating_sub(time::now() - start));
            let slice = entries.iter().filter_map(Entry::slice).min();
            let nap = match (left, slice) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            // SAFETY: the caller's promise.
            unsafe { blocking::poll(&mut work, nap, mask) }
        };
        for e in &mut entries {
            e.disarm();
        }
        if slept? == 0 {
            for e in &entries {
                e.look_after_pending();
            }
            continue;
        }
        let mut urgent = 0;
        for e in &entries {
            let events = work[e.at].revents;
            readiness::note_kernel_events(&e.socket, events as u16 as u32);
            let pri = events & libc::POLLPRI & fds[e.at].events;
            fds[e.at].revents = pri;
            urgent |= pri;
        }
        let kernel_ready =
            (0..fds.len()).any(|i| work[i].revents != 0 && entries.iter().all(|e| e.at != i));
        if kernel_ready || urgent != 0 {
            let ready = report(fds, &entries);
            for e in &entries {
                let pri = work[e.at].revents & libc::POLLPRI & fds[e.at].events;
                fds[e.at].revents |= pri;
            }
            let mut n = 0;
            for (i, one) in fds.iter_mut().enumerate() {
                if entries.iter().all(|e| e.at != i) {
                    one.revents = work[i].revents;
                }
                n += usize::from(one.revents != 0);
            }
            debug_assert!(n >= ready);
            return Ok(n);
        }
        if entries.iter().any(|e| e.socket.phase() != super::socket::phase::SAN) {
            // One went back to TCP: the kernel's readiness counts for it from now on.
            // SAFETY: the caller's promise.
            return match unsafe { poll(fds, left, mask) } {
                // SAFETY: as above.
                Outcome::Pass => unsafe { blocking::poll(fds, left, mask) },
                Outcome::Done(result) => result,
            };
        }
    }
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

/// Fills in the other descriptors' readiness, without waiting; how many have some.
fn others(fds: &mut [libc::pollfd], work: &mut [libc::pollfd], entries: &[Entry]) -> Result<usize> {
    if entries.len() == fds.len() {
        return Ok(0);
    }
    work.copy_from_slice(fds);
    for e in entries {
        work[e.at].fd = -1;
    }
    let n = kernel::poll(work, Some(0), None)?;
    for (i, one) in fds.iter_mut().enumerate() {
        if work[i].fd >= 0 {
            one.revents = work[i].revents;
        } else if one.fd < 0 {
            one.revents = 0;
        }
    }
    Ok(n)
}

impl Entry {
    fn arm(&mut self) {
        let Some(stream) = self.socket.stream() else { return };
        wait::drain(&self.socket, &stream);
        self.read = Some(wait::arm(&stream, Event::Read));
        if self.interest & bit::ANY_OUT != 0 {
            self.write = Some(wait::arm(&stream, Event::Write));
        }
    }

    fn disarm(&mut self) {
        let Some(stream) = self.socket.stream() else { return };
        for armed in [self.read.take(), self.write.take()].into_iter().flatten() {
            wait::disarm(&stream, armed);
        }
    }

    /// Longest sleep on this socket, where no doorbell can be relied on.
    fn slice(&self) -> Option<u64> {
        let stream = self.socket.stream()?;
        if self.socket.is_pending() {
            return Some(wait::PENDING_SLICE);
        }
        let silent = stream.endpoint.has(flag::ANCHOR_ENDED | flag::RECEIVE_SHUT);
        (silent && self.interest & bit::ANY_OUT != 0).then_some(wait::UNBELLED_SLICE)
    }

    fn look_after_pending(&self) {
        if self.socket.is_pending() {
            super::native::scan(&self.socket);
        }
    }
}

/// select, by poll. The sets are the kernel's bit arrays of `nfds` bits, or null.
///
/// # Safety
/// The sets are null or hold `nfds` bits; `mask` is null or a valid signal set.
pub unsafe fn select(
    nfds: i32,
    sets: [*mut u64; 3],
    timeout: Option<u64>,
    mask: *const libc::sigset_t,
) -> Outcome {
    if !(0..=1 << 20).contains(&nfds) {
        return Outcome::Pass;
    }
    let words = (nfds as usize).div_ceil(64);
    // SAFETY: the caller's promise.
    let bits = |set: usize, word: usize| match sets[set].is_null() {
        true => 0,
        false => unsafe { sets[set].add(word).read_unaligned() },
    };
    const WANTED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
    let mut fds = Vec::new();
    let mut ours = false;
    for word in 0..words {
        let mut any = bits(0, word) | bits(1, word) | bits(2, word);
        while any != 0 {
            let bit = any.trailing_zeros() as usize;
            any &= any - 1;
            let fd = (word * 64 + bit) as Fd;
            if fd >= nfds {
                break;
            }
            let mut events = 0;
            for set in 0..3 {
                if bits(set, word) >> bit & 1 != 0 {
                    events |= WANTED[set];
                }
            }
            ours |= table::san(fd).is_some()
                || table::set(fd).is_some()
                || super::connecting(fd).is_some();
            fds.push(libc::pollfd { fd, events, revents: 0 });
        }
    }
    if !ours {
        return Outcome::Pass;
    }
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
    let mut result = [const { Vec::new() }; 3];
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
