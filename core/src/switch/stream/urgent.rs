//! The urgent mark and its byte, at both ends (S8). The byte is in the stream, as in TCP: what is urgent about it is that
//! it can be read before its turn, and that who does not read it inline passes it over.

use super::{Broken, Stream};
use crate::session::{Gone, Mark};
use crate::switch::endpoint::flag;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

/// How far a read reaches: what it passes over before it takes anything, and how much it takes before the next mark.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    /// Bytes of the stream read before it.
    start: u64,
    wanted: usize,
    /// The mark that it knows of.
    mark: Option<Mark>,
    /// Bytes it passes over.
    pub passed_over: u64,
    /// The mark that is among them, or that it begins at.
    pub passes: Option<Mark>,
    /// Bytes it takes at most.
    pub most: usize,
}

impl Stream<'_> {
    /// Publishes that the next byte to be sent is urgent, and which. Send lock.
    pub fn mark_urgent(&self, byte: u8) {
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
    pub fn has_mark_ahead(&self) -> bool {
        self.mark_ahead().is_some()
    }

    /// How far a read reaches that wants so much. Receive lock.
    #[inline]
    pub(super) fn reach(&self, wanted: usize) -> Reach {
        let start = self.endpoint.receive.total();
        let mut reach =
            Reach { start, wanted, mark: None, passed_over: 0, passes: None, most: wanted };
        self.renew(&mut reach, 0);
        reach
    }

    /// After data was found, before it is taken: a mark that was set meanwhile counts, as it comes before its byte.
    /// `skipped`: how many bytes the read has passed over.
    #[inline]
    pub(super) fn renew(&self, reach: &mut Reach, skipped: u64) {
        let mark = self.mark_ahead();
        if mark != reach.mark {
            reach.mark = mark;
            self.reach_around(reach, skipped);
        }
    }

    #[cold]
    fn reach_around(&self, reach: &mut Reach, skipped: u64) {
        let Some(mark) = reach.mark else { return };
        let inline = self.endpoint.has(flag::URGENT_INLINE);
        if skipped == 0 {
            let gone = if inline { 0 } else { Gone(self.gone()).ahead(reach.start) };
            let at_it = mark.is_at(reach.start.wrapping_add(gone));
            reach.passes = at_it.then_some(mark);
            reach.passed_over = gone + u64::from(at_it && !inline);
            if reach.wanted == 0 {
                reach.passed_over = 0;
            }
            if at_it {
                reach.most = reach.wanted;
                return;
            }
        }
        reach.most = match mark.ahead(reach.start.wrapping_add(reach.passed_over)) {
            // A peer that sets marks where it has sent already spoils nothing but its own.
            0 => reach.wanted,
            ahead => reach.wanted.min(usize::try_from(ahead).unwrap_or(usize::MAX)),
        };
    }

    fn gone(&self) -> u64 {
        self.peer().sending.0.gone.load(Relaxed)
    }

    /// Bytes that a read could take now. Receive lock.
    pub fn unread(&self) -> Result<u64, Broken> {
        let available = self.available()?;
        Ok(available.saturating_sub(self.reach(1).passed_over))
    }

    /// The same as FIONREAD tells it: those before the mark. Receive lock.
    pub fn before_urgent(&self) -> Result<u64, Broken> {
        let available = self.available()?;
        let Some(mark) = self.mark_ahead().filter(|_| !self.endpoint.has(flag::URGENT_INLINE))
        else {
            return Ok(available);
        };
        let total = self.endpoint.receive.total();
        let ahead = if mark.is_at(total) { 0 } else { available.min(mark.ahead(total)) };
        Ok(ahead.saturating_sub(Gone(self.gone()).ahead(total)))
    }

    /// The urgent mark, if the next byte to read is the one after it (SIOCATMARK).
    #[inline]
    pub fn at_mark(&self) -> Option<Mark> {
        self.mark_ahead().filter(|mark| mark.is_at(self.endpoint.receive.total()))
    }

    /// What is read next comes after this mark; false if somebody else was first.
    pub fn pass_mark(&self, mark: Mark) -> bool {
        self.endpoint.receive.urgent_passed.swap(mark.0, AcqRel) != mark.0
    }

    /// True if there is an urgent byte that was neither read nor passed (EPOLLPRI).
    #[inline]
    pub fn is_urgent(&self) -> bool {
        self.mark_ahead()
            .is_some_and(|mark| mark.0 != self.endpoint.receive.urgent_read.load(Relaxed))
    }

    /// The urgent byte out of its place, once: with `keep` it can be read again.
    pub fn read_urgent(&self, keep: bool) -> Option<u8> {
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
