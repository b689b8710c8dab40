//! The receiving half of a direction's RDMA transfers.

use super::{check_known, check_new, Abilities};
use crate::session::control::{Advertisement, Available, Complete};
use crate::session::error::ProtocolError;
use crate::session::header::Kind;
use crate::session::mode::{Behaviour, Mode};
use crate::session::sync::{AtomicU32, AtomicU64, Ordering};

/// One receive of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Tells it from other receives of the direction; 0 for all that RDMA is not worth.
    pub number: u32,
    /// It found no data when it began: its buffers were posted directly (A6).
    pub directly: bool,
}

/// Data that was announced and lies in the sender's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// The transfer's number.
    pub key: u32,
    /// Bytes in all, and those already taken.
    pub length: u32,
    /// Bytes already taken.
    pub taken: u32,
    /// Where all of it begins in the sender's memory; `None`: it can not be read.
    pub address: Option<u64>,
    /// Sequence number of the message that announced it: it follows that message's data.
    pub after: u32,
}

/// What a waiting receive has to tell the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posting {
    /// Nothing.
    Nothing,
    /// Register the buffer for RDMA write and advertise it under this number (A6, A11).
    Advertise(u32),
    /// Its buffers are too small for RDMA: the rest of this transfer in messages (A5).
    SendInMessages(u32),
    /// A large receive in small-receive mode, or a small one in large-receive mode where the sender
    /// waits for large ones: back to discovery (A8, A11).
    Rediscover,
}

const OPEN: u32 = 1;
const READABLE: u32 = 2;
/// The sender has been asked for messages.
const REFUSED: u32 = 4;
/// A receive took some of it that RDMA was not worth.
const SMALL: u32 = 8;
/// The receive that took the first of it had been posted directly.
const DIRECTLY: u32 = 16;
const BEGUN: u32 = 32;
/// A receiver died, and how much it had read is not known yet. Outlives [`OPEN`].
const IN_DOUBT: u32 = 64;

/// The receiver's state of one direction. Zeroed memory is a valid start. May lie in memory that
/// the processes of one side share; never in the peer's reach. Receive lock.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Receiving {
    flags: AtomicU32,
    key: AtomicU32,
    length: AtomicU32,
    after: AtomicU32,
    /// The receive that took the first of it.
    first: AtomicU32,
    address: AtomicU64,
    /// Bytes that ever came by RDMA, and how many had when the newest transfer was announced and when
    /// the newest advertisement was posted. So one store counts what came, and may be repeated.
    bytes: AtomicU64,
    announced_at: AtomicU64,
    posted_at: AtomicU64,
    /// Number of the newest advertisement; it is out if `posted` is 1.
    advertised: AtomicU32,
    posted: AtomicU32,
    /// Number of the advertisement that had been written to when data was announced: those bytes
    /// came before it.
    earlier: AtomicU32,
    /// What the sender wrote into advertisements: number, bytes.
    written: AtomicU64,
    /// The sender's mode as it told it, and whether it settled on messages by measurement.
    mode: AtomicU32,
    settled: AtomicU32,
    /// 1: discovery was asked for since the sender told its mode.
    asked: AtomicU32,
    /// Numbers of receives given out.
    calls: AtomicU32,
}

impl Receiving {
    /// A number for a receive.
    pub fn call(&self, directly: bool) -> Call {
        let number = self.calls.load(Ordering::Relaxed).wrapping_add(1).max(1);
        self.calls.store(number, Ordering::Relaxed);
        Call { number, directly }
    }

    fn has(&self, flags: u32) -> bool {
        self.flags.load(Ordering::Relaxed) & flags != 0
    }

    fn set(&self, flags: u32) {
        self.flags.store(self.flags.load(Ordering::Relaxed) | flags, Ordering::Relaxed);
    }

    /// Bytes that ever came by RDMA. Bytes that a receiver had read when it died count too, though no program got them.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn taken(&self) -> u32 {
        let taken = self.bytes().wrapping_sub(self.announced_at.load(Ordering::Relaxed));
        taken.min(self.length.load(Ordering::Relaxed).into()) as u32
    }

    /// Message `sequence` announced data. The caller may repeat this, if the thread that called it died in the middle.
    ///
    /// # Errors
    ///
    /// [`ProtocolError`] if its number is not a newer one.
    pub fn available(&self, a: &Available, sequence: u32) -> Result<(), ProtocolError> {
        if self.after.load(Ordering::Relaxed) != sequence {
            check_new(Kind::DataAvailable, a.key, self.key.load(Ordering::Relaxed))?;
        }
        let newest = self.advertised.load(Ordering::Relaxed);
        if self.written_to(newest).is_some() {
            self.earlier.store(newest, Ordering::Relaxed);
        }
        // One still open is over: its sender sends nothing new before.
        self.lose(self.length.load(Ordering::Relaxed));
        self.after.store(sequence, Ordering::Release);
        self.key.store(a.key, Ordering::Relaxed);
        self.length.store(a.rest, Ordering::Relaxed);
        self.announced_at.store(self.bytes(), Ordering::Relaxed);
        self.address.store(a.address.unwrap_or(0), Ordering::Relaxed);
        let readable = if a.address.is_some() { READABLE } else { 0 };
        self.flags.store(OPEN | readable, Ordering::Release);
        Ok(())
    }

    /// A receiver died: `read` says how much of announced data was read, if the provider knows.
    pub fn recover(&self, read: impl FnOnce(&Rest) -> Option<u32>) {
        let Some(rest) = self.rest() else { return };
        if rest.address.is_none() || self.posted.load(Ordering::Relaxed) != 0 {
            return;
        }
        self.set(IN_DOUBT);
        let Some(bytes) = read(&rest) else { return };
        self.lose(bytes);
        if self.taken() == rest.length {
            self.close();
        }
    }

    /// Once it is known that `bytes` were read: they count, be they lost with the receiver that died.
    fn lose(&self, bytes: u32) {
        if !self.has(IN_DOUBT) {
            return;
        }
        let bytes = bytes.clamp(self.taken(), self.length.load(Ordering::Relaxed));
        let read = self.announced_at.load(Ordering::Relaxed) + u64::from(bytes);
        self.bytes.store(read, Ordering::Relaxed);
        self.flags.store(self.flags.load(Ordering::Relaxed) & !IN_DOUBT, Ordering::Release);
    }

    /// The rest of transfer `key` comes in messages, after `bytes` of it (A4).
    ///
    /// # Errors
    /// [`ProtocolError`] if we took another amount: the stream is in doubt.
    pub(crate) fn rest_in_messages(&self, key: u32, bytes: u32) -> Result<(), ProtocolError> {
        if key != self.key.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.lose(bytes);
        if !self.has(OPEN) {
            // It was found out before, when a read was refused.
            return Ok(());
        }
        // Bytes that the peer wrote into a posted buffer count when this end takes the buffer back.
        let exact = self.has(READABLE) && self.posted.load(Ordering::Relaxed) == 0;
        if exact && bytes != self.taken() {
            let (field, value) = ("bytes", bytes.into());
            return Err(ProtocolError::Body { kind: Kind::RestInMessages, field, value });
        }
        self.close();
        Ok(())
    }

    /// The sender wrote into one of our buffers.
    ///
    /// # Errors
    /// [`ProtocolError`] if that buffer was never advertised.
    pub fn written(&self, c: &Complete) -> Result<(), ProtocolError> {
        check_known(Kind::TransferComplete, c.key, self.advertised.load(Ordering::Relaxed))?;
        self.written.store(u64::from(c.key) << 32 | u64::from(c.bytes), Ordering::Relaxed);
        Ok(())
    }

    /// The sender told its mode.
    pub(crate) fn mode_entered(&self, mode: Mode, settled: bool) {
        self.mode.store(mode as u32, Ordering::Relaxed);
        self.settled.store(settled.into(), Ordering::Relaxed);
        self.asked.store(0, Ordering::Relaxed);
    }

    /// The peer's mode, as it told it.
    pub fn mode(&self) -> Mode {
        Mode::from_u32(self.mode.load(Ordering::Relaxed)).unwrap_or(Mode::Discovery)
    }

    /// What was announced and not taken yet.
    #[inline]
    pub fn rest(&self) -> Option<Rest> {
        let flags = self.flags.load(Ordering::Acquire);
        if flags & OPEN == 0 {
            return None;
        }
        let address = (flags & READABLE != 0).then(|| self.address.load(Ordering::Relaxed));
        Some(Rest {
            key: self.key.load(Ordering::Relaxed),
            length: self.length.load(Ordering::Relaxed),
            taken: self.taken(),
            address,
            after: self.after.load(Ordering::Relaxed),
        })
    }

    /// `call` took the first part, out of the announcing message or by the first read.
    pub fn begun(&self, call: Call) {
        if self.has(OPEN) && !self.has(BEGUN) {
            self.first.store(call.number, Ordering::Relaxed);
            self.set(if call.directly { BEGUN | DIRECTLY } else { BEGUN });
        }
    }

    /// `call` read `bytes` of the rest with room for `room`. `Some`: all is taken, to be told to
    /// the sender with the behaviour (S4, A7).
    pub fn read(
        &self,
        call: Call,
        bytes: u32,
        room: u64,
        abilities: Abilities,
    ) -> Option<Complete> {
        self.begun(call);
        self.bytes.store(self.bytes() + u64::from(bytes), Ordering::Relaxed);
        let (taken, length) = (self.taken(), self.length.load(Ordering::Relaxed));
        if room < u64::from(abilities.threshold) && bytes < length {
            self.set(SMALL);
        }
        if taken < length {
            return None;
        }
        let one_receive = self.first.load(Ordering::Relaxed) == call.number;
        let behaviour = if self.has(SMALL) {
            Behaviour::SmallReceive
        } else if one_receive && self.has(DIRECTLY) {
            Behaviour::LargeReceive
        } else {
            Behaviour::SmallThenLarge
        };
        self.close();
        let key = self.key.load(Ordering::Relaxed);
        Some(Complete { key, bytes: taken, behaviour: Some(behaviour) })
    }

    /// The announced data cannot be read. This end asked the sender for messages, and waits for them without looking
    /// again.
    pub fn cannot_read(&self) {
        let flags = self.flags.load(Ordering::Relaxed);
        if flags & OPEN != 0 {
            self.flags.store(flags & !READABLE | REFUSED, Ordering::Release);
        }
    }

    /// The announced data cannot be had any more: the sender took it back.
    pub fn close(&self) {
        self.flags.store(self.flags.load(Ordering::Relaxed) & IN_DOUBT, Ordering::Release);
    }

    /// A receive has room for `room` bytes, took what there was, and has to wait, or to tell its
    /// application to come again (`waits` false). Gives the message for the sender.
    pub fn post(&self, room: u64, waits: bool, abilities: Abilities) -> Posting {
        let large = room >= u64::from(abilities.threshold);
        if let Some(rest) = self.rest() {
            if self.has(REFUSED) || self.posted.load(Ordering::Relaxed) != 0 {
                return Posting::Nothing;
            }
            if large && waits && rest.address.is_some() && abilities.read {
                // It came after this receive had looked, which does not wait now but reads (A12).
                return Posting::Nothing;
            }
            if large && waits && abilities.write && rest.address.is_none() {
                return self.advertise();
            }
            // Small, or nothing that stays posted: what can be read is read, in small pieces too.
            self.set(REFUSED);
            return Posting::SendInMessages(rest.key);
        }
        if !waits || self.has(IN_DOUBT) || self.posted.load(Ordering::Relaxed) != 0 {
            return Posting::Nothing;
        }
        let changed = match self.mode() {
            Mode::LargeReceive if large && abilities.write => return self.advertise(),
            Mode::LargeReceive => !large && self.is_relied_on(abilities),
            Mode::SmallReceive => large && self.settled.load(Ordering::Relaxed) == 0,
            Mode::Discovery | Mode::SmallThenLarge => false,
        };
        if changed && self.asked.swap(1, Ordering::Relaxed) == 0 {
            return Posting::Rediscover;
        }
        Posting::Nothing
    }

    /// True if the sender announces nothing, and waits for large receives (A11).
    pub(crate) fn is_relied_on(&self, abilities: Abilities) -> bool {
        self.mode() == Mode::LargeReceive && abilities.write && !abilities.read
    }

    /// True if what was announced waits for a buffer to be advertised.
    pub fn may_advertise(&self) -> bool {
        self.has(OPEN) && !self.has(REFUSED)
    }

    fn advertise(&self) -> Posting {
        let key = self.advertised.load(Ordering::Relaxed).wrapping_add(1);
        self.advertised.store(key, Ordering::Relaxed);
        self.posted_at.store(self.bytes(), Ordering::Relaxed);
        self.posted.store(1, Ordering::Release);
        Posting::Advertise(key)
    }

    /// The buffer that is advertised at this moment.
    #[inline]
    pub fn advertised(&self) -> Option<u32> {
        (self.posted.load(Ordering::Relaxed) != 0).then(|| self.advertised.load(Ordering::Relaxed))
    }

    /// The advertisement for a buffer of `length` bytes at `address`, after `received` bytes of
    /// data (A14).
    pub fn advertisement(
        &self,
        key: u32,
        address: u64,
        length: u32,
        call: Call,
        received: u64,
    ) -> Advertisement {
        let directly = call.directly && !self.has(BEGUN);
        Advertisement { key, length, address, received, directly: directly || self.is_first(call) }
    }

    fn is_first(&self, call: Call) -> bool {
        self.has(DIRECTLY) && self.first.load(Ordering::Relaxed) == call.number
    }

    /// The advertised buffer was deregistered after `bytes` had been written into it; they count
    /// against what was announced. May be repeated if it was interrupted by death.
    pub fn withdrawn(&self, bytes: u32) {
        if bytes > 0 && self.posted.load(Ordering::Relaxed) != 0 {
            let newest = self.advertised.load(Ordering::Relaxed);
            let earlier = self.earlier.load(Ordering::Relaxed) == newest;
            let written = self.posted_at.load(Ordering::Relaxed) + u64::from(bytes);
            if earlier {
                self.announced_at.store(written, Ordering::Relaxed);
            }
            self.bytes.store(written, Ordering::Release);
            let all = self.taken() == self.length.load(Ordering::Relaxed);
            // The advertisement won over what can be read: that was taken back (A12).
            if self.has(OPEN) && !earlier && (all || self.has(READABLE)) {
                self.close();
            }
        }
        self.posted.store(0, Ordering::Release);
    }

    /// Bytes the sender says it wrote into advertisement `key`; `None`: nothing yet.
    pub fn written_to(&self, key: u32) -> Option<u32> {
        let written = self.written.load(Ordering::Relaxed);
        ((written >> 32) as u32 == key).then_some(written as u32)
    }
}
