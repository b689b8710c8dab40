//! One end of a connection whose peer writes anything at all, while its own program does anything
//! in between. Nothing may panic, and what the engine tells must stay in range. Shared by the
//! property test here and the fuzz targets in `fuzz/`.

use sanshim_core::session::transfer::{
    self, Abilities, End as How, Plan, Posting, Progress, Receiving, Sending,
};
use sanshim_core::session::{
    Control, Header, Kind, ProtocolError, Resize, Session, Suspension, LARGEST_BODY,
    LARGEST_TRANSFER, VERSION,
};

const BUFFERS: u16 = 8;
const PAYLOAD: u32 = 1520;
const LARGEST_PAYLOAD: u32 = 16 << 10;

/// Reads numbers off the input; zeroes when it has ended.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let n = N.min(self.0.len());
        let (now, rest) = self.0.split_at(n);
        bytes[..n].copy_from_slice(now);
        self.0 = rest;
        bytes
    }

    fn byte(&mut self) -> u8 {
        self.bytes::<1>()[0]
    }

    fn word(&mut self) -> u32 {
        u32::from_ne_bytes(self.bytes())
    }
}

struct End {
    session: Session,
    sending: Sending,
    receiving: Receiving,
    resize: Resize,
    suspension: Suspension,
    abilities: Abilities,
    connector: bool,
    /// Bytes sent, and those of the transfer under way.
    position: u64,
    rest: u32,
    consumed: u32,
}

impl End {
    /// A message as it lies in memory that the peer can write.
    fn take_in(&mut self, words: [u32; 4], body: &[u8; LARGEST_BODY]) -> Result<(), ProtocolError> {
        let header = Header::decode(words, PAYLOAD)?;
        assert!(header.length <= PAYLOAD && header.body_size() <= header.length);
        assert_eq!(header.data_size() + header.body_size(), header.length);
        self.session.received(&header)?;
        if header.body_size() == 0 && header.kind == Kind::Data {
            return Ok(());
        }
        let Some(control) = Control::decode(header.kind, body)? else { return Ok(()) };
        transfer::obey(&control, header.sequence, &self.sending, &self.receiving)?;
        match control {
            Control::ResizeRequest(size) => {
                self.resize.requested(size, header.sequence, self.connector);
            }
            Control::ResizeAnswer(size) => self.resize.answer(size),
            other => {
                self.suspension.obey(&other, self.connector)?;
            }
        }
        Ok(())
    }

    fn message(&mut self, input: &mut Input) -> Result<(), ProtocolError> {
        let choice = input.byte();
        let mut words = [0; 4].map(|_: u32| input.word());
        let mut body: [u8; LARGEST_BODY] = input.bytes();
        // Mostly what gets past the first checks.
        if choice & 1 == 0 {
            // Small numbers of transfers, small amounts, no undefined flags.
            for (i, byte) in body.iter_mut().enumerate() {
                *byte &= match i {
                    1..=3 | 7 | 9..=11 | 17..=19 | 25..=27 => 0,
                    8 | 16 | 24 => 1,
                    _ => 0xff,
                };
            }
            let kind = u32::from(choice >> 1) % 18;
            let posted = words[2] % (u32::from(BUFFERS) + 1);
            words[0] = self.session.expected();
            words[1] = self.session.last_sent();
            let opens = kind == 3 || kind == 4;
            words[2] = posted | kind << 16 | if opens { u32::from(VERSION) << 24 } else { 0 };
            let size = (0..=LARGEST_BODY as u32).find(|&length| {
                let words = [words[0], words[1], words[2], length];
                Header::decode(words, PAYLOAD).is_ok()
            });
            words[3] = size.unwrap_or(words[3]);
        }
        self.take_in(words, &body)
    }

    fn send_side(&mut self, input: &mut Input) {
        let length = u64::from(input.word());
        match input.byte() % 6 {
            0 => match self.sending.plan(
                length,
                self.position,
                !length.is_multiple_of(3),
                self.abilities,
            ) {
                Plan::Write(a) => {
                    assert!((1..=LARGEST_TRANSFER).contains(&a.length));
                    assert_eq!(a.received, self.position);
                    self.position += u64::from(a.length).min(length);
                    self.sending.used(a.key, length.is_multiple_of(2));
                }
                Plan::Announce { .. } => {
                    self.rest = length.clamp(1, LARGEST_TRANSFER.into()) as u32;
                    self.sending.begin(self.rest);
                }
                Plan::Await => self.sending.await_advertisement(),
                Plan::Messages => self.position += length,
            },
            1 => match self.sending.progress(self.position, self.abilities) {
                Progress::Advertised(a) => self.sending.used(a.key, true),
                Progress::Complete(_) => self.end(How::Read),
                Progress::InMessages => self.end(How::Refused),
                Progress::Waiting => {}
            },
            2 if self.sending.scan(length as u32) => self.end(How::Scanned),
            3 => self.end(How::Abandoned),
            4 => self.end(How::Written { directly: length.is_multiple_of(2) }),
            _ => {
                let _ = self.sending.learn();
            }
        }
    }

    fn end(&mut self, how: How) {
        self.sending.end(how);
        self.rest = 0;
    }

    fn receive_side(&mut self, input: &mut Input) {
        let room = input.word();
        let call = self.receiving.call(room.is_multiple_of(2));
        match input.byte() % 4 {
            0 => {
                if let Some(rest) = self.receiving.rest() {
                    let bytes = room.clamp(1, rest.length - rest.taken);
                    let complete = self.receiving.read(call, bytes, room.into(), self.abilities);
                    let all = rest.taken + bytes == rest.length;
                    assert_eq!(complete.map(|complete| complete.bytes), all.then_some(rest.length));
                }
            }
            1 => {
                let posting =
                    self.receiving.post(room.into(), !room.is_multiple_of(5), self.abilities);
                if let Posting::Advertise(key) = posting {
                    assert_eq!(self.receiving.advertised(), Some(key));
                    let length = room.clamp(1, LARGEST_TRANSFER);
                    let a = self.receiving.advertisement(key, 4096, length, call, self.position);
                    let body = Control::Advertisement(a).encode();
                    let sent = Control::decode(Kind::Advertisement, &body);
                    assert_eq!(sent, Ok(Some(Control::Advertisement(a))));
                }
            }
            2 => {
                if let Some(key) = self.receiving.advertised() {
                    let _ = self.receiving.written_to(key);
                    self.receiving.withdrawn(room.min(LARGEST_TRANSFER));
                }
            }
            _ => self.receiving.begun(call),
        }
    }

    fn session_side(&mut self, input: &mut Input) {
        let length = input.word();
        match input.byte() % 5 {
            4 => self.suspend_side(length),
            0 => {
                if let Ok(header) = self.session.next_message(Kind::Data, 1 + length % PAYLOAD) {
                    self.session.sent(&header);
                }
            }
            1 => {
                let opens = if self.connector { Kind::SessionRequest } else { Kind::SessionAccept };
                if let Ok(header) = self.session.next_message(opens, 0) {
                    self.session.sent(&header);
                }
            }
            2 => {
                let unread = self.session.last_received().wrapping_sub(self.consumed);
                if unread > 0 {
                    self.consumed = self.consumed.wrapping_add(1);
                    self.session.reposted(1);
                }
                if self.resize.is_due(self.consumed.wrapping_add(1)) {
                    self.resize.answered();
                }
            }
            _ => {
                let _ = self.resize.fragmented(length as usize, PAYLOAD, LARGEST_PAYLOAD);
                let _ = self.resize.take_answer();
            }
        }
    }

    fn suspend_side(&mut self, choice: u32) {
        match choice % 4 {
            0 if self.suspension.resumption().is_none() => {
                assert!(self.suspension.ask().is_none() || self.suspension.holds_back());
            }
            1 => self.suspension.resumed(),
            2 => self.suspension.answered(),
            _ => {
                let _ = self.suspension.scan(choice);
            }
        }
    }

    fn check(&self) {
        assert!(self.suspension.answer().is_none() || self.suspension.holds_back());
        assert!(self.session.posted() <= BUFFERS);
        assert!(self.session.other_sides_credit() <= u32::from(BUFFERS));
        if let Some(rest) = self.receiving.rest() {
            assert!(rest.taken < rest.length && rest.length <= LARGEST_TRANSFER);
        }
    }
}

/// Decodes one header and one body out of `data`.
pub(crate) fn decode(data: &[u8]) {
    let mut input = Input(data);
    let words = [0; 4].map(|_: u32| input.word());
    if let Ok(header) = Header::decode(words, PAYLOAD) {
        assert_eq!(header.encode(), words);
        assert!(header.length <= PAYLOAD);
        if let Ok(Some(control)) = Control::decode(header.kind, &input.bytes()) {
            let again = Control::decode(control.kind(), &control.encode());
            assert_eq!(again, Ok(Some(control)));
        }
    }
}

/// Runs one end over `data`: the peer's messages and the program's operations.
pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let shape = input.byte();
    let abilities = Abilities { threshold: 2048, read: shape & 1 != 0, write: shape & 2 != 0 };
    let mut end = End {
        session: Session::new(BUFFERS),
        sending: Sending::default(),
        receiving: Receiving::default(),
        resize: Resize::default(),
        suspension: Suspension::default(),
        abilities,
        connector: shape & 4 != 0,
        position: 0,
        rest: 0,
        consumed: 0,
    };
    while !input.0.is_empty() {
        match input.byte() % 8 {
            0..=3 => {
                // An error ends the connection.
                if end.message(&mut input).is_err() {
                    return;
                }
            }
            4 => end.send_side(&mut input),
            5 | 6 => end.receive_side(&mut input),
            _ => end.session_side(&mut input),
        }
        end.check();
    }
}
