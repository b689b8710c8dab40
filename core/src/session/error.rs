//! What can go wrong in the session protocol. This module does not decide what happens to the connection: the switch
//! ends it when it sees a [`ProtocolError`].

use super::header::Kind;
use thiserror::Error;

/// A message must wait: no send credit for its kind (A15, A17), or the session is not open yet (A1).
///
/// Not a fault: the caller uses its send buffer (A19) and tries again when credit has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no send credit: wait until the peer has posted message buffers")]
pub struct NoCredit;

/// The peer broke the session protocol. The connection cannot go on: its stream is in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The kind in the header is none that this version knows.
    #[error("message kind {0} is unknown; run the same version of sanshim on both ends")]
    UnknownKind(u8),
    /// The header has flags that its kind does not define.
    #[error("flags {flags:#04x} of a {kind:?} message are unknown; run the same version of sanshim on both ends")]
    UnknownFlags {
        /// The message's kind.
        kind: Kind,
        /// The flags received.
        flags: u8,
    },
    /// The peer speaks another version of the session protocol.
    #[error(
        "it speaks version {peer}, we speak {ours}; run the same version of sanshim on both ends"
    )]
    Version {
        /// The peer's version.
        peer: u8,
        /// Ours.
        ours: u8,
    },
    /// The payload is larger than its kind and the message buffer allow.
    #[error("a {kind:?} message of {length} bytes, at most {limit} are allowed")]
    TooLong {
        /// The message's kind.
        kind: Kind,
        /// Its length in bytes.
        length: u32,
        /// The largest length allowed, in bytes.
        limit: u32,
    },
    /// The payload is too short for the body of its kind.
    #[error("a {kind:?} message of {length} bytes, its body alone has {body}")]
    TooShort {
        /// The message's kind.
        kind: Kind,
        /// Its length in bytes.
        length: u32,
        /// The bytes of its body.
        body: u32,
    },
    /// A field in a control message's body has a value no honest peer sends.
    #[error("a {kind:?} message whose {field} is {value}")]
    Body {
        /// The message's kind.
        kind: Kind,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A control message that makes no sense at this moment.
    #[error("a {0:?} message that nothing called for")]
    Unexpected(Kind),
    /// A data message without data; a reader would take it for the end of the stream.
    #[error("a data message without data")]
    EmptyData,
    /// The message is not the next one in sequence.
    #[error("message {got} came where {expected} was due")]
    Sequence {
        /// The sequence number due.
        expected: u32,
        /// The sequence number received.
        got: u32,
    },
    /// The first message is not a session request or accept (A1).
    #[error("a {0:?} message came before the session request or accept")]
    NotOpen(Kind),
    /// A session request or accept came after the first message.
    #[error("a {0:?} message came in a session that is already open")]
    AlreadyOpen(Kind),
    /// The message came although no buffer was posted for it: the peer overran its credit (A15).
    #[error("message {sequence} came without a posted buffer")]
    Overrun {
        /// The sequence number received.
        sequence: u32,
    },
    /// The peer says it posted more receives than it has buffers.
    #[error("{posted} posted receives, it has only {buffers} buffers")]
    Posted {
        /// The posted receives (PR) it named.
        posted: u16,
        /// The buffers it has.
        buffers: u16,
    },
    /// The peer acknowledges what was never sent, or takes back what it acknowledged.
    #[error(
        "it says message {got} is the last it received; it had said {before} and {sent} was sent"
    )]
    LastReceived {
        /// The last sequence received (LRSQ) it named.
        got: u32,
        /// What it had named before.
        before: u32,
        /// The last sequence number sent to it.
        sent: u32,
    },
    /// The peer takes credit back: the last sequence it allows us to send went down.
    #[error("it allows messages up to {limit} after it had allowed {before}")]
    CreditWithdrawn {
        /// The limit in this header (PR + LRSQ).
        limit: u32,
        /// The limit before.
        before: u32,
    },
}
