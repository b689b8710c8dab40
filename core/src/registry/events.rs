//! The ring of the last events of a process's connections, in its registry file.
//!
//! The process always notes what happens a few times in a connection's life, which costs a handful of stores. It notes
//! what can happen often only while `sanctl trace` says in the header that it follows. The process never waits for a
//! reader. A reader that is too slow loses the oldest events.

use std::sync::atomic::{
    fence, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use super::event::Event;
use super::kernel;
use crate::sys::time;

/// Events that are kept.
pub(super) const EVENTS: usize = 8192;
/// Bytes of an event.
pub(super) const EVENT_SIZE: usize = size_of::<Record>();
/// Events of one page, which gets memory when the first of them is noted.
const PER_PAGE: usize = 4096 / EVENT_SIZE;

/// The events, each at its number modulo [`EVENTS`].
pub(super) type EventRing = [Record; EVENTS];

/// One event.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Record {
    /// One more than the event's number, counted since the process began. Another value while the event is written.
    stamp: AtomicU64,
    /// Monotonic clock (ns).
    time: AtomicU64,
    /// From the top: kind (8 bits), slot (24), descriptor (32).
    what: AtomicU64,
    value: AtomicU64,
}

/// An event as it was noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    /// Monotonic clock (ns).
    pub time: u64,
    /// Which of the process's connections it is about. A later connection may get the number of one that is closed.
    pub connection: usize,
    /// The connection's descriptor at that time.
    pub fd: i32,
    /// What happened.
    pub event: Event,
}

/// The part of the header that tells of the ring.
#[derive(Debug)]
#[repr(C)]
pub(super) struct EventProgress {
    /// Events noted since the process began.
    pub(super) noted: AtomicU64,
    /// A bit for each page of the ring that has memory.
    pages: AtomicU64,
    /// A reader follows until then (monotonic clock, ns). `sanctl` writes this.
    pub(super) followed_until: AtomicU64,
}

const _: () = assert!(EVENTS / PER_PAGE == 64, "a bit for each page");

impl Record {
    /// The event, if it is still the one of this number. It may be written over meanwhile.
    pub(super) fn read(&self, number: u64) -> Option<Noted> {
        if self.stamp.load(Acquire) != number + 1 {
            return None;
        }
        let (time, what) = (self.time.load(Relaxed), self.what.load(Relaxed));
        let event = Event::decode((what >> 56) as u8, self.value.load(Relaxed))?;
        fence(Acquire);
        (self.stamp.load(Relaxed) == number + 1).then_some(Noted {
            time,
            connection: (what >> 32 & 0xff_ffff) as usize,
            fd: what as i32,
            event,
        })
    }

    fn write(&self, number: u64, connection: usize, fd: i32, event: Event) {
        let (kind, value) = event.encode();
        let what = u64::from(kind) << 56 | (connection as u64) << 32 | u64::from(fd as u32);
        self.stamp.store(0, Relaxed);
        fence(Release);
        self.time.store(time::now(), Relaxed);
        self.what.store(what, Relaxed);
        self.value.store(value, Relaxed);
        self.stamp.store(number + 1, Release);
    }
}

impl EventProgress {
    /// Notes an event of the connection in this slot, and the descriptor that it has.
    pub(super) fn note(&self, ring: &EventRing, connection: usize, fd: i32, event: Event) {
        if event.is_frequent() {
            let until = self.followed_until.load(Relaxed);
            if until == 0 || until < time::now() {
                return;
            }
        }
        let number = self.noted.fetch_add(1, Relaxed);
        let at = number as usize % EVENTS;
        let (record, page) = (&ring[at], 1 << (at / PER_PAGE));
        if self.pages.load(Relaxed) & page == 0 {
            // SAFETY: in the ring's mapping, and this event, the only one that may lie there, is written below.
            if unsafe { kernel::reserve(record.stamp.as_ptr().cast()) }.is_err() {
                return;
            }
            self.pages.fetch_or(page, Relaxed);
        }
        record.write(number, connection, fd, event);
    }
}
