//! Memory lent for RDMA, with operations that take as long as the schedule wants and fail when it
//! wants. A copy of the rules of `provider/shm/registration.rs`, without its memory and its atomics.

/// What a registration's word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Closed,
    Open,
    Writing,
}

/// Why an operation did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    NotRegistered,
    /// The owner of the memory died.
    Gone,
}
use Refusal::NotRegistered;

/// One lent piece of its owner's memory, `at..at + length`.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    key: u32,
    phase: Phase,
    bytes: u32,
    at: usize,
    length: u32,
    /// Its owner died, or the thread that writes to it.
    owner_died: bool,
    writer_died: bool,
    /// Number of what was lent before this, and the bytes that went of it.
    before: (u32, u32),
    /// Where its bytes stand in the stream: told by the sender, for the checks alone.
    pub(crate) position: u64,
}

/// A read that has begun: it takes effect only if nothing has changed when it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    key: u32,
    taken: u32,
    /// Where the bytes lie in the owner's memory, and how many.
    pub(crate) at: usize,
    pub(crate) length: usize,
    pub(crate) position: u64,
}

impl Registration {
    pub(crate) fn new() -> Registration {
        let ([owner_died, writer_died], before) = ([false; 2], (0, 0));
        let (key, phase, bytes, at, length, position) = (0, Phase::Closed, 0, 0, 0, 0);
        Registration { key, phase, bytes, at, length, owner_died, writer_died, before, position }
    }

    pub(crate) fn register(&mut self, key: u32, at: usize, length: usize, position: u64) {
        assert!(self.phase == Phase::Closed, "lent twice: one owner of each buffer");
        let length = length as u32;
        let (phase, before) = (Phase::Open, (self.key, self.bytes));
        *self = Registration { key, phase, at, length, position, before, ..Registration::new() };
    }

    /// `None`: the peer is writing at this moment.
    pub(crate) fn deregister(&mut self) -> Option<u32> {
        if self.phase == Phase::Writing {
            return None;
        }
        self.phase = Phase::Closed;
        Some(self.bytes)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    pub(crate) fn done(&self) -> u32 {
        self.bytes
    }

    /// What went of number `key`, if no more than one other has followed.
    pub(crate) fn done_of(&self, key: u32) -> Option<u32> {
        let known = [(self.key, self.bytes), self.before];
        known.into_iter().find(|known| known.0 == key).map(|known| known.1)
    }

    pub(crate) fn owner_dies(&mut self) {
        self.owner_died = true;
    }

    pub(crate) fn writer_dies(&mut self) {
        self.writer_died = self.phase == Phase::Writing;
    }

    pub(crate) fn is_owner_dead(&self) -> bool {
        self.owner_died
    }

    pub(crate) fn begin_read(
        &self,
        key: u32,
        length: u32,
        taken: u32,
        room: usize,
    ) -> Result<Reading, Refusal> {
        let as_told = self.key == key && self.bytes == taken && self.length == length;
        if self.phase != Phase::Open || !as_told || taken > length {
            return Err(NotRegistered);
        }
        if self.owner_died {
            return Err(Refusal::Gone);
        }
        let left = (length - taken) as usize;
        Ok(Reading {
            key,
            taken,
            at: self.at + taken as usize,
            length: room.min(left),
            position: self.position + u64::from(taken),
        })
    }

    /// Ends a read that got `bytes`.
    pub(crate) fn end_read(&mut self, read: Reading, bytes: usize) -> Result<(), Refusal> {
        if self.phase != Phase::Open || self.key != read.key || self.bytes != read.taken {
            return Err(NotRegistered);
        }
        self.bytes += bytes as u32;
        Ok(())
    }

    /// Begins a write into `room` bytes; where they lie in the owner's memory.
    pub(crate) fn begin_write(&mut self, key: u32, room: u32) -> Result<usize, Refusal> {
        if self.phase != Phase::Open || self.key != key || self.bytes != 0 || self.length != room {
            return Err(NotRegistered);
        }
        self.phase = Phase::Writing;
        Ok(self.at)
    }

    /// Ends a write of the bytes from `position` of the stream on.
    pub(crate) fn end_write(&mut self, bytes: usize, position: u64) {
        assert!(self.phase == Phase::Writing && bytes <= self.length as usize);
        self.position = position;
        self.phase = Phase::Closed;
        self.bytes = bytes as u32;
    }

    /// Ends a write whose writer died in the middle: `alone`, or with its end.
    pub(crate) fn end_write_of_the_dead(&mut self, with_its_end: bool) {
        if self.phase == Phase::Writing && (with_its_end || self.writer_died) {
            self.phase = Phase::Closed;
            self.bytes = 0;
        }
    }
}
