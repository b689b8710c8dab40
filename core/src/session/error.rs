//! What can go wrong in the session protocol. Must not decide what happens to the connection:
//! the switch ends it when it sees a [`ProtocolError`].

use super::header::Kind;
use core::fmt;

/// A message must wait: no send credit for its kind (A15, A17), or the session is not open yet (A1).
///
/// Not a fault: the caller uses its send buffer (A19) and tries again when credit has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoCredit;

impl fmt::Display for NoCredit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no send credit: wait until the peer has posted message buffers")
    }
}

impl std::error::Error for NoCredit {}

/// The peer broke the session protocol. The connection cannot go on: its stream is in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The kind in the header is none that this version knows.
    UnknownKind(u8),
    /// The header has flags that its kind does not define.
    UnknownFlags {
        /// The message's kind.
        kind: Kind,
        /// The flags received.
        flags: u8,
    },
    /// The peer speaks another version of the session protocol.
    Version {
        /// The peer's version.
        peer: u8,
        /// Ours.
        ours: u8,
    },
    /// The payload is larger than its kind and the message buffer allow.
    TooLong {
        /// The message's kind.
        kind: Kind,
        /// Its length in bytes.
        length: u32,
        /// The largest length allowed, in bytes.
        limit: u32,
    },
    /// The payload is too short for the body of its kind.
    TooShort {
        /// The message's kind.
        kind: Kind,
        /// Its length in bytes.
        length: u32,
        /// The bytes of its body.
        body: u32,
    },
    /// A field in a control message's body has a value no honest peer sends.
    Body {
        /// The message's kind.
        kind: Kind,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A control message that makes no sense at this moment.
    Unexpected(Kind),
    /// A data message without data; a reader would take it for the end of the stream.
    EmptyData,
    /// The message is not the next one in sequence.
    Sequence {
        /// The sequence number due.
        expected: u32,
        /// The sequence number received.
        got: u32,
    },
    /// The first message is not a session request or accept (A1).
    NotOpen(Kind),
    /// A session request or accept came after the first message.
    AlreadyOpen(Kind),
    /// The message came although no buffer was posted for it: the peer overran its credit (A15).
    Overrun {
        /// The sequence number received.
        sequence: u32,
    },
    /// The peer says it posted more receives than it has buffers.
    Posted {
        /// The posted receives (PR) it named.
        posted: u16,
        /// The buffers it has.
        buffers: u16,
    },
    /// The peer acknowledges what was never sent, or takes back what it acknowledged.
    LastReceived {
        /// The last sequence received (LRSQ) it named.
        got: u32,
        /// What it had named before.
        before: u32,
        /// The last sequence number sent to it.
        sent: u32,
    },
    /// The peer takes credit back: the last sequence it allows us to send went down.
    CreditWithdrawn {
        /// The limit in this header (PR + LRSQ).
        limit: u32,
        /// The limit before.
        before: u32,
    },
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("session protocol broken by the peer, connection reset: ")?;
        match *self {
            Self::UnknownKind(kind) => write!(
                f,
                "message kind {kind} is unknown; run the same version of sanshim on both ends"
            ),
            Self::UnknownFlags { kind, flags } => write!(
                f,
                "flags {flags:#04x} of a {kind:?} message are unknown; run the same version of \
                 sanshim on both ends"
            ),
            Self::Version { peer, ours } => write!(
                f,
                "it speaks version {peer}, we speak {ours}; run the same version of sanshim on \
                 both ends"
            ),
            Self::TooLong { kind, length, limit } => {
                write!(f, "a {kind:?} message of {length} bytes, at most {limit} are allowed")
            }
            Self::TooShort { kind, length, body } => {
                write!(f, "a {kind:?} message of {length} bytes, its body alone has {body}")
            }
            Self::Body { kind, field, value } => {
                write!(f, "a {kind:?} message whose {field} is {value}")
            }
            Self::Unexpected(kind) => write!(f, "a {kind:?} message that nothing called for"),
            Self::EmptyData => f.write_str("a data message without data"),
            Self::Sequence { expected, got } => {
                write!(f, "message {got} came where {expected} was due")
            }
            Self::NotOpen(kind) => {
                write!(f, "a {kind:?} message came before the session request or accept")
            }
            Self::AlreadyOpen(kind) => {
                write!(f, "a {kind:?} message came in a session that is already open")
            }
            Self::Overrun { sequence } => {
                write!(f, "message {sequence} came without a posted buffer")
            }
            Self::Posted { posted, buffers } => {
                write!(f, "{posted} posted receives, it has only {buffers} buffers")
            }
            Self::LastReceived { got, before, sent } => write!(
                f,
                "it says message {got} is the last it received; it had said {before} and {sent} \
                 was sent"
            ),
            Self::CreditWithdrawn { limit, before } => {
                write!(f, "it allows messages up to {limit} after it had allowed {before}")
            }
        }
    }
}

impl std::error::Error for ProtocolError {}
