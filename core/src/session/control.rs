//! The bodies of control messages: what they say, their bytes, and the checks that need no state of the transfer.
//! `header` has their sizes, and the protocol's version. This module decides nothing: `transfer/` and `resize.rs` do.

use super::error::ProtocolError;
use super::header::{Kind, LARGEST_BODY};
use super::mode::{Behaviour, Mode};

/// The most bytes of one RDMA transfer; a larger send makes several.
pub const LARGEST_TRANSFER: u32 = 1 << 28;

/// The sender's announcement of much data (S3, S4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Available {
    /// The transfer's number: larger than any before it in this direction.
    pub key: u32,
    /// Bytes that follow the data in the message itself: 1 to [`LARGEST_TRANSFER`].
    pub rest: u32,
    /// Where the rest lies in the sender's memory, registered for RDMA read; `None` if the
    /// receiver shall advertise its own buffer (S5).
    pub address: Option<u64>,
}

/// A posted receive, registered for RDMA write (A6, A11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advertisement {
    /// The registration's number: larger than any before it in this direction.
    pub key: u32,
    /// Bytes of the buffer: 1 to [`LARGEST_TRANSFER`].
    pub length: u32,
    /// Where it lies in the receiver's memory.
    pub address: u64,
    /// Bytes of application data that had been received when it was posted: data that was sent
    /// and not counted here has used it up (A14).
    pub received: u64,
    /// The receive was posted before anything announced data, not after (A6).
    pub directly: bool,
}

/// How much of a transfer is done (S4, S5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Complete {
    /// The transfer's or the advertisement's number.
    pub key: u32,
    /// Bytes transferred.
    pub bytes: u32,
    /// By the reader: how its application received. `None` by the writer.
    pub behaviour: Option<Behaviour>,
}

/// A control message's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// [`Kind::DataAvailable`].
    DataAvailable(Available),
    /// [`Kind::TransferComplete`].
    TransferComplete(Complete),
    /// [`Kind::Advertisement`], or riding on a [`Kind::Data`] message.
    Advertisement(Advertisement),
    /// [`Kind::SendInMessages`]: of this transfer; true: and of every later one, because the
    /// kernel or the fabric forbids RDMA.
    SendInMessages(u32, bool),
    /// [`Kind::RestInMessages`]: of this transfer, after so many bytes of the rest.
    RestInMessages(u32, u32),
    /// [`Kind::EnterMode`]; true: RDMA proved slower than messages, no receive changes that.
    EnterMode(Mode, bool),
    /// [`Kind::Rediscover`].
    Rediscover,
    /// [`Kind::ResizeRequest`]: the bytes of payload wanted.
    ResizeRequest(u32),
    /// [`Kind::ResizeAnswer`]: the bytes of payload from now on.
    ResizeAnswer(u32),
    /// [`Kind::Resized`].
    Resized,
    /// [`Kind::Suspend`]: the request's number.
    Suspend(u32),
    /// [`Kind::Suspended`]: the number of the request that it answers.
    Suspended(u32),
    /// [`Kind::Resume`]: the number of the request that it ends.
    Resume(u32),
}

impl Control {
    /// The kind that carries it.
    pub const fn kind(&self) -> Kind {
        match self {
            Control::DataAvailable(_) => Kind::DataAvailable,
            Control::TransferComplete(_) => Kind::TransferComplete,
            Control::Advertisement(_) => Kind::Advertisement,
            Control::SendInMessages(..) => Kind::SendInMessages,
            Control::RestInMessages(..) => Kind::RestInMessages,
            Control::EnterMode(..) => Kind::EnterMode,
            Control::Rediscover => Kind::Rediscover,
            Control::ResizeRequest(_) => Kind::ResizeRequest,
            Control::ResizeAnswer(_) => Kind::ResizeAnswer,
            Control::Resized => Kind::Resized,
            Control::Suspend(_) => Kind::Suspend,
            Control::Suspended(_) => Kind::Suspended,
            Control::Resume(_) => Kind::Resume,
        }
    }

    /// Its body; the first [`Kind::body_size`] bytes count. Words are in the host's byte order.
    pub fn encode(&self) -> [u8; LARGEST_BODY] {
        let words: [u32; 8] = match *self {
            Control::DataAvailable(a) => {
                let at = a.address.unwrap_or(0);
                let flags = a.address.is_some().into();
                [a.key, a.rest, at as u32, (at >> 32) as u32, flags, 0, 0, 0]
            }
            Control::TransferComplete(c) => {
                let behaviour = c.behaviour.map_or(0, |behaviour| behaviour as u32);
                [c.key, c.bytes, behaviour, 0, 0, 0, 0, 0]
            }
            Control::Advertisement(a) => {
                let flags = a.directly.into();
                let (at, n) = (a.address, a.received);
                [
                    a.key,
                    a.length,
                    at as u32,
                    (at >> 32) as u32,
                    n as u32,
                    (n >> 32) as u32,
                    flags,
                    0,
                ]
            }
            Control::SendInMessages(key, for_ever) => [key, for_ever.into(), 0, 0, 0, 0, 0, 0],
            Control::RestInMessages(key, bytes) => [key, bytes, 0, 0, 0, 0, 0, 0],
            Control::EnterMode(mode, measured) => [mode as u32, measured.into(), 0, 0, 0, 0, 0, 0],
            Control::ResizeRequest(size) | Control::ResizeAnswer(size) => {
                [size, 0, 0, 0, 0, 0, 0, 0]
            }
            Control::Suspend(n) | Control::Suspended(n) | Control::Resume(n) => {
                [n, 0, 0, 0, 0, 0, 0, 0]
            }
            Control::Rediscover | Control::Resized => [0; 8],
        };
        let mut body = [0; LARGEST_BODY];
        for (bytes, word) in body.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        body
    }

    /// The meaning of a message that has one: of a `body` that was copied out of the peer's reach.
    ///
    /// # Errors
    /// [`ProtocolError::Body`] if a field is out of range.
    pub fn decode(kind: Kind, body: &[u8; LARGEST_BODY]) -> Result<Option<Control>, ProtocolError> {
        let f = Fields { kind, body };
        Ok(Some(match kind {
            Kind::DataAvailable => {
                let (rest, readable) = (f.transfer(1, "rest")?, f.truth(4, "flags")?);
                let address = readable.then(|| f.long(2));
                Control::DataAvailable(Available { key: f.word(0), rest, address })
            }
            Kind::TransferComplete => {
                let bytes = f.at_most(1, LARGEST_TRANSFER, "bytes")?;
                let behaviour = Behaviour::from_u32(f.at_most(2, 3, "behaviour")?);
                Control::TransferComplete(Complete { key: f.word(0), bytes, behaviour })
            }
            // The only control message that rides on data.
            Kind::Advertisement | Kind::Data => Control::Advertisement(Advertisement {
                key: f.word(0),
                length: f.transfer(1, "length")?,
                address: f.long(2),
                received: f.long(4),
                directly: f.truth(6, "flags")?,
            }),
            Kind::SendInMessages => Control::SendInMessages(f.word(0), f.truth(1, "for ever")?),
            Kind::RestInMessages => {
                Control::RestInMessages(f.word(0), f.at_most(1, LARGEST_TRANSFER, "bytes")?)
            }
            Kind::EnterMode => {
                let measured = f.truth(1, "measured")?;
                let mode = Mode::from_u32(f.word(0)).ok_or_else(|| f.out_of_range(0, "mode"))?;
                Control::EnterMode(mode, measured)
            }
            Kind::Rediscover => Control::Rediscover,
            Kind::ResizeRequest => Control::ResizeRequest(f.transfer(0, "size")?),
            Kind::ResizeAnswer => Control::ResizeAnswer(f.transfer(0, "size")?),
            Kind::Resized => Control::Resized,
            Kind::Suspend => Control::Suspend(f.word(0)),
            Kind::Suspended => Control::Suspended(f.word(0)),
            Kind::Resume => Control::Resume(f.word(0)),
            Kind::CreditUpdate | Kind::SessionRequest | Kind::SessionAccept => return Ok(None),
        }))
    }
}

/// The fields of a body, counted in words; each checked for its range.
struct Fields<'a> {
    kind: Kind,
    body: &'a [u8; LARGEST_BODY],
}

impl Fields<'_> {
    fn word(&self, i: usize) -> u32 {
        let (at, body) = (i * 4, self.body);
        u32::from_ne_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]])
    }

    /// Of two words, the lower one first.
    fn long(&self, i: usize) -> u64 {
        u64::from(self.word(i)) | u64::from(self.word(i + 1)) << 32
    }

    fn out_of_range(&self, i: usize, field: &'static str) -> ProtocolError {
        ProtocolError::Body { kind: self.kind, field, value: self.word(i).into() }
    }

    fn at_most(&self, i: usize, most: u32, field: &'static str) -> Result<u32, ProtocolError> {
        let word = self.word(i);
        if word <= most {
            Ok(word)
        } else {
            Err(self.out_of_range(i, field))
        }
    }

    /// The bytes of a transfer: at least one.
    fn transfer(&self, i: usize, field: &'static str) -> Result<u32, ProtocolError> {
        match self.at_most(i, LARGEST_TRANSFER, field)? {
            0 => Err(self.out_of_range(i, field)),
            bytes => Ok(bytes),
        }
    }

    fn truth(&self, i: usize, field: &'static str) -> Result<bool, ProtocolError> {
        Ok(self.at_most(i, 1, field)? != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_control() -> impl Strategy<Value = Control> {
        let transfer = 1..=LARGEST_TRANSFER;
        let behaviour = prop::option::of(prop::sample::select(Behaviour::ALL.as_slice()));
        prop_oneof![
            (any::<u32>(), transfer.clone(), any::<Option<u64>>()).prop_map(
                |(key, rest, address)| { Control::DataAvailable(Available { key, rest, address }) }
            ),
            (any::<u32>(), 0..=LARGEST_TRANSFER, behaviour).prop_map(|(key, bytes, behaviour)| {
                Control::TransferComplete(Complete { key, bytes, behaviour })
            }),
            (any::<u32>(), transfer.clone(), any::<u64>(), any::<u64>(), any::<bool>()).prop_map(
                |(key, length, address, received, directly)| {
                    let body = Advertisement { key, length, address, received, directly };
                    Control::Advertisement(body)
                }
            ),
            any::<(u32, bool)>().prop_map(|(key, ever)| Control::SendInMessages(key, ever)),
            (any::<u32>(), 0..=LARGEST_TRANSFER).prop_map(|(k, n)| Control::RestInMessages(k, n)),
            (prop::sample::select(Mode::ALL.as_slice()), any::<bool>())
                .prop_map(|(mode, measured)| Control::EnterMode(mode, measured)),
            Just(Control::Rediscover),
            transfer.clone().prop_map(Control::ResizeRequest),
            transfer.prop_map(Control::ResizeAnswer),
            Just(Control::Resized),
            any::<u32>().prop_map(Control::Suspend),
            any::<u32>().prop_map(Control::Suspended),
            any::<u32>().prop_map(Control::Resume),
        ]
    }

    #[test]
    fn a_field_out_of_range_is_an_error_of_its_message() {
        let body = |at: usize, value: u32| {
            let mut body = [0; LARGEST_BODY];
            // All else is in range.
            body[4..8].copy_from_slice(&1u32.to_ne_bytes());
            body[4 * at..4 * at + 4].copy_from_slice(&value.to_ne_bytes());
            body
        };
        let wrong = [
            (Kind::DataAvailable, 1, 0, "rest"),
            (Kind::DataAvailable, 4, 2, "flags"),
            (Kind::TransferComplete, 1, LARGEST_TRANSFER + 1, "bytes"),
            (Kind::TransferComplete, 2, 4, "behaviour"),
            (Kind::Advertisement, 1, 0, "length"),
            (Kind::Data, 6, 2, "flags"),
            (Kind::SendInMessages, 1, 2, "for ever"),
            (Kind::RestInMessages, 1, LARGEST_TRANSFER + 1, "bytes"),
            (Kind::EnterMode, 0, 4, "mode"),
            (Kind::EnterMode, 1, 2, "measured"),
            (Kind::ResizeRequest, 0, 0, "size"),
            (Kind::ResizeAnswer, 0, LARGEST_TRANSFER + 1, "size"),
        ];
        for (kind, at, value, field) in wrong {
            let expected = ProtocolError::Body { kind, field, value: value.into() };
            assert_eq!(Control::decode(kind, &body(at, value)), Err(expected));
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(control in any_control()) {
            prop_assert_eq!(Control::decode(control.kind(), &control.encode()), Ok(Some(control)));
        }

        #[test]
        fn a_body_never_reaches_beyond_its_size(control in any_control()) {
            let body = control.encode();
            prop_assert!(body[control.kind().body_size() as usize..].iter().all(|&byte| byte == 0));
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(body in any::<[u8; LARGEST_BODY]>(), kind in 1u8..18) {
            let words = [1, 0, 16 | u32::from(kind) << 16, 0];
            if let Ok(header) = super::super::Header::decode(words, 64) {
                let _ = Control::decode(header.kind, &body);
            }
        }
    }
}
