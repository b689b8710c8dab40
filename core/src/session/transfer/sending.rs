//! The sending half of a direction's RDMA transfers.

use super::{check_known, check_new, Abilities};
use crate::session::control::{Advertisement, Complete, LARGEST_TRANSFER};
use crate::session::error::ProtocolError;
use crate::session::header::Kind;
use crate::session::mode::{Behaviour, Mode, Observer};
use crate::session::sync::{AtomicU32, AtomicU64, Ordering};

/// So many scans in a row without progress end a transfer (A4).
const SCANS: u32 = 2;

/// What to do with the data of one send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Send it in messages.
    Messages,
    /// RDMA-write as much as fits into this posted receive (A6, A11).
    Write(Advertisement),
    /// Announce it: [`Sending::begin`], then a `DataAvailable` message.
    Announce {
        /// Register the rest for RDMA read and put its descriptor into the message (S4, A10, A12).
        readable: bool,
        /// Let the first part of the data travel in the message (S3).
        first_part: bool,
    },
    /// Wait for an advertisement, announce nothing: the receiver acts (A11).
    Await,
}

/// What became of a transfer so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing new.
    Waiting,
    /// The receiver read so many bytes and wants no more of this transfer.
    Complete(u32),
    /// The receiver wants the rest in messages (A5), or cannot do RDMA.
    InMessages,
    /// The receiver advertised a buffer: take the data back and write (A6, A12).
    Advertised(Advertisement),
}

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The receiver read all of it; its behaviour comes with its message.
    Read,
    /// It was written into a receive that was posted directly, or only after an indication (A6).
    Written {
        /// See [`Advertisement::directly`].
        directly: bool,
    },
    /// The receiver asked for messages (A5).
    Refused,
    /// The receiver posted no receive in time (A4).
    Scanned,
    /// The application's send ended early: a signal, a time-out, an error.
    Abandoned,
}

/// An advertisement as it came, written under the receive lock and read under the send lock.
#[derive(Debug, Default)]
struct Cell {
    /// Odd while it is being written.
    version: AtomicU32,
    key: AtomicU32,
    length: AtomicU32,
    directly: AtomicU32,
    address: AtomicU64,
    received: AtomicU64,
}

impl Cell {
    fn store(&self, a: &Advertisement) {
        let version = self.version.load(Ordering::Relaxed) | 1;
        self.version.store(version, Ordering::SeqCst);
        self.key.store(a.key, Ordering::SeqCst);
        self.length.store(a.length, Ordering::SeqCst);
        self.directly.store(a.directly.into(), Ordering::SeqCst);
        self.address.store(a.address, Ordering::SeqCst);
        self.received.store(a.received, Ordering::SeqCst);
        self.version.store(version.wrapping_add(1), Ordering::SeqCst);
    }

    /// True if the thread that wrote it died in the middle. The caller has the receive lock.
    fn is_torn(&self) -> bool {
        !self.version.load(Ordering::Relaxed).is_multiple_of(2)
    }

    /// `None` while it is being written, and before the first.
    fn load(&self) -> Option<Advertisement> {
        let version = self.version.load(Ordering::SeqCst);
        let advertisement = Advertisement {
            key: self.key.load(Ordering::SeqCst),
            length: self.length.load(Ordering::SeqCst),
            directly: self.directly.load(Ordering::SeqCst) != 0,
            address: self.address.load(Ordering::SeqCst),
            received: self.received.load(Ordering::SeqCst),
        };
        let whole = version.is_multiple_of(2) && self.version.load(Ordering::SeqCst) == version;
        (whole && advertisement.key != 0).then_some(advertisement)
    }
}

/// The sender's state of one direction. Zeroed memory is a valid start. May lie in memory that the
/// processes of one side share; never in the peer's reach.
///
/// The functions that take a message in are called under the receive lock, and all others under the send lock.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Sending {
    observer: Observer,
    /// Number of the newest transfer, and the bytes of its rest; 0 bytes: none is under way.
    key: AtomicU32,
    rest: AtomicU32,
    /// Bytes that ever went by RDMA, and how many had when the newest transfer began, and the newest
    /// write. So one store counts what went, and may be repeated.
    bytes: AtomicU64,
    begun_at: AtomicU64,
    writes_at: AtomicU64,
    /// The advertisement that is being written to, and its length; zero: none.
    writing: AtomicU64,
    /// Scans in a row without progress, and the bytes that had been taken at the last one.
    scans: AtomicU32,
    scanned: AtomicU32,
    /// Newest completion of a read: number, bytes; its behaviour is stored before.
    complete: AtomicU64,
    behaviour: AtomicU32,
    /// The completion whose behaviour has been observed.
    observed: AtomicU32,
    /// The transfer that the receiver wants in messages.
    refused: AtomicU32,
    /// 1: RDMA does not work on this connection.
    forbidden: AtomicU32,
    /// Requests to go back to discovery: come, and obeyed.
    rediscoveries: AtomicU32,
    obeyed: AtomicU32,
    advertised: Cell,
    /// Number of the last advertisement that was used or dropped.
    settled: AtomicU32,
    /// What `sanctl` shows: scans, advertisements used, advertisements dropped as out of date.
    all_scans: AtomicU32,
    used: AtomicU32,
    dropped: AtomicU32,
}

fn add_one(counter: &AtomicU32) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

impl Sending {
    /// The mode, and how often each behaviour was seen.
    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    /// Scans made while a transfer waited (A4).
    pub fn scans(&self) -> u32 {
        self.all_scans.load(Ordering::Relaxed)
    }

    /// Advertisements used, and dropped because they were out of date (A14).
    pub fn advertisements(&self) -> (u32, u32) {
        (self.used.load(Ordering::Relaxed), self.dropped.load(Ordering::Relaxed))
    }

    /// The receiver posted a buffer. Receive lock.
    ///
    /// # Errors
    /// [`ProtocolError`] if its number is not a newer one.
    pub fn advertisement(&self, a: &Advertisement) -> Result<(), ProtocolError> {
        if !self.advertised.is_torn() {
            check_new(Kind::Advertisement, a.key, self.advertised.key.load(Ordering::Relaxed))?;
        }
        self.advertised.store(a);
        Ok(())
    }

    /// The receiver read the transfer `c.key`, or part of it, and is done with it. Receive lock.
    ///
    /// # Errors
    /// [`ProtocolError`] if there never was such a transfer.
    pub fn completed(&self, c: &Complete, behaviour: Behaviour) -> Result<(), ProtocolError> {
        check_known(Kind::TransferComplete, c.key, self.key.load(Ordering::Acquire))?;
        self.behaviour.store(behaviour as u32, Ordering::Relaxed);
        self.complete.store(u64::from(c.key) << 32 | u64::from(c.bytes), Ordering::Release);
        Ok(())
    }

    /// The receiver wants transfer `key` in messages; `for_ever`: and every other. Receive lock.
    ///
    /// # Errors
    /// As [`completed`](Self::completed).
    pub fn refused(&self, key: u32, for_ever: bool) -> Result<(), ProtocolError> {
        check_known(Kind::SendInMessages, key, self.key.load(Ordering::Acquire))?;
        if for_ever {
            self.forbidden.store(1, Ordering::Relaxed);
        }
        self.refused.store(key, Ordering::Release);
        Ok(())
    }

    /// The receiver asks for discovery (A8, A11). Receive lock.
    pub(crate) fn asked_to_rediscover(&self) {
        add_one(&self.rediscoveries);
    }

    /// RDMA is not possible here; everything goes in messages from now on.
    pub fn forbid(&self) {
        self.forbidden.store(1, Ordering::Relaxed);
    }

    /// Whether RDMA turned out to be impossible.
    pub(crate) fn forbidden(&self) -> bool {
        self.forbidden.load(Ordering::Relaxed) != 0
    }

    /// Learns from what came since the last call; `Some`: the mode changed to this, which the
    /// receiver is to be told.
    pub fn learn(&self) -> Option<Mode> {
        let mut changed = None;
        let complete = (self.complete.load(Ordering::Acquire) >> 32) as u32;
        if complete != self.observed.load(Ordering::Relaxed) {
            self.observed.store(complete, Ordering::Relaxed);
            let behaviour = Behaviour::from_u32(self.behaviour.load(Ordering::Relaxed));
            changed = behaviour.and_then(|behaviour| self.observer.observe(behaviour));
        }
        if self.is_asked() {
            self.obeyed.store(self.rediscoveries.load(Ordering::Relaxed), Ordering::Relaxed);
            if self.observer.rediscover() {
                changed = Some(Mode::Discovery);
            }
        }
        changed
    }

    /// The newest advertisement, if it is still good: not used, and no data was sent that its
    /// receiver had not counted when it posted the buffer (A14). `position`: bytes sent so far.
    fn current(&self, position: u64) -> Option<Advertisement> {
        let a = self.advertised.load()?;
        if a.key == self.settled.load(Ordering::Relaxed) {
            return None;
        }
        if a.received != position {
            self.settle(a.key);
            add_one(&self.dropped);
            return None;
        }
        Some(a)
    }

    fn settle(&self, key: u32) {
        self.settled.store(key, Ordering::Relaxed);
    }

    /// How to send `length` bytes. `position`: bytes sent on the connection so far; `waits`: the
    /// application's send may block until its data was taken.
    pub fn plan(&self, length: u64, position: u64, waits: bool, abilities: Abilities) -> Plan {
        if length < u64::from(abilities.threshold) || !abilities.rdma() || self.forbidden() {
            return Plan::Messages;
        }
        if abilities.write {
            if let Some(advertisement) = self.current(position) {
                return Plan::Write(advertisement);
            }
        }
        if !waits {
            return Plan::Messages;
        }
        match self.observer.mode() {
            Mode::SmallReceive => Plan::Messages,
            Mode::Discovery | Mode::SmallThenLarge => {
                Plan::Announce { readable: abilities.read, first_part: true }
            }
            // Without data in the announcement an advertisement on its way stays good (A12).
            Mode::LargeReceive if abilities.read => {
                Plan::Announce { readable: true, first_part: false }
            }
            Mode::LargeReceive => Plan::Await,
        }
    }

    /// A transfer of `rest` bytes begins: its number. To be called before anything is registered.
    pub fn begin(&self, rest: u32) -> u32 {
        debug_assert!((1..=LARGEST_TRANSFER).contains(&rest));
        let key = self.key.load(Ordering::Relaxed).wrapping_add(1);
        self.key.store(key, Ordering::Release);
        self.await_advertisement();
        self.begun_at.store(self.bytes(), Ordering::Relaxed);
        self.rest.store(rest, Ordering::Release);
        key
    }

    /// Bytes that ever went by RDMA.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The receiver has read `taken` bytes of the newest transfer, which is not lent any more.
    pub fn read(&self, taken: u32) {
        // Bytes that were written since the transfer began count too: then the receiver read nothing.
        let read = self.begun_at.load(Ordering::Relaxed) + u64::from(taken);
        self.bytes.store(self.bytes().max(read), Ordering::Relaxed);
    }

    /// A write into advertisement `key` of `room` bytes is about to begin.
    pub fn writes(&self, key: u32, room: u32) {
        self.writes_at.store(self.bytes(), Ordering::Relaxed);
        self.writing.store(u64::from(key) << 32 | u64::from(room), Ordering::Release);
    }

    /// The write under way, whose sender died: the advertisement's number and length.
    pub fn writing(&self) -> Option<(u32, u32)> {
        let writing = self.writing.load(Ordering::Relaxed);
        (writing != 0).then_some(((writing >> 32) as u32, writing as u32))
    }

    /// The write whose sender died came to nothing.
    pub fn forget_write(&self) {
        self.writing.store(0, Ordering::Release);
    }

    /// So many bytes were written since [`writes`](Self::writes). Before [`used`](Self::used).
    pub fn wrote(&self, bytes: u32) {
        let wrote = self.writes_at.load(Ordering::Relaxed) + u64::from(bytes);
        self.bytes.store(wrote, Ordering::Release);
    }

    /// As [`begin`](Self::begin), for a wait that announces nothing (A11).
    pub fn await_advertisement(&self) {
        self.scans.store(0, Ordering::Relaxed);
        self.scanned.store(0, Ordering::Relaxed);
        self.rest.store(0, Ordering::Relaxed);
    }

    /// Part of the transfer was written; it waits for the next advertisement.
    pub fn await_more(&self) {
        self.scans.store(0, Ordering::Relaxed);
    }

    /// What the receiver said about the transfer under way.
    pub fn progress(&self, position: u64, abilities: Abilities) -> Progress {
        let key = self.key.load(Ordering::Relaxed);
        if self.rest.load(Ordering::Relaxed) > 0 {
            let complete = self.complete.load(Ordering::Acquire);
            if (complete >> 32) as u32 == key {
                return Progress::Complete(complete as u32);
            }
            if self.refused.load(Ordering::Acquire) == key {
                return Progress::InMessages;
            }
        }
        match self.current(position) {
            Some(advertisement) if abilities.write => Progress::Advertised(advertisement),
            // No receiver posts what a passive sender waits for (A11).
            _ if self.is_asked() && self.rest.load(Ordering::Relaxed) == 0 => Progress::InMessages,
            _ => Progress::Waiting,
        }
    }

    /// Discovery was asked for since the last look.
    fn is_asked(&self) -> bool {
        self.rediscoveries.load(Ordering::Relaxed) != self.obeyed.load(Ordering::Relaxed)
    }

    /// The periodic scan (A4): `taken` bytes of the transfer were read so far. True: two in a row
    /// without progress, the rest goes in messages.
    pub fn scan(&self, taken: u32) -> bool {
        add_one(&self.all_scans);
        let progress = self.scanned.swap(taken, Ordering::Relaxed) != taken;
        let scans = if progress { 0 } else { self.scans.load(Ordering::Relaxed) + 1 };
        self.scans.store(scans, Ordering::Relaxed);
        scans >= SCANS
    }

    /// The advertisement was used, or found withdrawn; it is not good a second time.
    pub fn used(&self, key: u32, written: bool) {
        self.settle(key);
        add_one(if written { &self.used } else { &self.dropped });
        self.forget_write();
    }

    /// The transfer under way, whose sender died: its number, and the bytes of its rest.
    pub fn under_way(&self) -> Option<(u32, u32)> {
        let rest = self.rest.load(Ordering::Relaxed);
        (rest > 0).then(|| (self.key.load(Ordering::Relaxed), rest))
    }

    /// The transfer is over, however it ended.
    pub fn forget(&self) {
        self.rest.store(0, Ordering::Relaxed);
    }

    /// The transfer is over; `Some`: the mode changed to this, which the receiver is to be told.
    pub fn end(&self, how: End) -> Option<Mode> {
        self.forget();
        let observe = |behaviour| self.observer.observe(behaviour);
        match how {
            End::Read => self.learn(),
            End::Written { directly: true } => observe(Behaviour::LargeReceive),
            End::Written { directly: false } => observe(Behaviour::SmallThenLarge),
            End::Refused | End::Scanned => observe(Behaviour::SmallReceive),
            End::Abandoned => None,
        }
    }
}
