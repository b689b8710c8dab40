//! Control messages that are due: one of each kind, kept until there is credit and the send lock (A17). A message that
//! a later one supersedes before it could go is not sent. This module sends nothing
//! ([`Stream`](crate::switch::stream::Stream)).

use crate::session::{Advertisement, Behaviour, Complete, Control, Mode};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Kinds, in the order in which they go.
pub(in crate::switch) const REST_IN_MESSAGES: u32 = 1 << 0;
pub(in crate::switch) const WRITTEN: u32 = 1 << 1;
pub(in crate::switch) const READ: u32 = 1 << 2;
pub(in crate::switch) const SEND_IN_MESSAGES: u32 = 1 << 3;
pub(in crate::switch) const ADVERTISEMENT: u32 = 1 << 4;
pub(in crate::switch) const MODE: u32 = 1 << 5;
pub(in crate::switch) const REDISCOVER: u32 = 1 << 6;
pub(in crate::switch) const RESIZE_ANSWER: u32 = 1 << 7;
pub(in crate::switch) const RESIZE_REQUEST: u32 = 1 << 8;
/// Not a message: the session is suspended, or about to be (D4). All messages wait then, but those that end a transfer.
pub(in crate::switch) const SUSPENSION: u32 = 1 << 9;
pub(in crate::switch) const ENDS_OF_TRANSFERS: u32 = REST_IN_MESSAGES | WRITTEN | READ;
/// The messages for which a sender of the peer may sleep, and those for which a receiver may.
pub(in crate::switch) const FOR_SENDERS: u32 = READ | SEND_IN_MESSAGES | ADVERTISEMENT;
pub(in crate::switch) const FOR_RECEIVERS: u32 = WRITTEN;

/// See the module. Zeroed memory is a valid start: nothing is due.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct DueWords {
    pub(in crate::switch) kinds: AtomicU32,
    /// The kind that is being sent, and in the upper half the number of its message; zero: none. Send lock.
    pub(in crate::switch) goes: AtomicU64,
    behaviour: AtomicU32,
    /// Number in the upper half, bytes or a flag in the lower.
    rest: AtomicU64,
    written: AtomicU64,
    read: AtomicU64,
    refused: AtomicU64,
    mode: AtomicU64,
    size: AtomicU32,
    wanted: AtomicU32,
    key: AtomicU32,
    length: AtomicU32,
    directly: AtomicU32,
    address: AtomicU64,
    received: AtomicU64,
}

pub(in crate::switch) fn pair(key: u32, low: u32) -> u64 {
    u64::from(key) << 32 | u64::from(low)
}

fn halves(word: &AtomicU64) -> (u32, u32) {
    let word = word.load(Relaxed);
    ((word >> 32) as u32, word as u32)
}

impl DueWords {
    /// True if anything is.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.kinds.load(Relaxed) != 0
    }

    /// True if the receiver was not told yet what was written into its buffer. Send lock.
    pub(crate) fn tells_of_a_write(&self) -> bool {
        self.kinds.load(Relaxed) & WRITTEN != 0
    }

    /// Notes a message to send; one of the same kind that has not gone yet is forgotten.
    pub(crate) fn note(&self, control: &Control) {
        let kind = match *control {
            Control::RestInMessages(key, bytes) => {
                self.rest.store(pair(key, bytes), Relaxed);
                REST_IN_MESSAGES
            }
            Control::TransferComplete(Complete { key, bytes, behaviour: Some(behaviour) }) => {
                self.behaviour.store(behaviour as u32, Relaxed);
                self.read.store(pair(key, bytes), Relaxed);
                READ
            }
            Control::TransferComplete(Complete { key, bytes, behaviour: None }) => {
                self.written.store(pair(key, bytes), Relaxed);
                WRITTEN
            }
            Control::SendInMessages(key, for_ever) => {
                self.refused.store(pair(key, for_ever.into()), Relaxed);
                SEND_IN_MESSAGES
            }
            Control::Advertisement(a) => {
                self.key.store(a.key, Relaxed);
                self.length.store(a.length, Relaxed);
                self.directly.store(a.directly.into(), Relaxed);
                self.address.store(a.address, Relaxed);
                self.received.store(a.received, Relaxed);
                ADVERTISEMENT
            }
            Control::EnterMode(mode, measured) => {
                self.mode.store(pair(mode as u32, measured.into()), Relaxed);
                MODE
            }
            Control::Rediscover => REDISCOVER,
            Control::ResizeAnswer(size) => {
                self.size.store(size, Relaxed);
                RESIZE_ANSWER
            }
            Control::ResizeRequest(size) => {
                self.wanted.store(size, Relaxed);
                RESIZE_REQUEST
            }
            // These belong to what is sent at the same moment, and never wait.
            Control::DataAvailable(_) | Control::Resized => return,
            // Kept by the session, see `stream::suspension`.
            Control::Suspend(_) | Control::Suspended(_) | Control::Resume(_) => return,
        };
        self.kinds.fetch_or(kind, Release);
    }

    /// True while the session is suspended, or about to be (D5).
    #[inline]
    pub(crate) fn is_held_back(&self) -> bool {
        self.kinds.load(Relaxed) & SUSPENSION != 0
    }

    /// Notes whether it is. The caller looks again at what decides afterwards.
    pub(crate) fn hold_back(&self, held: bool) {
        if held {
            self.kinds.fetch_or(SUSPENSION, AcqRel);
        } else {
            self.kinds.fetch_and(!SUSPENSION, AcqRel);
        }
    }

    /// True if what became of a transfer is still to be told.
    pub(crate) fn ends_a_transfer(&self) -> bool {
        self.kinds.load(Acquire) & ENDS_OF_TRANSFERS != 0
    }

    /// An advertisement that has not gone yet does not go: its buffer was taken back.
    pub(crate) fn forget_advertisement(&self) {
        self.kinds.fetch_and(!ADVERTISEMENT, AcqRel);
    }

    /// The advertisement that is due, to ride on data (A13), in message `sequence`. Afterwards
    /// [`gone`](Self::gone). Send lock.
    pub(crate) fn take_advertisement(&self, sequence: u32) -> Option<Advertisement> {
        self.goes.store(pair(sequence, ADVERTISEMENT), Relaxed);
        let due = self.kinds.fetch_and(!ADVERTISEMENT, AcqRel) & ADVERTISEMENT != 0;
        let advertisement = self.advertisement();
        // Superseded while it was read: the newer one goes.
        (due && self.kinds.load(Acquire) & ADVERTISEMENT == 0).then_some(advertisement)
    }

    /// The messages that were taken to be sent have gone, or are due again. The caller has the send lock.
    pub(crate) fn gone(&self) {
        self.goes.store(0, Release);
    }

    /// A sender died. `last` is the last message that was published. A message that the sender had taken and
    /// not sent is due again.
    pub(in crate::switch) fn recover(&self, last: u32) {
        let (sequence, kind) = halves(&self.goes);
        if kind != 0 && sequence != last {
            self.kinds.fetch_or(kind, AcqRel);
        }
        self.gone();
    }

    fn advertisement(&self) -> Advertisement {
        Advertisement {
            key: self.key.load(Relaxed),
            length: self.length.load(Relaxed),
            address: self.address.load(Relaxed),
            received: self.received.load(Relaxed),
            directly: self.directly.load(Relaxed) != 0,
        }
    }

    pub(in crate::switch) fn control(&self, kind: u32) -> Control {
        match kind {
            REST_IN_MESSAGES => {
                let (key, bytes) = halves(&self.rest);
                Control::RestInMessages(key, bytes)
            }
            WRITTEN => {
                let (key, bytes) = halves(&self.written);
                Control::TransferComplete(Complete { key, bytes, behaviour: None })
            }
            READ => {
                let (key, bytes) = halves(&self.read);
                let behaviour = self.behaviour.load(Relaxed);
                let behaviour = Behaviour::ALL.into_iter().find(|b| *b as u32 == behaviour);
                Control::TransferComplete(Complete { key, bytes, behaviour })
            }
            SEND_IN_MESSAGES => {
                let (key, for_ever) = halves(&self.refused);
                Control::SendInMessages(key, for_ever != 0)
            }
            ADVERTISEMENT => Control::Advertisement(self.advertisement()),
            MODE => {
                let (mode, measured) = halves(&self.mode);
                let mode = Mode::ALL.get(mode as usize).copied().unwrap_or(Mode::Discovery);
                Control::EnterMode(mode, measured != 0)
            }
            REDISCOVER => Control::Rediscover,
            RESIZE_ANSWER => Control::ResizeAnswer(self.size.load(Relaxed)),
            _ => Control::ResizeRequest(self.wanted.load(Relaxed)),
        }
    }
}
