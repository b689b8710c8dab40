//! The urgent mark and its byte, at both ends (S8).

use super::{Stream, Take};
use crate::session::Mark;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

impl Stream<'_> {
    /// Publishes an urgent byte at the present position. Send lock.
    pub fn mark_urgent(&self, byte: u8) {
        let urgent = &self.own().sending.0.urgent;
        let mark = Mark(urgent.load(Relaxed)).next(self.endpoint.send.total(), byte);
        urgent.store(mark.0, SeqCst);
    }

    /// True if an urgent byte was sent last. What follows goes in messages: a receive that was posted
    /// before may want that byte first (SO_OOBINLINE). Send lock.
    pub(super) fn is_behind_own_mark(&self) -> bool {
        let mark = Mark(self.own().sending.0.urgent.load(Relaxed));
        mark != Mark(0) && mark.is_at(self.endpoint.send.total())
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

    /// How much may be read before the urgent mark; a read that begins at the mark passes it, as in TCP also where it
    /// finds nothing.
    #[inline]
    pub(super) fn until_urgent(&self, wanted: usize, take: Take) -> usize {
        let Some(mark) = self.mark_ahead() else { return wanted };
        let ahead = mark.ahead(self.endpoint.receive.total());
        if ahead == 0 {
            if take != Take::Peek && wanted > 0 {
                self.pass_mark(mark);
            }
            return wanted;
        }
        wanted.min(usize::try_from(ahead).unwrap_or(usize::MAX))
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
