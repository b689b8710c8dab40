//! The simulated provider: one direction of a connection. Message buffers used cyclically and a
//! send buffer. Published words become visible later, messages in any order; send-buffer
//! bytes never overtake a message, as stores to memory do not.

use crate::rng::Rng;
use sanshim_core::session::Header;
use std::collections::VecDeque;

struct Slot {
    /// What the reader sees; word 0 is the sequence number.
    visible: [u32; 4],
    /// What the writer put there last.
    written: [u32; 4],
    payload: Vec<u8>,
    posted: bool,
}

enum Event {
    Message(u32),
    Bytes(usize),
}

pub(crate) struct Link {
    slots: Vec<Slot>,
    buffer: VecDeque<u8>,
    capacity: usize,
    /// How much of `buffer` the reader sees.
    visible: usize,
    in_flight: Vec<Event>,
    max_payload: usize,
    /// Percentage of delivered headers that a hostile writer spoils.
    pub(crate) hostile: usize,
}

impl Link {
    pub(crate) fn new(slots: usize, max_payload: usize, capacity: usize, hostile: usize) -> Link {
        let slot = || Slot {
            visible: [0; 4],
            written: [0; 4],
            payload: vec![0; max_payload],
            posted: true,
        };
        Link {
            slots: (0..slots).map(|_| slot()).collect(),
            buffer: VecDeque::new(),
            capacity,
            visible: 0,
            in_flight: Vec::new(),
            max_payload,
            hostile,
        }
    }

    fn slot(&mut self, sequence: u32) -> &mut Slot {
        let count = self.slots.len();
        &mut self.slots[sequence as usize % count]
    }

    /// Fills the buffer of message `header`, all but its sequence number. `honest_reader`: the
    /// credits it gave can be relied on, so the buffer must be posted.
    pub(crate) fn fill(&mut self, header: &Header, payload: &[u8], honest_reader: bool) {
        let slot = self.slot(header.sequence);
        assert!(slot.posted || !honest_reader, "message {} overwrites another", header.sequence);
        slot.payload[..payload.len()].copy_from_slice(payload);
    }

    pub(crate) fn publish(&mut self, header: &Header) {
        let slot = self.slot(header.sequence);
        slot.written = header.encode();
        slot.posted = false;
        self.in_flight.push(Event::Message(header.sequence));
    }

    /// The words of message `sequence` if the writer published it, as the writer sees it.
    pub(crate) fn published(&mut self, sequence: u32) -> Option<[u32; 4]> {
        let words = self.slot(sequence).written;
        (words[0] == sequence).then_some(words)
    }

    /// The words of message `sequence` if the reader sees it.
    pub(crate) fn look(&mut self, sequence: u32) -> Option<[u32; 4]> {
        let words = self.slot(sequence).visible;
        (words[0] == sequence).then_some(words)
    }

    pub(crate) fn payload(&mut self, sequence: u32) -> &[u8] {
        &self.slot(sequence).payload
    }

    /// The reader posts the buffer of message `sequence` again.
    pub(crate) fn post(&mut self, sequence: u32, honest_writer: bool) {
        let slot = self.slot(sequence);
        assert!(!slot.posted || !honest_writer, "the buffer of message {sequence} posted twice");
        slot.posted = true;
    }

    /// True if all that was published is visible.
    pub(crate) fn is_quiet(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub(crate) fn buffer_is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    pub(crate) fn space(&self) -> usize {
        self.capacity - self.buffer.len()
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.space());
        self.buffer.extend(bytes);
        self.in_flight.push(Event::Bytes(bytes.len()));
    }

    pub(crate) fn buffered(&self) -> usize {
        self.visible
    }

    pub(crate) fn take(&mut self, count: usize) -> Vec<u8> {
        self.visible -= count;
        self.buffer.drain(..count).collect()
    }

    /// Makes one thing that is under way visible. False: nothing was.
    pub(crate) fn deliver(&mut self, rng: &mut Rng) -> bool {
        if self.in_flight.is_empty() {
            return false;
        }
        let mut chosen = rng.below(self.in_flight.len());
        if matches!(self.in_flight[chosen], Event::Bytes(_)) {
            chosen = 0;
        }
        match self.in_flight.remove(chosen) {
            Event::Bytes(count) => self.visible += count,
            Event::Message(sequence) => {
                let spoil = rng.percent(self.hostile);
                let max_payload = self.max_payload as u64;
                let slot = self.slot(sequence);
                slot.visible = slot.written;
                if spoil {
                    let word = rng.below(4);
                    slot.visible[word] = match rng.below(4) {
                        0 => rng.next() as u32,
                        1 => slot.visible[word].wrapping_add(rng.below(5) as u32).wrapping_sub(2),
                        2 => slot.visible[word] ^ 1 << rng.below(32),
                        _ => (rng.next() % (max_payload + 2)) as u32,
                    };
                }
            }
        }
        true
    }
}
