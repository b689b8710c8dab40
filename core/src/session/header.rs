//! The header of a message: its fields, its 16 bytes, and the checks that need no session state. `flow.rs` has the
//! rules of credit and of sequence numbers.

use super::error::ProtocolError;

/// Size of an encoded header in bytes.
pub const HEADER_SIZE: usize = 16;

/// Version of the session protocol, carried in the flags of session requests and accepts.
pub const VERSION: u8 = 3;

/// Flag of a [`Kind::Data`] message: the body of an advertisement rides before the data (A13).
pub(super) const ADVERTISES: u8 = 1;

/// What a message is for. The bodies are in `control.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Application data in the message itself (S2). The only kind with a payload.
    Data = 1,
    /// Nothing but fresh PR and LRSQ (A16).
    CreditUpdate = 2,
    /// First message of the connecting side (A1).
    SessionRequest = 3,
    /// First message of the accepting side (A1).
    SessionAccept = 4,
    /// The first part of much data, with the amount of the rest and perhaps its descriptor (S3).
    DataAvailable = 5,
    /// A transfer is complete: by the reader of an RDMA read, or by the writer of an RDMA write.
    TransferComplete = 6,
    /// A posted receive that the peer may RDMA-write to (A6, A11).
    Advertisement = 7,
    /// To the sender: the rest shall come in messages (A5).
    SendInMessages = 8,
    /// To the receiver: the rest comes in messages (A4).
    RestInMessages = 9,
    /// To the receiver: the mode the sender is in now (A7, A11).
    EnterMode = 10,
    /// To the sender: the application changed its behaviour, back to discovery (A8, A11).
    Rediscover = 11,
    /// To the receiver: larger message buffers are wanted (A9).
    ResizeRequest = 12,
    /// To the sender: the size of the message buffers from now on, new or old (A9).
    ResizeAnswer = 13,
    /// To the receiver: every later message lies in a buffer of the new size (A9).
    Resized = 14,
    /// Control of the sender's end moves to another process: finish, and release RDMA memory (D4).
    Suspend = 15,
    /// To the end that asked: nothing is under way here, the session is suspended (D4).
    Suspended = 16,
    /// The session goes on, in the next process (D4).
    Resume = 17,
}

impl Kind {
    /// Whether this kind opens a session: first message of its side and never a later one (A1).
    #[inline]
    pub(crate) const fn opens_session(self) -> bool {
        matches!(self, Kind::SessionRequest | Kind::SessionAccept)
    }

    /// Whether this kind carries application data.
    #[inline]
    pub const fn carries_data(self) -> bool {
        matches!(self, Kind::Data | Kind::DataAvailable)
    }

    /// Bytes of the body that comes before any data; an advertisement that rides adds one to a data message.
    #[inline]
    pub const fn body_size(self) -> u32 {
        match self {
            Kind::DataAvailable => 24,
            Kind::TransferComplete => 16,
            Kind::Advertisement => ADVERTISEMENT_SIZE,
            Kind::RestInMessages | Kind::EnterMode | Kind::SendInMessages => 8,
            Kind::ResizeRequest | Kind::ResizeAnswer => 8,
            Kind::Suspend | Kind::Suspended | Kind::Resume => 8,
            Kind::Data
            | Kind::CreditUpdate
            | Kind::SessionRequest
            | Kind::SessionAccept
            | Kind::Rediscover
            | Kind::Resized => 0,
        }
    }

    /// The flags a message of this kind carries when nothing rides on it.
    #[inline]
    pub(super) const fn flags(self) -> u8 {
        if self.opens_session() {
            VERSION
        } else {
            0
        }
    }

    #[inline]
    const fn from_u8(value: u8) -> Option<Kind> {
        Some(match value {
            1 => Kind::Data,
            2 => Kind::CreditUpdate,
            3 => Kind::SessionRequest,
            4 => Kind::SessionAccept,
            5 => Kind::DataAvailable,
            6 => Kind::TransferComplete,
            7 => Kind::Advertisement,
            8 => Kind::SendInMessages,
            9 => Kind::RestInMessages,
            10 => Kind::EnterMode,
            11 => Kind::Rediscover,
            12 => Kind::ResizeRequest,
            13 => Kind::ResizeAnswer,
            14 => Kind::Resized,
            15 => Kind::Suspend,
            16 => Kind::Suspended,
            17 => Kind::Resume,
            _ => return None,
        })
    }
}

/// Bytes of an advertisement's body.
pub(super) const ADVERTISEMENT_SIZE: u32 = 32;

/// The largest body of any kind, in bytes.
pub const LARGEST_BODY: usize = 32;

/// The header of one message (A15). In memory it is four native-endian words: `sequence`,
/// `last_received`, `posted | kind << 16 | flags << 24`, `length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Sequence number of this message; the first is 1; wraps around.
    pub sequence: u32,
    /// LRSQ: the last sequence number the sender of this header had received; 0 for none.
    pub last_received: u32,
    /// PR: the receives the sender of this header had posted.
    pub posted: u16,
    /// What the message is for.
    pub kind: Kind,
    /// [`VERSION`] if the kind opens a session, 1 if an advertisement rides, else 0.
    pub flags: u8,
    /// Payload in bytes: the body, then the data. [`Kind::Data`] has at least one byte of data,
    /// [`Kind::DataAvailable`] may have some, every other kind has none.
    pub length: u32,
}

impl Header {
    /// The four words of the header. Word 0, the sequence number, is the one to publish last.
    #[inline]
    pub const fn encode(&self) -> [u32; 4] {
        [
            self.sequence,
            self.last_received,
            self.posted as u32 | (self.kind as u32) << 16 | (self.flags as u32) << 24,
            self.length,
        ]
    }

    /// The header in `words`, which come from the peer and are trusted in nothing. `max_payload`
    /// is the size of a message buffer without its header, in bytes.
    ///
    /// # Errors
    /// [`ProtocolError`] if kind, flags or length are none an honest peer sends. Fields that
    /// depend on the session are checked by [`Session::received`](super::Session::received).
    #[inline]
    pub const fn decode(words: [u32; 4], max_payload: u32) -> Result<Header, ProtocolError> {
        let Some(kind) = Kind::from_u8((words[2] >> 16) as u8) else {
            return Err(ProtocolError::UnknownKind((words[2] >> 16) as u8));
        };
        let header = Header {
            sequence: words[0],
            last_received: words[1],
            posted: words[2] as u16,
            kind,
            flags: (words[2] >> 24) as u8,
            length: words[3],
        };
        let rides = matches!(kind, Kind::Data) && header.flags == ADVERTISES;
        if header.flags != kind.flags() && !rides {
            return Err(header.flags_error());
        }
        let body = header.body_size();
        let limit = if kind.carries_data() { max_payload } else { body };
        if header.length > limit {
            return Err(ProtocolError::TooLong { kind, length: header.length, limit });
        }
        if header.length < body {
            return Err(ProtocolError::TooShort { kind, length: header.length, body });
        }
        if matches!(kind, Kind::Data) && header.length == body {
            return Err(ProtocolError::EmptyData);
        }
        Ok(header)
    }

    /// Bytes of the payload that are a control message's body; data follows.
    #[inline]
    pub const fn body_size(&self) -> u32 {
        match self.kind {
            Kind::Data if self.flags == ADVERTISES => ADVERTISEMENT_SIZE,
            kind => kind.body_size(),
        }
    }

    /// Bytes of application data in the payload.
    #[inline]
    pub const fn data_size(&self) -> u32 {
        self.length - self.body_size()
    }

    /// The same message with an advertisement riding on it (A13). Its length grows by the body.
    pub const fn advertising(mut self) -> Header {
        self.flags = ADVERTISES;
        self.length += ADVERTISEMENT_SIZE;
        self
    }

    #[cold]
    const fn flags_error(&self) -> ProtocolError {
        if self.kind.opens_session() {
            ProtocolError::Version { peer: self.flags, ours: VERSION }
        } else {
            ProtocolError::UnknownFlags { kind: self.kind, flags: self.flags }
        }
    }

    /// PR + LRSQ: the last sequence number that this header allows its receiver to send (A15).
    #[inline]
    pub(super) const fn limit(&self) -> u32 {
        self.last_received.wrapping_add(self.posted as u32)
    }
}
