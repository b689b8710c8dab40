//! One end: what its processes share. The engine is the session's own; how messages are taken in and
//! what goes when is a copy of the switch's (`stream/`).

use super::provider::{Memory, Provider};
use crate::peer::stream_byte;
use sanshim_core::session::token::Token;
use sanshim_core::session::{Control, Header, Kind, NoCredit, Session, Suspension};
use std::collections::VecDeque;

/// The tokens of an end.
pub(crate) const SEND: usize = 0;
pub(crate) const RECEIVE: usize = 1;

pub(crate) struct End {
    pub(crate) number: usize,
    pub(crate) session: Session,
    pub(crate) suspension: Suspension,
    /// Of the direction that sends, and of the one that receives.
    pub(crate) tokens: [Token; 2],
    payload: usize,
    /// Bytes that fit into the send buffer.
    capacity: usize,
    send_buffer: VecDeque<u8>,
    /// Received messages, with how much of each was read; in order.
    unread: VecDeque<(Vec<u8>, usize)>,
    /// Bytes that programs have to write, wrote, and read.
    pub(crate) total: u64,
    pub(crate) written: u64,
    pub(crate) read: u64,
    /// The connection could not be moved: the process that has that token does without.
    pub(crate) gave_up: [bool; 2],
    /// For the checks: whose turn it is by the tokens.
    pub(crate) holders: [Option<usize>; 2],
}

impl End {
    pub(crate) fn new(
        number: usize,
        slots: u16,
        payload: usize,
        capacity: usize,
        total: u64,
    ) -> End {
        End {
            number,
            session: Session::new(slots),
            suspension: Suspension::default(),
            tokens: [const { Token::new() }; 2],
            payload,
            capacity,
            send_buffer: VecDeque::new(),
            unread: VecDeque::new(),
            total,
            written: 0,
            read: 0,
            gave_up: [false; 2],
            holders: [None; 2],
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.session.last_sent() != 0 && self.session.last_received() != 0
    }

    fn send(
        &self,
        provider: &mut Provider,
        kind: Kind,
        body: &[u8],
        data: &[u8],
    ) -> Result<(), NoCredit> {
        let header = self.session.next_message(kind, (body.len() + data.len()) as u32)?;
        provider.send(self.number, &header, body, data);
        self.session.sent(&header);
        Ok(())
    }

    fn send_control(&self, provider: &mut Provider, control: &Control) -> Result<(), NoCredit> {
        let body = control.encode();
        let size = control.kind().body_size() as usize;
        self.send(provider, control.kind(), &body[..size], &[])
    }

    /// Opens the session (A1).
    pub(crate) fn open(&self, provider: &mut Provider) {
        let kind = if self.number == 0 { Kind::SessionRequest } else { Kind::SessionAccept };
        if self.session.last_sent() == 0 && (self.number == 0 || self.session.last_received() != 0)
        {
            self.send(provider, kind, &[], &[]).expect("the first needs no credit");
        }
    }

    /// Takes one message in; true: there was one.
    pub(crate) fn absorb(&mut self, provider: &mut Provider) -> bool {
        let Some(message) = provider.take(self.number) else { return false };
        let honest = "an honest peer's message";
        let header = Header::decode(message.words, 1 << 16).expect(honest);
        self.session.received(&header).expect(honest);
        if header.kind != Kind::Data {
            if let Some(control) = Control::decode(header.kind, &message.body).expect(honest) {
                self.suspension.obey(&control, self.number == 0).expect(honest);
            }
        }
        self.unread.push_back((message.data, 0));
        self.pass();
        true
    }

    /// Posts the buffers of what was consumed again.
    fn pass(&mut self) {
        while self.unread.front().is_some_and(|(data, offset)| *offset == data.len()) {
            self.unread.pop_front();
            self.session.reposted(1);
        }
    }

    /// Renews the peer's credit if that is due: not while the session is suspended.
    pub(crate) fn update_credit(&self, provider: &mut Provider) {
        if self.session.credit_update_due() && !self.suspension.holds_back() {
            let _ = self.send(provider, Kind::CreditUpdate, &[], &[]);
        }
    }

    /// Tells the peer that nothing is under way here, if nothing is.
    pub(crate) fn answer(&self, provider: &mut Provider) {
        let Some(answer) = self.suspension.answer() else { return };
        let owner = provider.owner(self.number);
        if provider.has(self.number, owner, Memory::Lent) {
            return;
        }
        provider.deregister(self.number, Memory::Posted);
        if self.send_control(provider, &answer).is_ok() {
            self.suspension.answered();
        }
    }

    /// Asks for a suspension; false: there is no credit, or the peer's is in its way.
    pub(crate) fn ask(&self, provider: &mut Provider) -> bool {
        if self.session.credit() < 3 {
            return false;
        }
        provider.deregister(self.number, Memory::Posted);
        let Some(suspend) = self.suspension.ask() else { return false };
        self.send_control(provider, &suspend).expect("three credits");
        true
    }

    /// Ends our suspension, or tries to; true: there is none any more.
    pub(crate) fn resume(&self, provider: &mut Provider) -> bool {
        if let Some(resume) = self.suspension.resumption() {
            if self.send_control(provider, &resume).is_ok() {
                self.suspension.resumed();
            }
        }
        !self.suspension.is_asking()
    }

    /// Sends what was kept in the send buffer.
    pub(crate) fn flush(&mut self, provider: &mut Provider) {
        if self.send_buffer.is_empty() || self.suspension.holds_back() {
            return;
        }
        let n = self.payload.min(self.send_buffer.len());
        let data: Vec<u8> = self.send_buffer.iter().copied().take(n).collect();
        if self.send(provider, Kind::Data, &[], &data).is_ok() {
            self.send_buffer.drain(..n);
        }
    }

    /// A program writes `length` bytes; how many were taken.
    pub(crate) fn write(&mut self, provider: &mut Provider, length: usize) -> usize {
        let byte = |i: usize| stream_byte(self.number, self.written + i as u64);
        let data: Vec<u8> = (0..length).map(byte).collect();
        let now = self.send_buffer.is_empty() && (1..=self.payload).contains(&length);
        if now
            && !self.suspension.holds_back()
            && self.send(provider, Kind::Data, &[], &data).is_ok()
        {
            self.written += length as u64;
            return length;
        }
        self.keep(length)
    }

    /// As far as there is room for them, the bytes that a program writes are kept in the send buffer (D5);
    /// how many are.
    pub(crate) fn keep(&mut self, length: usize) -> usize {
        let room = (self.capacity - self.send_buffer.len()).min(length);
        for _ in 0..room {
            self.send_buffer.push_back(stream_byte(self.number, self.written));
            self.written += 1;
        }
        room
    }

    /// A program reads at most `room` bytes; how many there were.
    pub(crate) fn receive(&mut self, room: usize) -> usize {
        let mut got = 0;
        while got < room {
            let Some((data, offset)) = self.unread.front_mut() else { break };
            let n = (data.len() - *offset).min(room - got);
            for byte in &data[*offset..*offset + n] {
                assert_eq!(*byte, stream_byte(1 - self.number, self.read), "byte {}", self.read);
                self.read += 1;
            }
            *offset += n;
            got += n;
            self.pass();
        }
        got
    }

    pub(crate) fn has_data(&self) -> bool {
        !self.unread.is_empty()
    }

    /// True if nothing waits in the send buffer.
    pub(crate) fn is_flushed(&self) -> bool {
        self.send_buffer.is_empty()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.send_buffer.len() < self.capacity
    }

    pub(crate) fn describe(&self) -> String {
        format!(
            "holders {:?}, wrote {} of {}, read {}, {} in the send buffer, {} unread, credit {}, {:?}, {:?}",
            self.holders,
            self.written,
            self.total,
            self.read,
            self.send_buffer.len(),
            self.unread.len(),
            self.session.credit(),
            self.suspension,
            self.tokens,
        )
    }
}
