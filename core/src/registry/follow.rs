//! Follows what happens to a process's connections: the reader of its ring of events.
//!
//! Another process wrote all of it, so the reader checks every value.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use super::events::{EventProgress, Noted, Record, EVENTS, EVENT_SIZE};
use super::file::{fill, header_of, zeroed};
use super::layout::{RegistryHeader, EVENTS_AT};
use super::place::RegistryPlace;
use crate::sys::time;

/// Reads the events of a process, beginning with the oldest that is kept.
pub struct Follower {
    file: File,
    place: RegistryPlace,
    /// Number of the next event.
    next: u64,
}

/// The events of one read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// The events, oldest first.
    pub events: Vec<Noted>,
    /// How many events before them were written over, or make no sense to this version.
    pub lost: u64,
}

impl Follower {
    /// Follows the process that publishes there.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened, or is not of this version.
    pub fn of(place: &RegistryPlace) -> io::Result<Follower> {
        // Only a reader that may write there can ask for frequent events.
        let file = place.open(true).or_else(|_| place.open(false))?;
        let follower = Follower { file, place: place.clone(), next: 0 };
        follower.header().map(|_| follower)
    }

    /// Passes over all that has happened so far.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn pass_over(&mut self) -> io::Result<()> {
        self.next = self.header()?.events.noted.load(Ordering::Relaxed);
        Ok(())
    }

    /// The events since the last read.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or makes no sense any more.
    pub fn read(&mut self) -> io::Result<Events> {
        let noted = self.header()?.events.noted.load(Ordering::Relaxed);
        let first = self.next.max(noted.saturating_sub(EVENTS as u64));
        let mut read = Events { events: Vec::new(), lost: first.saturating_sub(self.next) };
        if first >= noted {
            self.next = noted;
            return Ok(read);
        }
        let mut records = zeroed::<Record>(EVENTS);
        // The whole ring, or the part from the first to the last.
        let (from, to) = (first as usize % EVENTS, (noted - 1) as usize % EVENTS);
        let part = if from <= to { from..to + 1 } else { 0..EVENTS };
        let at = (EVENTS_AT + part.start * EVENT_SIZE) as u64;
        fill(&self.file, &mut records[part], at)?;
        for number in first..noted {
            match records[number as usize % EVENTS].read(number) {
                Some(event) => read.events.push(event),
                None => read.lost += 1,
            }
        }
        self.next = noted;
        Ok(read)
    }

    /// Asks the process to note frequent events too, for so long (ns).
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn follow_for(&self, nanoseconds: u64) -> io::Result<()> {
        let at = offset_of!(RegistryHeader, events) + offset_of!(EventProgress, followed_until);
        self.file.write_all_at(&(time::now() + nanoseconds).to_ne_bytes(), at as u64)
    }

    /// True once the process has ended, or runs another program.
    pub fn has_ended(&self) -> bool {
        self.header().map_or(true, |header| self.place.has_ended(&self.file, &header))
    }

    fn header(&self) -> io::Result<RegistryHeader> {
        header_of(&self.file, self.place.publisher)
    }
}
