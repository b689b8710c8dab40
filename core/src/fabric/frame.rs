//! The form of what goes over a queue pair: a header with what the sending end publishes, and a payload.
//!
//! All numbers are little-endian. Everything in a frame is the peer's word: the code that uses a number as a length or
//! a position checks it.

use crate::provider::shm::{CLOSED, FINISHED, READ_SHUT};

/// Bytes of the header.
pub(super) const HEADER: usize = 32;
/// Bytes of the largest frame, and of a buffer for one: half of what streams publish at a time.
pub(super) const LARGEST: usize = (32 << 10) + HEADER;
/// Version of the frames and of the session in them.
pub(super) const VERSION: u16 = 11;

/// Declares the kinds of frames with their numbers.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)+) => {
        /// What a frame carries.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub(super) enum FrameKind { $($(#[$doc])* $name = $number,)+ }

        impl FrameKind {
            fn from_u32(number: u32) -> Option<Self> {
                match number { $($number => Some(FrameKind::$name),)+ _ => None }
            }
        }
    };
}

kinds! {
    /// What the end publishes, and nothing more.
    State = 1;
    /// A message of the session: its header's four words, then its payload.
    Message = 2;
    /// Bytes that follow in the send buffer.
    Bytes = 3;
    /// The end uses the link: it looks there for what the peer sends. The connector's end is first.
    Entered = 4;
    /// From that byte (8) of the stream on, what the end sends goes over the link.
    Turned = 5;
    /// The end will not use the link.
    Refused = 6;
    /// Connector: asks to be refused unless the acceptor's end has entered.
    Withdraw = 7;
    /// The peer may write what follows in its send buffer here: address (8 bytes) and token (4).
    Ring = 8;
    /// So many bytes (4) that follow in the send buffer were written where that is.
    Written = 9;
    /// Nothing more comes from here: the link goes on at another number (2) of this host, with a cookie (16).
    Move = 10;
    /// Nothing more comes from here. The receiver follows an end that moves.
    Moved = 11;
    /// The end sends over TCP from now on: as Answer.
    Left = 12;
    /// The end reads no further than this (8): is the rest sent again over TCP?
    Ask = 13;
    /// The answer (4: not zero if it is).
    Answer = 14;
    /// The end lends memory of its program: right (4), number (4), address (8), length (4), token (4).
    Lend = 15;
    /// The end asks for what it lent: right (4), number (4).
    Recall = 16;
    /// What the end read of what was lent to it: number (4), bytes (4), and as bits (4) that it reads no more, and that it
    /// was asked for it and reads at this moment.
    ReadLent = 17;
    /// The same of what it wrote.
    WroteLent = 18;
    /// The end sends again over TCP by itself what the peer has not read, from that byte (8) of the stream on, counted since
    /// the turn. Left follows.
    Pulled = 19;
    /// The end that approached concludes the proof that both have one connection (16).
    Proof = 20;
}

/// What an end publishes to its peer (`provider::shm::Side`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FrameState {
    /// Bytes ever taken out of the peer's send buffer.
    pub(super) head: u64,
    /// Bytes ever read by the program.
    pub(super) total: u64,
    /// FINISHED, CLOSED, READ_SHUT.
    pub(super) finished: u32,
    /// Not zero while a sender finds no space. The sender waits until no more bytes than this are unread.
    pub(super) stalled: u32,
}

impl FrameState {
    /// Bits of `finished` that cross the fabric.
    pub(super) const FINISHED_BITS: u32 = FINISHED | CLOSED | READ_SHUT;
}

/// A frame is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Puts a header in front of `length` bytes.
pub(super) fn encode(kind: FrameKind, length: usize, state: &FrameState) -> [u8; HEADER] {
    let mut all = [0; HEADER];
    all[..4].copy_from_slice(&(kind as u32).to_le_bytes());
    all[4..8].copy_from_slice(&(length as u32).to_le_bytes());
    all[8..16].copy_from_slice(&state.head.to_le_bytes());
    all[16..24].copy_from_slice(&state.total.to_le_bytes());
    all[24..28].copy_from_slice(&state.finished.to_le_bytes());
    all[28..].copy_from_slice(&state.stalled.to_le_bytes());
    all
}

/// The parts of a frame.
pub(super) fn decode(bytes: &[u8]) -> Result<(FrameKind, FrameState, &[u8]), Malformed> {
    let (header, payload) = bytes.split_at_checked(HEADER).ok_or(Malformed)?;
    let word = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let kind = FrameKind::from_u32(word(0)).ok_or(Malformed)?;
    if word(4) as usize != payload.len() {
        return Err(Malformed);
    }
    let state = FrameState {
        head: long(8),
        total: long(16),
        finished: word(24) & FrameState::FINISHED_BITS,
        stalled: word(28),
    };
    Ok((kind, state, payload))
}

/// Feeds a frame of arbitrary bytes: the link takes it for nothing, or for what it says.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(data: &[u8]) {
    if let Ok((kind, state, payload)) = decode(data) {
        let again = [encode(kind, payload.len(), &state).as_slice(), payload].concat();
        assert_eq!(decode(&again), Ok((kind, state, payload)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_the_wire_and_nonsense_is_refused() {
        let state = FrameState { head: 1, total: u64::MAX, finished: FINISHED, stalled: 5 };
        let mut frame = encode(FrameKind::Bytes, 3, &state).to_vec();
        frame.extend_from_slice(b"abc");
        assert_eq!(decode(&frame), Ok((FrameKind::Bytes, state, &b"abc"[..])));
        assert_eq!(decode(&frame[..HEADER + 2]), Err(Malformed));
        assert_eq!(decode(&frame[..HEADER - 1]), Err(Malformed));
        frame[0] = 99;
        assert_eq!(decode(&frame), Err(Malformed));
        // Bits that mean something in this process only.
        frame[0] = 1;
        frame[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(decode(&frame).unwrap().1.finished, FrameState::FINISHED_BITS);
    }
}
