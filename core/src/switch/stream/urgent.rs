//! The urgent mark and its byte, at both ends (S8). The byte is in the stream, as in TCP. Two things are urgent about it:
//! it can be read before its turn, and a reader that does not read it inline passes it over.

use super::Broken;
use super::Stream;
use crate::session::{Gone, Mark, Omitted};
use crate::switch::endpoint::flag;
use crate::sys::process;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

/// How often, in yields, the receive lock is tried by who reads the urgent byte.
const ATTEMPTS: u32 = 100;

/// How far a read reaches: what it passes over before it takes anything, and how much it takes before the next mark.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    /// Bytes of the stream read before it.
    start: u64,
    wanted: usize,
    /// Bytes were taken in the same call: it ends at a mark.
    partial: bool,
    /// The mark that it knows of.
    mark: Option<Mark>,
    /// Bytes it passes over.
    passed_over: u64,
    /// The mark that is among them, or that it begins at.
    passes: Option<Mark>,
    /// Bytes it takes at most.
    most: usize,
    /// Bytes it has passed over.
    skipped: u64,
    /// Bytes it has taken.
    pub(super) taken: usize,
}

impl Reach {
    /// How many of the next bytes it passes over (true), or takes.
    #[inline]
    pub(super) fn next(&self) -> (bool, usize) {
        match self.passed_over - self.skipped {
            0 => (false, self.most.saturating_sub(self.taken)),
            bytes => (true, bytes as usize),
        }
    }

    /// It has done so with `n` of them.
    #[inline]
    pub(super) fn went(&mut self, skips: bool, n: usize) {
        if skips {
            self.skipped += n as u64;
        } else {
            self.taken += n;
        }
    }

    /// Bytes it has passed over or taken.
    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.skipped + self.taken as u64
    }
}

/// What is urgent of the bytes that a receiver left unread, and what is no part of the stream any more. Places
/// count from the first of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Places {
    /// What is not to be sent again.
    pub(crate) omitted: Omitted,
    /// How many come before the newest urgent byte, if it is among them.
    pub(crate) urgent: Option<u64>,
}

/// How many bytes come before the mark, for a reader that has read `total`, if it did not pass it.
fn place(mark: Mark, total: u64) -> Option<u64> {
    match mark.ahead(total) {
        _ if mark == Mark(0) => None,
        0 => mark.is_at(total).then_some(0),
        ahead => Some(ahead),
    }
}

impl Stream<'_> {
    /// Of the bytes that this end leaves unread. Receive lock.
    pub(crate) fn places_left(&self) -> Places {
        let receive = &self.endpoint.receive;
        let total = receive.total();
        let (mark, inline) = (self.mark_ahead(), self.endpoint.has(flag::URGENT_INLINE));
        let urgent = mark.and_then(|mark| place(mark, total));
        let is_read = !inline && self.mark().0 == receive.urgent_read.load(Relaxed);
        let gone = if inline { 0 } else { Gone(self.gone()).ahead(total) };
        Places { omitted: Omitted::new(gone, urgent.filter(|_| is_read)), urgent }
    }

    /// As [`places_left`](Self::places_left) once reading has stopped, when what is omitted is fixed.
    pub(crate) fn places_recalled(&self) -> Places {
        let omitted = Omitted(self.own().receiving.0.omitted.load(Relaxed));
        let total = self.endpoint.receive.total();
        Places { omitted, urgent: self.mark_ahead().and_then(|mark| place(mark, total)) }
    }

    /// The same at the sender, of the bytes that the peer left unread. Send lock.
    pub(crate) fn places_unread(&self) -> Places {
        let receiving = &self.peer().receiving.0;
        let mark = Mark(self.own().sending.0.urgent.load(Relaxed));
        let urgent = place(mark, receiving.total.load(Acquire));
        Places { omitted: Omitted(receiving.omitted.load(Relaxed)), urgent }
    }

    /// Publishes that the next byte to be sent is urgent, and which. Send lock.
    pub(crate) fn mark_urgent(&self, byte: u8) {
        let sending = &self.own().sending.0;
        let before = Mark(sending.urgent.load(Relaxed));
        if before != Mark(0) {
            let read = self.peer().receiving.0.total.load(Acquire);
            let gone = Gone(sending.gone.load(Relaxed)).with(before, read);
            sending.gone.store(gone.0, Relaxed);
        }
        let mark = before.next(self.endpoint.send.total(), byte);
        sending.urgent.store(mark.0, SeqCst);
    }

    /// True if an urgent byte was sent last. What follows goes in messages: a receive that was posted
    /// before ends at the mark. Send lock.
    pub(super) fn is_behind_own_mark(&self) -> bool {
        let mark = Mark(self.own().sending.0.urgent.load(Relaxed));
        mark != Mark(0) && mark.is_at(self.endpoint.send.total().wrapping_sub(1))
    }

    #[inline]
    fn mark(&self) -> Mark {
        Mark(self.peer().sending.0.urgent.load(Acquire))
    }

    /// The peer's newest mark, if no read passed it.
    #[inline]
    pub(super) fn mark_ahead(&self) -> Option<Mark> {
        let mark = self.mark();
        (mark.0 != self.endpoint.receive.urgent_passed.load(Relaxed)).then_some(mark)
    }

    /// True if no read passed the newest mark.
    #[inline]
    pub(crate) fn has_mark_ahead(&self) -> bool {
        self.mark_ahead().is_some()
    }

    /// How far a read reaches that wants so much; `partial`: its call has taken bytes. Receive lock.
    #[inline]
    pub(super) fn reach(&self, wanted: usize, partial: bool) -> Reach {
        let start = self.endpoint.receive.total();
        let mut reach = Reach {
            start,
            wanted,
            partial,
            mark: None,
            passed_over: 0,
            passes: None,
            most: wanted,
            skipped: 0,
            taken: 0,
        };
        self.renew(&mut reach);
        reach
    }

    /// After data was found, before it is taken: a mark that was set meanwhile counts, as it comes before its byte.
    #[inline]
    pub(super) fn renew(&self, reach: &mut Reach) {
        let mark = self.mark_ahead();
        if mark != reach.mark {
            *reach = self.reach_around(Reach { mark, ..*reach });
        }
    }

    /// The reach again, with the mark that it has come to know of.
    #[cold]
    fn reach_around(&self, mut reach: Reach) -> Reach {
        let Some(mark) = reach.mark.filter(|_| reach.wanted > 0) else { return reach };
        let inline = self.endpoint.has(flag::URGENT_INLINE);
        if reach.taken == 0 {
            let here = reach.start.wrapping_add(reach.skipped);
            let gone = if inline { 0 } else { Gone(self.gone()).ahead(here) };
            reach.passed_over = reach.skipped + gone;
            if mark.is_at(here.wrapping_add(gone)) {
                if reach.partial {
                    reach.most = 0;
                } else {
                    reach.passed_over += u64::from(!inline);
                    reach.passes = Some(mark);
                    reach.most = reach.wanted;
                }
                return reach;
            }
        }
        reach.most = match mark.ahead(reach.start.wrapping_add(reach.passed_over)) {
            0 => {
                // Whoever read on from it died before that was noted.
                self.pass_mark(mark);
                reach.wanted
            }
            ahead => reach.wanted.min(usize::try_from(ahead).unwrap_or(usize::MAX)),
        };
        reach
    }

    /// A read reached so far: it has passed the mark that it began at. Receive lock.
    #[inline]
    pub(super) fn reached(&self, reach: &Reach) {
        if reach.skipped == reach.passed_over && reach.bytes() > 0 {
            if let Some(mark) = reach.passes {
                self.pass_mark(mark);
            }
        }
    }

    fn gone(&self) -> u64 {
        self.peer().sending.0.gone.load(Relaxed)
    }

    /// Bytes that a read could take now. Receive lock.
    pub(crate) fn unread(&self) -> Result<u64, Broken> {
        let available = self.available()?;
        Ok(available.saturating_sub(self.reach(1, false).passed_over))
    }

    /// The same as FIONREAD tells it: those before the mark. Receive lock.
    pub(crate) fn before_urgent(&self) -> Result<u64, Broken> {
        let available = self.available()?;
        let Some(mark) = self.mark_ahead().filter(|_| !self.endpoint.has(flag::URGENT_INLINE))
        else {
            return Ok(available);
        };
        let (gone, next) = self.next_byte();
        let unread = available.saturating_sub(gone);
        Ok(match mark.ahead(next) {
            0 if mark.is_at(next) => 0,
            0 => unread,
            ahead => unread.min(ahead),
        })
    }

    /// How many of the next bytes are gone for this end, and the position of the first that is not.
    fn next_byte(&self) -> (u64, u64) {
        let total = self.endpoint.receive.total();
        let inline = self.endpoint.has(flag::URGENT_INLINE);
        let gone = if inline { 0 } else { Gone(self.gone()).ahead(total) };
        (gone, total.wrapping_add(gone))
    }

    /// The urgent mark, if its byte is the next to read (SIOCATMARK), or would be after `beyond` others.
    #[inline]
    pub(crate) fn mark_at(&self, beyond: usize) -> Option<Mark> {
        let at_it = |mark: &Mark| mark.is_at(self.next_byte().1.wrapping_add(beyond as u64));
        self.mark_ahead().filter(at_it)
    }

    /// What is read next comes after this mark; false if somebody else was first.
    pub(crate) fn pass_mark(&self, mark: Mark) -> bool {
        self.endpoint.receive.urgent_passed.swap(mark.0, AcqRel) != mark.0
    }

    /// True if there is an urgent byte that was neither read nor passed (EPOLLPRI).
    #[inline]
    pub(crate) fn is_urgent(&self) -> bool {
        let read = &self.endpoint.receive.urgent_read;
        self.mark_ahead().is_some_and(|mark| mark.0 != read.load(Relaxed))
            && !self.endpoint.has(flag::READ_OUT)
    }

    /// True if this end reads nothing more from the segment, and the peer sends again what it did not.
    fn has_stopped_reading(&self) -> bool {
        self.endpoint.has(flag::READ_OUT) || self.peer().sending.0.doorbells.state().recalled
    }

    /// The urgent byte out of its place, once: with `keep` it can be read again.
    pub(crate) fn read_urgent(&self, keep: bool) -> Option<u8> {
        // Reading may stop meanwhile, and what was read is sent no second time. A signal handler may have interrupted
        // who has the lock: it goes without.
        let lock = &self.endpoint.receive.lock;
        let _held = (0..ATTEMPTS).find_map(|_| {
            let held = self.borrow(lock);
            if held.is_none() {
                process::yield_now();
            }
            held
        });
        if self.has_stopped_reading() {
            return None;
        }
        let mark = self.mark_ahead()?;
        let read = &self.endpoint.receive.urgent_read;
        let before = read.load(Relaxed);
        if mark.0 == before {
            return None;
        }
        let first = keep || read.compare_exchange(before, mark.0, AcqRel, Relaxed).is_ok();
        first.then(|| mark.byte())
    }
}
