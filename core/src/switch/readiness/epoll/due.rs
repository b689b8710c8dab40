//! Says when a registration is due to be reported, and what it waits for.

use crate::switch::anchor::behind;
use crate::switch::anchor::ends;
use crate::switch::anchor::link;
use crate::switch::anchor::returning;
use crate::switch::anchor::user_timeout;
use crate::switch::endpoint::flag;
use crate::switch::event_bits as bit;
use crate::switch::readiness::events;
use crate::switch::readiness::timeout::shorter;
use crate::switch::socket::set::{Registration, ONE_SHOT};
use crate::switch::stream::counters::{self, CountedEvent};
use crate::switch::stream::Stream;
use crate::sys::actions::Times;
use crate::sys::poll;
use std::sync::atomic::Ordering::Relaxed;

const EDGE: u32 = libc::EPOLLET as u32;
/// How often (ns) a set looks for space that another thread's send holds up.
const NAP_BEHIND_SENDER: u64 = 1_000_000;
/// So many bits of a stamp count the ends.
const END_BITS: u32 = 8;
/// How often a look is repeated for what comes during the look.
const LOOKS: u32 = 3;

/// What a registration has to report.
pub(super) enum DueReport {
    Nothing,
    /// The registration reports these events.
    Events(u32),
    /// The events may have come behind an action of the peer's through the kernel. The caller asks the kernel first.
    BehindActions,
    /// The events may have come behind the rings of other connections. The caller hears those rings first.
    BehindRings,
}

/// Gives a stamp that changes with everything that makes an edge: data, the end of the stream, an error. An end or an
/// error changes its [`END_BITS`].
fn stamp(stream: &Stream) -> u64 {
    let state = stream.endpoint.state();
    // A peer that shut down and closes later tells nothing new.
    let is_over = stream.is_finished() || state.has(flag::ANCHOR_ENDED);
    let broken = state.among(flag::RESET | flag::BROKEN_PIPE);
    let ends = broken.count_ones() + u32::from(is_over);
    // None of these counts ever falls.
    let ends = ends.wrapping_add(stream.endpoint.own_edges.load(Relaxed));
    stream.arrival_stamp() << END_BITS | u64::from(ends) & ((1 << END_BITS) - 1)
}

impl Registration {
    /// Takes the kernel's answer about the anchor.
    pub(super) fn note(&mut self, events: u32) {
        self.urgent.set(events & bit::PRI != 0);
    }

    /// Gives the events to report now, if any, and remembers that they were reported. It reports none that may have
    /// come behind something that the kernel has not told yet. `told`: up to these times the kernel has told all.
    /// `None`: the caller does not mind.
    pub(super) fn take(&mut self, told: Option<Times>) -> DueReport {
        let Some(stream) = self.socket.stream() else { return DueReport::Nothing };
        if self.has_plainly_nothing(&stream) {
            return DueReport::Nothing;
        }
        let looked = match self.events & EDGE {
            0 => self.look(&stream).map(|events| (events, self.reported)),
            _ => self.look_at_edge(&stream),
        };
        let Some((events, edge)) = looked else { return DueReport::Nothing };
        // This reads the peer's times after the look: they cover all that the look found, and later events are not
        // reported now.
        let (peers, told) = (stream.peers_actions(), told.unwrap_or(Times::MAX));
        if peers.acted > told.acted {
            return DueReport::BehindActions;
        }
        if peers.rang > told.rang {
            return DueReport::BehindRings;
        }
        self.reported = edge;
        if events & bit::ANY_OUT != 0 {
            // An event without EPOLLOUT leaves the count alone: the space that the registration waits for comes later.
            self.stalls = stream.endpoint.send.stalls.load(Relaxed);
        }
        self.fresh = false;
        self.idle = 0;
        self.disabled = self.events & ONE_SHOT != 0;
        DueReport::Events(events)
    }

    /// Does what [`look`](Self::look) does for an edge-triggered registration. Also gives the stamp of the edge.
    fn look_at_edge(&self, stream: &Stream) -> Option<(u32, u64)> {
        // The stamp is taken before the look. An event after the look is another edge. An event during the look is part of this
        // edge: a look at the fabric brings such events.
        let mut before = stamp(stream);
        let mut events = self.look(stream)?;
        for _ in 0..LOOKS {
            let after = stamp(stream);
            if after == before {
                break;
            }
            before = after;
            events = self.look(stream)?;
        }
        Some((events, before))
    }

    /// True if one glance tells that nothing is due.
    #[inline(always)]
    fn has_plainly_nothing(&self, stream: &Stream) -> bool {
        self.disabled
            || self.parked
            || self.events & bit::ANY_OUT == 0 && !self.urgent.get() && stream.is_at_rest()
    }

    /// Gives the events to report now, if any.
    #[inline]
    pub(super) fn due(&self) -> Option<u32> {
        let stream = self.socket.stream()?;
        if self.has_plainly_nothing(&stream) {
            return None;
        }
        self.look(&stream)
    }

    /// Gives the same where one glance does not tell.
    #[inline]
    fn look(&self, stream: &Stream) -> Option<u32> {
        let mut events = events::of_socket(self.socket, self.events);
        if self.urgent.get() {
            // Nothing tells when the program read the urgent byte, but the kernel knows.
            let still = poll::poll_one(self.socket.anchor(), libc::POLLPRI).unwrap_or(0) != 0;
            self.urgent.set(still);
            events |= if still { self.events & bit::PRI } else { 0 };
        }
        if events == 0 {
            return None;
        }
        if self.events & EDGE == 0 || self.fresh {
            return Some(events);
        }
        let space =
            events & bit::ANY_OUT != 0 && stream.endpoint.send.stalls.load(Relaxed) != self.stalls;
        let changed = stamp(stream) ^ self.reported;
        // As the kernel does, this reports no data to a registration that waits for space alone.
        let heeded = match self.events & (bit::IN | bit::RDNORM | bit::PRI) {
            0 => changed & ((1 << END_BITS) - 1),
            _ => changed,
        };
        (heeded != 0 || space).then_some(events)
    }

    /// Raises the select counters of what the registration waits for. The caller asks [`due`](Self::due) afterwards.
    pub(super) fn arm(&mut self) {
        let Some(stream) = self.socket.stream() else { return };
        // A signal may have used up an old ticket since.
        self.disarm();
        self.read = Some(counters::raise_elsewhere(&stream, CountedEvent::Read));
        if self.events & bit::ANY_OUT != 0 {
            self.write = Some(counters::raise(&stream, CountedEvent::Write));
        }
    }

    /// Turns the registration cold, so that the peer's ring reports it. True if it turned cold. It stays hot if it is
    /// due, or if the set must look at it.
    pub(super) fn turn_cold(&mut self) -> bool {
        if self.stays_hot() {
            return false;
        }
        self.arm();
        if self.due().is_some() {
            self.disarm();
            return false;
        }
        self.hot = false;
        true
    }

    /// True if the peer is on another host.
    #[inline]
    pub(super) fn is_between_hosts(&self) -> bool {
        self.socket.stream().is_some_and(|stream| stream.is_between_hosts())
    }

    /// True if neither the kernel nor a clock has a part in what the registration waits for: the peer rings. This is so
    /// most of the time.
    #[inline]
    fn is_undisturbed(&self) -> bool {
        self.events & bit::ANY_OUT == 0
            && self.socket.stream().is_some_and(|stream| stream.is_undisturbed())
    }

    /// Gives the longest sleep on this socket, where the thread cannot rely on a ring.
    pub(super) fn longest_nap(&self) -> Option<u64> {
        if self.is_undisturbed() {
            return None;
        }
        let stream = self.socket.stream()?;
        let held_up = self.is_held_up().then_some(NAP_BEHIND_SENDER);
        let nap = held_up
            .or_else(|| returning::longest_nap(&stream))
            .or_else(|| behind::longest_nap(&stream))
            .or_else(|| link::longest_nap(&stream));
        shorter(nap, user_timeout::left(&stream))
    }

    /// True if the registration waits for space while another thread's send waits for the peer.
    pub(super) fn is_held_up(&self) -> bool {
        self.events & bit::ANY_OUT != 0
            && !self.disabled
            && self.socket.stream().is_some_and(|s| s.is_kept_from_sending())
    }

    /// True if the caller has to look after the connection: it goes back to TCP, or nothing reports its end.
    #[inline]
    pub(super) fn needs_care(&self) -> bool {
        if self.is_undisturbed() {
            return false;
        }
        let Some(stream) = self.socket.stream() else { return false };
        returning::is_due(&stream)
            || ends::hears_no_end(&stream)
            // Nobody rings for the death of the process that controls the link.
            || link::longest_nap(&stream).is_some()
    }

    /// True if the set must look at the registration however idle it is: it cannot rely on a ring, and only hot registrations
    /// limit its sleep.
    pub(super) fn stays_hot(&self) -> bool {
        self.longest_nap().is_some()
    }
}
