//! The header of a message: its fields, its 16 bytes, and the checks that need no session state.
//! Must not touch credit or sequence rules: those are `flow.rs`.

use super::error::ProtocolError;

/// Size of an encoded header in bytes.
pub const HEADER_SIZE: usize = 16;

/// Version of the session protocol, carried in the flags of session requests and accepts.
pub const VERSION: u8 = 1;

/// What a message is for (S2, A1, A16). Numbers above 4 are kept for RDMA transfers and modes.
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
}

impl Kind {
    /// Whether this kind opens a session: first message of its side and never a later one (A1).
    #[inline]
    pub const fn opens_session(self) -> bool {
        matches!(self, Kind::SessionRequest | Kind::SessionAccept)
    }

    /// The flags a message of this kind carries.
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
        match value {
            1 => Some(Kind::Data),
            2 => Some(Kind::CreditUpdate),
            3 => Some(Kind::SessionRequest),
            4 => Some(Kind::SessionAccept),
            _ => None,
        }
    }
}

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
    /// [`VERSION`] if the kind opens a session, else 0.
    pub flags: u8,
    /// Payload in bytes: at least 1 for [`Kind::Data`], 0 for every other kind.
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
        if header.flags != kind.flags() {
            return Err(header.flags_error());
        }
        let limit = if matches!(kind, Kind::Data) { max_payload } else { 0 };
        if header.length > limit {
            return Err(ProtocolError::TooLong { kind, length: header.length, limit });
        }
        if matches!(kind, Kind::Data) && header.length == 0 {
            return Err(ProtocolError::EmptyData);
        }
        Ok(header)
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
