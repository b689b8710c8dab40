//! What `sanctl` asks of a process: a word in the connection's slot, then the count in the header.
//!
//! The process looks at the count from time to time. Nothing here waits for that.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};

use super::file::{fill, header_of, zeroed};
use super::layout::{RegistryHeader, CAPACITY, HEADER_SIZE, SLOT_SIZE};
use super::place::RegistryPlace;
use super::slot::{Provider, Slot};

/// The registry file of a process, opened to ask the process for something.
pub struct Requests {
    place: RegistryPlace,
    file: File,
}

/// A connection of that process that was on the SAN when it was looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnSan {
    index: usize,
    sequence: u64,
    /// The process's descriptor.
    pub fd: RawFd,
    /// Its address.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
}

impl Requests {
    /// To the process that publishes there.
    ///
    /// # Errors
    /// When the file cannot be opened for reading and writing, or is not of this version.
    pub fn to(place: &RegistryPlace) -> io::Result<Self> {
        let requests = Self { place: place.clone(), file: place.open(true)? };
        requests.header().map(|_| requests)
    }

    fn header(&self) -> io::Result<RegistryHeader> {
        header_of(&self.file, self.place.publisher)
    }

    /// How to reach the process's helper thread, if it has one.
    pub fn helper(&self) -> Option<u64> {
        let helper = self.header().ok()?.helper.load(Ordering::Relaxed);
        (helper != 0).then_some(helper)
    }

    /// Its connections that are on the SAN.
    ///
    /// # Errors
    /// When the file cannot be read, or makes no sense any more.
    pub fn on_san(&self) -> io::Result<Vec<OnSan>> {
        let count = self.header()?.high_water.load(Ordering::Relaxed) as usize;
        let mut slots = zeroed::<Slot>(count.min(CAPACITY));
        fill(&self.file, &mut slots, HEADER_SIZE as u64)?;
        Ok(slots.iter().enumerate().filter_map(|(index, slot)| OnSan::of(index, slot)).collect())
    }

    /// Asks it to move connections back to TCP.
    ///
    /// # Errors
    /// When the file cannot be read and written, or makes no sense any more.
    pub fn detach(&self, connections: &[OnSan]) -> io::Result<()> {
        for one in connections {
            let at = one.offset() + offset_of!(Slot, detach);
            self.file.write_all_at(&(one.sequence + 1).to_ne_bytes(), at as u64)?;
        }
        let next = self.header()?.requests.load(Ordering::Relaxed).wrapping_add(1);
        self.file.write_all_at(&next.to_ne_bytes(), offset_of!(RegistryHeader, requests) as u64)
    }

    /// A connection that was found before, as it is now. `None` if it is not on the SAN any more.
    pub fn again(&self, connection: &OnSan) -> Option<OnSan> {
        let mut slots = zeroed::<Slot>(1);
        let read = fill(&self.file, &mut slots, connection.offset() as u64).ok()?;
        let now = (read == SLOT_SIZE).then(|| OnSan::of(connection.index, &slots[0]))??;
        (now.sequence == connection.sequence).then_some(now)
    }

    /// True while the process lives, and still publishes in this file.
    pub fn is_answered_for(&self) -> bool {
        let lives = |header: RegistryHeader| !self.place.has_ended(&self.file, &header);
        self.place.is_there() && self.header().is_ok_and(lives)
    }
}

impl OnSan {
    /// The connection in a slot, if it is on the SAN.
    fn of(index: usize, slot: &Slot) -> Option<OnSan> {
        let sequence = slot.stable_sequence().filter(|_| !slot.is_hidden())?;
        let identity = slot.identity().ok()?;
        let is_it = identity.provider != Provider::Tcp && identity.peer.port() != 0;
        is_it.then_some(OnSan {
            index,
            sequence,
            fd: identity.fd,
            local: identity.local,
            peer: identity.peer,
        })
    }

    /// Where its slot lies in the file.
    fn offset(&self) -> usize {
        HEADER_SIZE + self.index * SLOT_SIZE
    }
}

const _: () = assert!(size_of::<AtomicU32>() == size_of::<u32>());
