//! One socket's registration in a set, and when it is due to be reported.

use super::super::detach;
use super::super::endpoint::flag;
use super::super::far;
use super::super::readiness::{self, bit};
use super::super::socket::Socket;
use super::super::stream::Stream;
use super::super::wait::{self, Event};
use crate::fabric::Link;
use crate::session::Ticket;
use crate::sys::{poll, Fd};
use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

const EDGE: u32 = libc::EPOLLET as u32;
const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;

/// Bits that say how events are reported.
const PRIVATE: u32 =
    (libc::EPOLLWAKEUP | libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE) as u32;

/// How often it is looked again for what comes meanwhile.
const LOOKS: u32 = 3;

/// See the module.
pub(super) struct Registration {
    /// The descriptor it was made with: with the socket, its name (as in the kernel).
    pub(super) fd: Fd,
    pub(super) socket: &'static Socket,
    /// The program's events and data, untouched.
    pub(super) events: u32,
    pub(super) data: u64,
    /// In the kernel's own set, because the socket is not on the SAN (yet).
    pub(super) in_kernel: bool,
    /// In the shadow set; not any more once the anchor's stream ended.
    pub(super) in_shadow: bool,
    /// The link's bell is too, where the peer is on another host.
    bell_in_shadow: bool,
    pub(super) hot: bool,
    /// Looks in a row that found nothing.
    pub(super) idle: u32,
    /// A doorbell byte lies on the anchor.
    pub(super) belled: bool,
    /// EPOLLPRI of what came by TCP, as the kernel reported it last.
    urgent: Cell<bool>,
    read: Option<Ticket>,
    write: Option<Ticket>,
    /// Deleted by the program; kept, because it is likely to be added again. Reports nothing.
    pub(super) parked: bool,
    /// ONESHOT was reported, or nothing is wanted.
    disabled: bool,
    /// Nothing was reported since ADD or MOD: the next readiness is an edge.
    fresh: bool,
    reported: u64,
    stalls: u32,
}

/// Changes with whatever makes an edge: data, urgent data, the end of the stream, an error.
fn stamp(stream: &Stream) -> u64 {
    const ENDS: u32 =
        flag::ANCHOR_ENDED | flag::RESET | flag::BROKEN_PIPE | flag::RECEIVE_SHUT | flag::SEND_SHUT;
    let ends = u64::from(stream.endpoint.flags() & ENDS);
    let urgent = stream.peer().sending.0.urgent.load(Relaxed);
    stream.arrival_stamp() ^ urgent.rotate_left(32) ^ ends.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Registration {
    pub(super) fn new(fd: Fd, socket: &'static Socket, events: u32, data: u64) -> Self {
        Self {
            fd,
            socket,
            events,
            data,
            in_kernel: false,
            in_shadow: false,
            bell_in_shadow: false,
            hot: false,
            idle: 0,
            belled: false,
            urgent: Cell::new(false),
            read: None,
            write: None,
            parked: false,
            disabled: false,
            fresh: true,
            reported: 0,
            stalls: 0,
        }
    }

    /// In a fork child: what was raised and registered is the parent's.
    pub(super) fn forget_parent(&mut self) {
        (self.read, self.write, self.in_shadow) = (None, None, false);
        self.bell_in_shadow = false;
        self.idle = 0;
    }

    /// MOD: as if made anew.
    pub(super) fn modify(&mut self, events: u32, data: u64) {
        (self.events, self.data) = (events, data);
        (self.disabled, self.fresh, self.idle) = (false, true, 0);
    }

    /// Whether events are reported once only.
    pub(super) fn is_one_shot(events: u32) -> bool {
        events & ONE_SHOT != 0
    }

    /// Whether the kernel, which says that it waits for these, will report any.
    pub(super) fn waits_for_any(events: u32) -> bool {
        events & !PRIVATE != 0
    }

    /// Before it leaves the kernel's set, which reported it, or not.
    pub(super) fn was_reported_by_kernel(&mut self, reported: bool) {
        self.disabled = reported;
    }

    /// The program's events, for the kernel's set to go on with.
    pub(super) fn events_for_kernel(&self) -> u32 {
        if self.disabled {
            self.events & PRIVATE
        } else {
            self.events
        }
    }

    /// What the shadow set has to watch on the anchor.
    pub(super) fn kernel_events(&self) -> u32 {
        bit::IN | bit::RDHUP | (self.events & bit::PRI)
    }

    fn bell(&self) -> Option<Fd> {
        self.socket.stream()?.fabric.map(Link::bell)
    }

    /// Puts the link's bell into the shadow set as well.
    pub(super) fn watch_bell(&mut self, shadow: Fd, index: u32) {
        if let Some(bell) = self.bell() {
            let added =
                poll::epoll_ctl(shadow, libc::EPOLL_CTL_ADD, bell, bit::IN, u64::from(index));
            self.bell_in_shadow = added.is_ok();
        }
    }

    /// Takes it out.
    pub(super) fn forget_bell(&mut self, shadow: Fd) {
        if let Some(bell) = self.bell().filter(|_| self.bell_in_shadow) {
            let _ = poll::epoll_ctl(shadow, libc::EPOLL_CTL_DEL, bell, 0, 0);
        }
        self.bell_in_shadow = false;
    }

    /// Nothing was reported of the session that begins.
    pub(super) fn begin_anew(&mut self) {
        let stalls = self.socket.stream().map_or(0, |s| s.endpoint.send.stalls.load(Relaxed));
        // The kernel may have refused a send.
        self.stalls = stalls.wrapping_sub(1);
        self.fresh = true;
        self.belled = false;
    }

    /// What the kernel said of the anchor.
    pub(super) fn note(&mut self, events: u32) {
        self.belled |= events & (bit::IN | bit::PRI) != 0;
        self.urgent.set(events & bit::PRI != 0 && detach::may_tell_urgent_data(self.socket));
    }

    /// The events to report now, if any; remembers that they were.
    pub(super) fn take(&mut self) -> Option<u32> {
        let stream = self.socket.stream()?;
        // Before the look: what comes after it is another edge. What comes during it, and a look at the fabric brings that,
        // is part of this one.
        let mut before = stamp(&stream);
        let mut events = self.due()?;
        for _ in 0..LOOKS {
            let after = stamp(&stream);
            if after == before {
                break;
            }
            before = after;
            events = self.due()?;
        }
        self.reported = before;
        if events & bit::ANY_OUT != 0 {
            // Not for an event without it: the space it waits for comes later.
            self.stalls = stream.endpoint.send.stalls.load(Relaxed);
        }
        self.fresh = false;
        self.idle = 0;
        self.disabled = self.events & ONE_SHOT != 0;
        Some(events)
    }

    /// The events to report now, if any.
    #[inline]
    pub(super) fn due(&self) -> Option<u32> {
        if self.disabled || self.parked {
            return None;
        }
        let stream = self.socket.stream()?;
        let mut events = readiness::of_socket(self.socket, self.events);
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
        (stamp(&stream) != self.reported || space).then_some(events)
    }

    /// Raises the select counters of what it waits for. To be asked [`due`](Self::due) afterwards.
    pub(super) fn arm(&mut self) {
        let Some(stream) = self.socket.stream() else { return };
        // An old ticket may have been used up by a signal since.
        self.disarm();
        self.read = Some(wait::raise_elsewhere(&stream, Event::Read));
        if self.events & bit::ANY_OUT != 0 {
            self.write = Some(wait::raise(&stream, Event::Write));
        }
    }

    /// Longest sleep on this socket, where no doorbell can be relied on.
    pub(super) fn slice(&self) -> Option<u64> {
        let stream = self.socket.stream()?;
        if self.socket.is_pending() {
            return Some(stream.endpoint.unanswered.nap());
        }
        let unbelled = self.waits_unbelled().then_some(wait::UNBELLED_SLICE);
        unbelled.or_else(|| detach::slice(&stream)).or_else(|| far::slice(&stream))
    }

    /// It waits for space, and the peer can not tell.
    fn waits_unbelled(&self) -> bool {
        self.events & bit::ANY_OUT != 0
            && !self.disabled
            && self.socket.stream().is_some_and(|s| {
                s.endpoint.has(wait::SILENT | flag::LEFT | flag::SENDS_TCP)
                    || s.is_kept_from_sending()
            })
    }

    /// It waits for space, and another thread's send for the peer.
    pub(super) fn is_held_up(&self) -> bool {
        self.events & bit::ANY_OUT != 0
            && !self.disabled
            && self.socket.stream().is_some_and(|s| s.is_kept_from_sending())
    }

    /// True if it must be looked at however idle it is.
    pub(super) fn stays_hot(&self) -> bool {
        self.belled
            || self.socket.is_pending()
            || self.waits_unbelled()
            || self.socket.stream().is_some_and(|stream| detach::is_half_left(&stream))
    }

    /// Takes the counters back.
    pub(super) fn disarm(&mut self) {
        let Some(stream) = self.socket.stream() else { return };
        if let Some(ticket) = self.read.take() {
            wait::withdraw(&stream, Event::Read, ticket);
        }
        if let Some(ticket) = self.write.take() {
            wait::withdraw(&stream, Event::Write, ticket);
        }
    }
}
