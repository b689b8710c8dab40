//! The turn of one direction from TCP to the SAN, at a byte of the stream that both ends know. Its sender says which,
//! once the receiver looks there. Its receiver takes what went over TCP before, and no byte more. This module moves no
//! bytes: callers tell it what the kernel counts.

use super::direction::Direction;
use super::sync::{AtomicU64, Ordering};

/// Which way a sender's next byte goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outbound {
    /// Over TCP.
    Tcp,
    /// Over the SAN, from this position on, since this moment.
    Turned(u64),
    /// Over the SAN, as was said before.
    San,
}

/// A sender that sent over TCP is about to send: turns if the receiver is ready. `written`: how many bytes it put on the TCP
/// connection; `again`: whether to try once more, after so many attempts, where the receiver takes bytes off at this very moment
/// (it does not wait there). Under the sender's lock.
pub(crate) fn turn(
    word: &Direction,
    turned_at: &AtomicU64,
    written: impl FnOnce() -> Option<u64>,
    again: impl Fn(u32) -> bool,
) -> Outbound {
    let state = word.state();
    if state.turned {
        return Outbound::San;
    }
    if !state.entered || state.is_final() {
        return Outbound::Tcp;
    }
    let Some(position) = written() else { return Outbound::Tcp };
    // Before the word says that it holds.
    turned_at.store(position, Ordering::Release);
    let mut attempts = 0;
    while !word.turn() {
        attempts += 1;
        if !again(attempts) {
            return Outbound::Tcp;
        }
    }
    Outbound::Turned(position)
}

/// Where a receiver's next byte is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inbound {
    /// In the kernel, and so are those behind it.
    Tcp,
    /// So many of them in the kernel, then in the segment.
    Before(u64),
    /// In the segment: so many went over TCP.
    San(u64),
}

/// The sender's word and its position do not fit what the kernel counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Misplaced;

/// How far a receiver is with what came over TCP. Its end's own.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct OverTcp {
    /// One above the bytes that the peer sent there before it turned; zero: not known yet.
    turned_at: AtomicU64,
    /// Bytes that this end has taken there, in all: what the kernel tells no more once the connection is over.
    taken: AtomicU64,
}

impl OverTcp {
    /// Nothing came.
    #[cfg(test)]
    pub(crate) const fn new() -> Self {
        OverTcp { turned_at: AtomicU64::new(0), taken: AtomicU64::new(0) }
    }

    /// The end enters after so many bytes.
    pub(crate) fn begin(&self, taken: u64) {
        self.taken.store(taken, Ordering::Relaxed);
    }

    /// It took so many more.
    pub(crate) fn took(&self, bytes: u64) {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that it has taken there, in all.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Where the next byte is. `taken`: how many bytes the kernel says were taken, while it does. Under the receiver's lock.
    pub(crate) fn next(
        &self,
        word: &Direction,
        turned_at: &AtomicU64,
        taken: impl FnOnce() -> Option<u64>,
    ) -> Result<Inbound, Misplaced> {
        let state = word.state();
        if !state.turned {
            return Ok(Inbound::Tcp);
        }
        let at = match self.turned_at.load(Ordering::Relaxed) {
            0 => {
                // Once: the peer can write there at any time.
                let at = turned_at.load(Ordering::Acquire);
                let noted = at.checked_add(1).ok_or(Misplaced)?;
                self.turned_at.store(noted, Ordering::Relaxed);
                at
            }
            noted => noted - 1,
        };
        let left = match taken() {
            Some(taken) if taken > at => return Err(Misplaced),
            Some(taken) => at - taken,
            None => at.saturating_sub(self.taken()),
        };
        Ok(if left > 0 { Inbound::Before(left) } else { Inbound::San(at) })
    }
}
