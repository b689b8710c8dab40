//! One socket's registration in a set. When it is due to be reported is [`readiness`](crate::switch::readiness)'s to say.

use crate::fabric::Link;
use crate::session::Ticket;
use crate::switch::event_bits as bit;
use crate::switch::socket::Socket;
use crate::switch::stream::counters::{self, Event};
use crate::sys::{poll, Fd};
use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

pub(in crate::switch) const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;

/// Bits that say how events are reported.
const PRIVATE: u32 =
    (libc::EPOLLWAKEUP | libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE) as u32;

/// See the module.
pub(in crate::switch) struct Registration {
    /// The descriptor it was made with: with the socket, its name (as in the kernel).
    pub(in crate::switch) fd: Fd,
    pub(in crate::switch) socket: &'static Socket,
    /// The program's events and data, untouched.
    pub(in crate::switch) events: u32,
    pub(in crate::switch) data: u64,
    /// In the kernel's own set, because the socket is not on the SAN (yet).
    pub(in crate::switch) in_kernel: bool,
    /// In the shadow set; not any more once the anchor's stream ended.
    pub(in crate::switch) in_shadow: bool,
    /// The link's bell is too, where the peer is on another host.
    pub(in crate::switch) bell_in_shadow: bool,
    pub(in crate::switch) hot: bool,
    /// Looks in a row that found nothing.
    pub(in crate::switch) idle: u32,
    /// A doorbell byte lies on the anchor.
    pub(in crate::switch) belled: bool,
    /// EPOLLPRI of what came by TCP, as the kernel reported it last.
    pub(in crate::switch) urgent: Cell<bool>,
    pub(in crate::switch) read: Option<Ticket>,
    pub(in crate::switch) write: Option<Ticket>,
    /// Deleted by the program; kept, because it is likely to be added again. Reports nothing.
    pub(in crate::switch) parked: bool,
    /// ONESHOT was reported, or nothing is wanted.
    pub(in crate::switch) disabled: bool,
    /// Nothing was reported since ADD or MOD: the next readiness is an edge.
    pub(in crate::switch) fresh: bool,
    pub(in crate::switch) reported: u64,
    pub(in crate::switch) stalls: u32,
}

impl Registration {
    pub(in crate::switch) fn new(fd: Fd, socket: &'static Socket, events: u32, data: u64) -> Self {
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
    pub(in crate::switch) fn forget_parent(&mut self) {
        (self.read, self.write, self.in_shadow) = (None, None, false);
        self.bell_in_shadow = false;
        self.idle = 0;
    }

    /// MOD: as if made anew.
    pub(in crate::switch) fn modify(&mut self, events: u32, data: u64) {
        (self.events, self.data) = (events, data);
        (self.disabled, self.fresh, self.idle) = (false, true, 0);
    }

    /// Whether events are reported once only.
    pub(in crate::switch) fn is_one_shot(events: u32) -> bool {
        events & ONE_SHOT != 0
    }

    /// Whether the kernel, which says that it waits for these, will report any.
    pub(in crate::switch) fn waits_for_any(events: u32) -> bool {
        events & !PRIVATE != 0
    }

    /// Before it leaves the kernel's set, which reported it, or not.
    pub(in crate::switch) fn was_reported_by_kernel(&mut self, reported: bool) {
        self.disabled = reported;
    }

    /// The program's events, for the kernel's set to go on with.
    pub(in crate::switch) fn events_for_kernel(&self) -> u32 {
        if self.disabled {
            self.events & PRIVATE
        } else {
            self.events
        }
    }

    /// What the shadow set has to watch on the anchor.
    pub(in crate::switch) fn kernel_events(&self) -> u32 {
        bit::IN | bit::RDHUP | (self.events & bit::PRI)
    }

    fn bell(&self) -> Option<Fd> {
        self.socket.stream()?.fabric.map(Link::bell)
    }

    /// Puts the link's bell into the shadow set as well.
    pub(in crate::switch) fn watch_bell(&mut self, shadow: Fd, index: u32) {
        if let Some(bell) = self.bell() {
            let added =
                poll::epoll_ctl(shadow, libc::EPOLL_CTL_ADD, bell, bit::IN, u64::from(index));
            self.bell_in_shadow = added.is_ok();
        }
    }

    /// Takes it out.
    pub(in crate::switch) fn forget_bell(&mut self, shadow: Fd) {
        if let Some(bell) = self.bell().filter(|_| self.bell_in_shadow) {
            let _ = poll::epoll_ctl(shadow, libc::EPOLL_CTL_DEL, bell, 0, 0);
        }
        self.bell_in_shadow = false;
    }

    /// Nothing was reported of the session that begins.
    pub(in crate::switch) fn begin_anew(&mut self) {
        let stalls = self.socket.stream().map_or(0, |s| s.endpoint.send.stalls.load(Relaxed));
        // The kernel may have refused a send.
        self.stalls = stalls.wrapping_sub(1);
        self.fresh = true;
        self.belled = false;
    }

    /// Takes the counters back.
    pub(in crate::switch) fn disarm(&mut self) {
        let Some(stream) = self.socket.stream() else { return };
        if let Some(ticket) = self.read.take() {
            counters::withdraw(&stream, Event::Read, ticket);
        }
        if let Some(ticket) = self.write.take() {
            counters::withdraw(&stream, Event::Write, ticket);
        }
    }
}
