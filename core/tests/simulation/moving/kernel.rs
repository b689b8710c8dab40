//! The TCP connection between both ends, and the bell of each, as their kernel has them. Bytes that are sent are there at once, as far as there is room.

use super::schedule::Ready;
use crate::rng::Rng;
use std::collections::VecDeque;

/// Why a call moved nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Error {
    Again,
    Reset,
    Pipe,
}

/// How a direction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Fin,
    Reset,
    /// The same, and its reader was told.
    Told,
}

#[derive(Debug)]
struct Direction {
    queue: VecDeque<u8>,
    written: u64,
    taken: u64,
    ending: Option<Ending>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Kernel {
    /// `directions[i]` carries what end i sends.
    directions: [Direction; 2],
    /// Most bytes that are sent and not taken, and how many of them have reached their receiver for certain.
    room: usize,
    window: usize,
    /// `bells[i]` wakes end i.
    bells: [bool; 2],
    dead: [bool; 2],
    /// Bytes of a dead end that a reset took away.
    pub(super) lost: usize,
}

impl Kernel {
    pub(super) fn new(room: usize, window: usize) -> Kernel {
        let direction = || Direction { queue: VecDeque::new(), written: 0, taken: 0, ending: None };
        Kernel {
            directions: [direction(), direction()],
            room,
            window,
            bells: [false; 2],
            dead: [false; 2],
            lost: 0,
        }
    }

    pub(super) fn send(&mut self, end: usize, bytes: &[u8]) -> Result<usize, Error> {
        if self.dead[1 - end] {
            return Err(Error::Pipe);
        }
        let direction = &mut self.directions[end];
        let sent = bytes.len().min(self.room - direction.queue.len());
        if sent == 0 && !bytes.is_empty() {
            return Err(Error::Again);
        }
        direction.queue.extend(&bytes[..sent]);
        direction.written += sent as u64;
        Ok(sent)
    }

    /// Takes what is there, up to `most` bytes; nothing at the end.
    pub(super) fn receive(&mut self, end: usize, most: usize) -> Result<Vec<u8>, Error> {
        let direction = &mut self.directions[1 - end];
        if direction.queue.is_empty() {
            return match direction.ending {
                None => Err(Error::Again),
                Some(Ending::Reset) => {
                    direction.ending = Some(Ending::Told);
                    Err(Error::Reset)
                }
                Some(_) => Ok(Vec::new()),
            };
        }
        let count = most.min(direction.queue.len());
        direction.taken += count as u64;
        Ok(direction.queue.drain(..count).collect())
    }

    /// Bytes that this end ever sent; `None` once the connection is over.
    pub(super) fn written(&self, end: usize) -> Option<u64> {
        (!self.is_over(end)).then_some(self.directions[end].written)
    }

    /// For how many bytes there is room.
    pub(super) fn room(&self, end: usize) -> u64 {
        (self.room - self.directions[end].queue.len()) as u64
    }

    /// Bytes that this end ever took, likewise.
    pub(super) fn taken(&self, end: usize) -> Option<u64> {
        (!self.is_over(end)).then_some(self.directions[1 - end].taken)
    }

    fn is_over(&self, end: usize) -> bool {
        matches!(self.directions[1 - end].ending, Some(Ending::Reset | Ending::Told))
    }

    /// True if a read would not wait, or if there is room to send, or nobody to send to.
    pub(super) fn is(&self, end: usize, ready: Ready) -> bool {
        match ready {
            Ready::Readable => !self.directions[1 - end].queue.is_empty() || self.has_ended(end),
            Ready::Writable => self.directions[end].queue.len() < self.room || self.dead[1 - end],
            Ready::Rung { reads_tcp, sends_tcp } => {
                self.bells[end]
                    || self.has_ended(end)
                    || (reads_tcp && self.is(end, Ready::Readable))
                    || (sends_tcp && self.is(end, Ready::Writable))
            }
        }
    }

    /// Wakes the sleepers of this end.
    pub(super) fn ring(&mut self, end: usize) {
        self.bells[end] = true;
    }

    /// Takes the rings off this end's bell.
    pub(super) fn silence(&mut self, end: usize) {
        self.bells[end] = false;
    }

    /// True if this end's bell rings.
    pub(super) fn rings(&self, end: usize) -> bool {
        self.bells[end]
    }

    /// True if the peer is gone, whatever is still to be read.
    pub(super) fn has_ended(&self, end: usize) -> bool {
        self.directions[1 - end].ending.is_some()
    }

    /// True if it is gone by a reset.
    pub(super) fn is_reset(&self, end: usize) -> bool {
        self.is_over(end)
    }

    /// The processes of this end are killed: with bytes unread the kernel resets the connection, and of what it had not
    /// delivered nothing comes.
    pub(super) fn die(&mut self, end: usize, rng: &mut Rng) {
        self.dead[end] = true;
        let is_reset = !self.directions[1 - end].queue.is_empty();
        let direction = &mut self.directions[end];
        direction.ending = Some(if is_reset { Ending::Reset } else { Ending::Fin });
        let there = direction.queue.len();
        if is_reset && there > self.window {
            direction.queue.truncate(rng.range(self.window, there));
            self.lost = there - direction.queue.len();
        }
    }
}
