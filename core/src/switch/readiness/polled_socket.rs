//! A socket on the SAN among the descriptors of one poll call: the events that the program asks for, and the socket's
//! select counters while the thread sleeps.

use crate::switch::anchor::behind;
use crate::switch::anchor::bell;
use crate::switch::anchor::broken;
use crate::switch::anchor::ends;
use crate::switch::anchor::link;
use crate::switch::anchor::returning;
use crate::switch::anchor::user_timeout;
use crate::switch::back_to_tcp::detach;
use crate::switch::endpoint::flag;
use crate::switch::event_bits as bit;
use crate::switch::readiness::events;
use crate::switch::readiness::timeout::shorter;
use crate::switch::socket::phase;
use crate::switch::socket::table::Pinned;
use crate::switch::stream::carrier::SleepStep;
use crate::switch::stream::counters::CountedEvent;
use crate::switch::stream::Stream;
use crate::switch::waiting::armed::{self, Armed};
use crate::switch::waiting::ring;
use crate::switch::waiting::sleep;
use crate::switch::waiting::wait;
use crate::sys::{poll as kernel, Fd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// See the module. Once this value is dropped, its thread does not count as asleep any more. That holds also where the
/// thread is cancelled in its sleep.
pub(super) struct PolledSocket {
    /// The place among the call's descriptors. A call keeps its sockets in this order.
    pub(super) at: usize,
    socket: Pinned,
    interest: u32,
    /// The kernel's last answer about urgent data, which comes by TCP.
    urgent: u32,
    read: Option<Armed>,
    write: Option<Armed>,
    /// How often the thread has looked for the peer's end where this end has shut its receiving direction down. The
    /// anchor does not report that end any more.
    looks: u32,
}

impl PolledSocket {
    /// Takes up the descriptor at this place, which the program asks about with `events`.
    #[inline]
    pub(super) fn new(at: usize, socket: Pinned, events: i16) -> Self {
        let interest = u32::from(events as u16);
        PolledSocket { at, socket, interest, urgent: 0, read: None, write: None, looks: 0 }
    }

    /// True if the socket went back to TCP.
    #[inline]
    pub(super) fn has_left(&self) -> bool {
        self.socket.phase() != phase::SAN
    }

    /// Gives the events to report of those that the program asks for.
    #[inline]
    pub(super) fn ready(&self) -> u32 {
        events::of_socket(&self.socket, self.interest) | (self.urgent & self.interest)
    }

    /// Asks the kernel about urgent data if the program asks for it. The sender of urgent data goes back to TCP first.
    #[inline]
    pub(super) fn look_for_urgent(&mut self) {
        if self.urgent_interest() != 0 {
            self.look();
        }
    }

    /// Asks the kernel about the anchor.
    pub(super) fn look(&mut self) {
        let asked = self.question();
        if let Ok(events) = kernel::poll_one(self.socket.anchor(), asked.events) {
            self.note(events);
        }
        self.look_for_end();
    }

    /// Looks for the peer's end where the anchor does not tell it.
    pub(super) fn look_for_end(&mut self) {
        if let Some(stream) = self.socket.stream() {
            self.looks += u32::from(stream.endpoint.has(flag::RECEIVE_SHUT));
            if ends::hears_no_end(&stream) {
                ends::look(&self.socket, &stream);
            }
        }
    }

    /// True if the kernel's last answer about the anchor is older than `age` at the time `now` (both in ticks), and the
    /// kernel may tell more.
    pub(super) fn is_older(&self, now: u64, age: u64) -> bool {
        let may_tell = |stream: &Stream| !stream.endpoint.has(broken::SHOWS_END);
        let stream = self.socket.stream().filter(may_tell);
        stream.is_some_and(|stream| wait::is_older(&stream, now, age))
    }

    /// Takes the kernel's answer about the anchor, from a question about several at the time `at` (ticks).
    pub(super) fn note_look(&mut self, events: i16, at: u64) {
        if let Some(stream) = self.socket.stream() {
            stream.endpoint.looked_at.store(at, Relaxed);
        }
        self.note(events);
        self.look_for_end();
    }

    /// Gives the question to the kernel about the anchor.
    pub(super) fn question(&self) -> libc::pollfd {
        self.on_anchor(self.socket.anchor())
    }

    /// Asks the kernel about the anchor's end if the last answer is old at the time `now` (ticks).
    #[inline]
    pub(super) fn look_if_stale(&self, now: u64) {
        if let Some(stream) = self.socket.stream().filter(|s| !s.endpoint.has(broken::SHOWS_END)) {
            wait::look_if_stale(&self.socket, &stream, now);
        }
    }

    /// Takes the kernel's answer about the anchor.
    pub(super) fn note(&mut self, events: i16) {
        let events = u32::from(events as u16);
        self.urgent = events & bit::PRI;
        events::note_kernel_events(&self.socket, events);
    }

    #[inline]
    fn urgent_interest(&self) -> i16 {
        self.interest as i16 & libc::POLLPRI
    }

    /// Gives the question about the anchor, which is open under `fd`.
    pub(super) fn on_anchor(&self, fd: Fd) -> libc::pollfd {
        let mut events = self.urgent_interest();
        if let Some(stream) = self.socket.stream() {
            events |= sleep::anchor_events(&stream, CountedEvent::Read);
            if self.interest & bit::ANY_IN == 0 {
                // The program does not ask whether bytes lie there unread.
                events &= !libc::POLLIN;
            }
            if self.interest & bit::ANY_OUT != 0 {
                events |= sleep::anchor_events(&stream, CountedEvent::Write);
            }
        }
        libc::pollfd { fd: if events == 0 { -1 } else { fd }, events, revents: 0 }
    }

    /// Gives the number under which the anchor is open. `fd` is the program's number for it.
    pub(super) fn sleeps_on(&self, fd: Fd) -> Fd {
        if self.is_closed() {
            self.socket.anchor()
        } else {
            fd
        }
    }

    /// True if another thread closed the socket's last descriptor.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.socket.is_closing.load(SeqCst)
    }

    /// Gives the question about the bell.
    pub(super) fn on_bell(&self) -> Option<libc::pollfd> {
        let fd = self.socket.stream()?.bell();
        Some(libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
    }

    /// Notes that the bell rang.
    pub(super) fn note_ring(&self) {
        if let Some(stream) = self.socket.stream() {
            bell::note_ring(&self.socket, &stream);
        }
    }

    /// True if the peer did something through the kernel since that time (ticks), before what it sent here.
    pub(super) fn has_peer_acted_since(&self, time: u64) -> bool {
        self.socket.stream().is_some_and(|stream| stream.peers_actions().acted > time)
    }

    /// Raises the select counter of reading before the thread sleeps, and that of writing if the program asks about
    /// writing.
    pub(super) fn arm(&mut self) {
        let Some(stream) = self.socket.stream() else { return };
        wait::before_sleep(&self.socket, &stream, || false);
        self.read = Some(armed::arm(&stream, CountedEvent::Read));
        if self.interest & bit::ANY_OUT != 0 {
            self.write = Some(armed::arm(&stream, CountedEvent::Write));
        }
        stream.carrier().sleep(SleepStep::OnBell);
        ring::recover_if_needed(&self.socket, &stream);
    }

    /// Lowers the select counters.
    pub(super) fn disarm(&mut self) {
        if self.read.is_none() && self.write.is_none() {
            return;
        }
        let Some(stream) = self.socket.stream() else { return };
        for armed in [self.read.take(), self.write.take()].into_iter().flatten() {
            armed::disarm(&stream, armed);
        }
    }

    /// Gives the longest sleep on this socket, where the thread cannot rely on a ring.
    pub(super) fn longest_nap(&self) -> Option<u64> {
        let stream = self.socket.stream()?;
        let writes = self.interest & bit::ANY_OUT != 0;
        // The program waits for more than lies in the segment, and the peer sends that over TCP.
        let reads_on = self.interest & bit::ANY_IN != 0 && returning::continues_over_tcp(&stream);
        let is_silent = reads_on || writes && stream.is_kept_from_sending();
        let is_deaf = stream.endpoint.has(flag::RECEIVE_SHUT);
        let nap = is_silent
            .then_some(wait::NAP_WITHOUT_END)
            .or_else(|| is_deaf.then(|| wait::nap_without_end(self.looks)))
            .or_else(|| returning::longest_nap(&stream))
            .or_else(|| behind::longest_nap(&stream))
            .or_else(|| link::longest_nap(&stream))
            // Another thread may take the ring off.
            .or(writes.then_some(wait::NAP_OF_WRITER));
        shorter(nap, user_timeout::left(&stream))
    }

    /// Looks after a connection that may have to go back to TCP.
    #[inline]
    pub(super) fn look_after(&self) {
        if let Some(stream) = self.socket.stream() {
            if returning::is_due(&stream) {
                detach::look_after(&self.socket, &stream);
            }
        }
    }
}

impl Drop for PolledSocket {
    fn drop(&mut self) {
        self.disarm();
    }
}
