//! What both ends of a session share: the words of its move, and a lane of bytes for each direction in the place of messages
//! and send buffer, whose order the other simulations check.

use super::agreement::{Agreement, Role};
use super::direction::Direction;
use super::select_counter::SelectCounter;
use super::sync::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::Mutex;

/// Bytes that a lane holds.
pub(super) const CAPACITY: u64 = 24;

/// See the module.
pub(super) struct Segment {
    pub(super) agreement: Agreement,
    sides: [Side; 2],
}

/// What one end publishes.
pub(super) struct Side {
    /// Which way it sends.
    pub(super) word: Direction,
    pub(super) turned_at: AtomicU64,
    /// The hint that it went back.
    pub(super) returned: AtomicU32,
    /// The bytes that it sent, and how many of them count.
    lane: Mutex<Vec<u8>>,
    tail: AtomicU64,
    /// How many of the peer's it read, and where it stopped.
    head: AtomicU64,
    pub(super) stopped_at: AtomicU64,
    /// From where on it sends again by itself.
    pub(super) resent_from: AtomicU64,
    /// Who of it waits for bytes, and for room.
    pub(super) to_read: SelectCounter,
    pub(super) to_write: SelectCounter,
}

impl Side {
    fn new() -> Side {
        Side {
            word: Direction::new(),
            turned_at: AtomicU64::new(0),
            returned: AtomicU32::new(0),
            lane: Mutex::new(Vec::new()),
            tail: AtomicU64::new(0),
            head: AtomicU64::new(0),
            stopped_at: AtomicU64::new(0),
            resent_from: AtomicU64::new(0),
            to_read: SelectCounter::new(),
            to_write: SelectCounter::new(),
        }
    }

    /// Puts what there is room for behind what this end sent; how many. `peer`: who reads it.
    pub(super) fn put(&self, peer: &Side, bytes: &[u8]) -> usize {
        let tail = self.tail.load(SeqCst);
        let room = CAPACITY - (tail - peer.head.load(SeqCst));
        let count = bytes.len().min(room as usize);
        self.lane.lock().unwrap().extend(&bytes[..count]);
        if count > 0 {
            self.tail.store(tail + count as u64, SeqCst);
        }
        count
    }

    /// True if there is room for a byte.
    pub(super) fn has_room(&self, peer: &Side) -> bool {
        self.tail.load(SeqCst) - peer.head.load(SeqCst) < CAPACITY
    }

    /// Takes bytes of the peer's, up to `most`.
    pub(super) fn take(&self, peer: &Side, most: usize) -> Vec<u8> {
        let (head, tail) = (self.head.load(SeqCst), peer.tail.load(SeqCst));
        let count = (tail - head).min(most as u64);
        let bytes = peer.bytes(head, head + count);
        if count > 0 {
            self.head.store(head + count, SeqCst);
        }
        bytes
    }

    /// True if bytes of the peer's are there that this end did not read.
    pub(super) fn has_unread(&self, peer: &Side) -> bool {
        self.head.load(SeqCst) != peer.tail.load(SeqCst)
    }

    /// Publishes that it stops where it is.
    pub(super) fn stop(&self) {
        self.stopped_at.store(self.head.load(SeqCst), SeqCst);
    }

    /// What it sent from there on.
    pub(super) fn sent_from(&self, from: u64) -> Vec<u8> {
        self.bytes(from, self.tail.load(SeqCst))
    }

    /// Publishes from where on the peer, as far as it is known, did not read; how many bytes that is.
    pub(super) fn note_pulled(&self, peer: &Side) -> u64 {
        let head = peer.head.load(SeqCst);
        self.resent_from.store(head, SeqCst);
        self.tail.load(SeqCst) - head
    }

    /// How many bytes of the peer's it read.
    pub(super) fn read(&self) -> u64 {
        self.head.load(SeqCst)
    }

    fn bytes(&self, from: u64, to: u64) -> Vec<u8> {
        self.lane.lock().unwrap()[from as usize..to as usize].to_vec()
    }
}

impl Segment {
    pub(super) fn new() -> Segment {
        Segment { agreement: Agreement::new(), sides: [Side::new(), Side::new()] }
    }

    pub(super) fn side(&self, role: Role) -> &Side {
        &self.sides[role as usize]
    }
}
