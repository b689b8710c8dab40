//! When a registration is due to be reported, and what it waits for.

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
/// Bits of a stamp in which what ends is counted.
const END_BITS: u32 = 8;
/// How often it is looked again for what comes meanwhile.
const LOOKS: u32 = 3;

/// What a registration has to report.
pub(super) enum DueReport {
    Nothing,
    /// These events.
    Events(u32),
    /// Something that may have come behind what the peer did through the kernel, which is to be asked first.
    BehindActions,
    /// The same of the rings of other connections.
    BehindRings,
}

/// Changes with whatever makes an edge: data, the end of the stream, an error. The last two change its [`END_BITS`].
fn stamp(stream: &Stream) -> u64 {
    let state = stream.endpoint.state();
    // A peer that shut down and closes later tells nothing new.
    let is_over = stream.is_finished() || state.has(flag::ANCHOR_ENDED);
    let broken = state.among(flag::RESET | flag::BROKEN_PIPE);
    let ends = broken.count_ones() + u32::from(is_over);
    // Of these there are only ever more.
    let ends = ends.wrapping_add(stream.endpoint.own_edges.load(Relaxed));
    stream.arrival_stamp() << END_BITS | u64::from(ends) & ((1 << END_BITS) - 1)
}

impl Registration {
    /// What the kernel said of the anchor.
    pub(super) fn note(&mut self, events: u32) {
        self.urgent.set(events & bit::PRI != 0);
    }

    /// The events to report now, if any; remembers that they were. Not if they may have come behind what the kernel has not
    /// told yet: it has `told` all up to then, or nobody minds (`None`).
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
        // Read behind what is due: what comes later is not reported now.
        let (peers, told) = (stream.peers_actions(), told.unwrap_or(Times::MAX));
        if peers.acted > told.acted {
            return DueReport::BehindActions;
        }
        if peers.rang > told.rang {
            return DueReport::BehindRings;
        }
        self.reported = edge;
        if events & bit::ANY_OUT != 0 {
            // Not for an event without it: the space it waits for comes later.
            self.stalls = stream.endpoint.send.stalls.load(Relaxed);
        }
        self.fresh = false;
        self.idle = 0;
        self.disabled = self.events & ONE_SHOT != 0;
        DueReport::Events(events)
    }

    /// As [`look`](Self::look), for a registration of which edges are reported: also the stamp of the edge.
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

    /// The events to report now, if any.
    #[inline]
    pub(super) fn due(&self) -> Option<u32> {
        let stream = self.socket.stream()?;
        if self.has_plainly_nothing(&stream) {
            return None;
        }
        self.look(&stream)
    }

    /// The same, where one glance does not tell.
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
        // As the kernel, which wakes nobody for data who waits for space alone.
        let heeded = match self.events & (bit::IN | bit::RDNORM | bit::PRI) {
            0 => changed & ((1 << END_BITS) - 1),
            _ => changed,
        };
        (heeded != 0 || space).then_some(events)
    }

    /// Raises the select counters of what it waits for. To be asked [`due`](Self::due) afterwards.
    pub(super) fn arm(&mut self) {
        let Some(stream) = self.socket.stream() else { return };
        // An old ticket may have been used up by a signal since.
        self.disarm();
        self.read = Some(counters::raise_elsewhere(&stream, CountedEvent::Read));
        if self.events & bit::ANY_OUT != 0 {
            self.write = Some(counters::raise(&stream, CountedEvent::Write));
        }
    }

    /// Leaves it to the peer's ring to tell of it, unless it is due or must be looked at; true if it did.
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
    pub(super) fn is_over_fabric(&self) -> bool {
        self.socket.stream().is_some_and(|stream| stream.fabric.is_some())
    }

    /// True if neither the kernel nor a clock has a part in what it waits for, as most of the time: the peer rings.
    #[inline]
    fn is_undisturbed(&self) -> bool {
        self.events & bit::ANY_OUT == 0
            && self.socket.stream().is_some_and(|stream| stream.is_undisturbed())
    }

    /// Longest sleep on this socket, where no ring can be relied on.
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

    /// It waits for space, and another thread's send for the peer.
    pub(super) fn is_held_up(&self) -> bool {
        self.events & bit::ANY_OUT != 0
            && !self.disabled
            && self.socket.stream().is_some_and(|s| s.is_kept_from_sending())
    }

    /// True if it is to be looked after: it goes back to TCP, or nothing tells its end.
    #[inline]
    pub(super) fn needs_care(&self) -> bool {
        if self.is_undisturbed() {
            return false;
        }
        let Some(stream) = self.socket.stream() else { return false };
        returning::is_due(&stream)
            || ends::hears_no_end(&stream)
            || link::longest_nap(&stream).is_some()
    }

    /// True if it must be looked at however idle it is.
    pub(super) fn stays_hot(&self) -> bool {
        if self.is_undisturbed() {
            return false;
        }
        self.is_held_up()
            || self.socket.stream().is_some_and(|stream| {
                returning::is_half_left(&stream)
                    || behind::may_be(&stream)
                    || user_timeout::left(&stream).is_some()
                    // Nobody rings for the death of the process that controls the link.
                    || link::longest_nap(&stream).is_some()
            })
    }
}
