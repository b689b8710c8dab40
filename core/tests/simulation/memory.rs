//! Memory lent for RDMA, with operations that take as long as the schedule wants and fail when it
//! wants. A copy of the rules of `provider/shm/registration.rs`, without its memory and its atomics.

/// What a registration's word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Closed,
    Open,
    Writing,
}

/// An operation that did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotRegistered;

/// One lent piece of its owner's memory, `at..at + length`.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    key: u32,
    phase: Phase,
    bytes: u32,
    at: usize,
    length: u32,
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
        Registration { key: 0, phase: Phase::Closed, bytes: 0, at: 0, length: 0, position: 0 }
    }

    pub(crate) fn register(&mut self, key: u32, at: usize, length: usize, position: u64) {
        assert!(self.phase == Phase::Closed, "lent twice: one owner of each buffer");
        let length = length as u32;
        *self = Registration { key, phase: Phase::Open, bytes: 0, at, length, position };
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

    pub(crate) fn begin_read(
        &self,
        key: u32,
        length: u32,
        taken: u32,
        room: usize,
    ) -> Result<Reading, NotRegistered> {
        let as_told = self.key == key && self.bytes == taken && self.length == length;
        if self.phase != Phase::Open || !as_told || taken > length {
            return Err(NotRegistered);
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
    pub(crate) fn end_read(&mut self, read: Reading, bytes: usize) -> Result<(), NotRegistered> {
        if self.phase != Phase::Open || self.key != read.key || self.bytes != read.taken {
            return Err(NotRegistered);
        }
        self.bytes += bytes as u32;
        Ok(())
    }

    /// Begins a write into `room` bytes; where they lie in the owner's memory.
    pub(crate) fn begin_write(&mut self, key: u32, room: u32) -> Result<usize, NotRegistered> {
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

    /// The writer died in the middle.
    pub(crate) fn abandon_write(&mut self) {
        if self.phase == Phase::Writing {
            self.phase = Phase::Closed;
            self.bytes = 0;
        }
    }
}
