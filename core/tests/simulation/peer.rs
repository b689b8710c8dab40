//! One end of a connection with RDMA: what both of its threads share. It follows the switch's
//! `stream/` step by step, with the session's own types.

use crate::link::Link;
use crate::memory::Registration;
use crate::receiver::LARGEST_RECEIVE;
use crate::sender::LARGEST_SEND;
use sanshim_core::session::transfer::{self, Abilities, Receiving, Rest, Sending};
use sanshim_core::session::{
    Complete, Control, Header, Kind, NoCredit, ProtocolError, Resize, Session, LARGEST_BODY,
};

/// What both ends share.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) slots: usize,
    pub(crate) payload: u32,
    pub(crate) largest_payload: u32,
    pub(crate) send_buffer: usize,
    pub(crate) abilities: Abilities,
}

/// Control messages that are due, one of each kind, in the order in which they go.
#[derive(Debug, Default)]
pub(crate) struct Due([Option<Control>; 9]);

fn place(control: &Control) -> usize {
    match control {
        Control::RestInMessages(..) => 0,
        Control::TransferComplete(Complete { behaviour: None, .. }) => 1,
        Control::TransferComplete(_) => 2,
        Control::SendInMessages(..) => 3,
        Control::Advertisement(_) => 4,
        Control::EnterMode(..) => 5,
        Control::Rediscover => 6,
        Control::ResizeAnswer(_) => 7,
        Control::ResizeRequest(_) => 8,
        other => panic!("{other:?} is never due"),
    }
}

impl Due {
    pub(crate) fn note(&mut self, control: Control) {
        self.0[place(&control)] = Some(control);
    }

    pub(crate) fn take_advertisement(&mut self) -> Option<Control> {
        self.0[4].take()
    }

    pub(crate) fn any(&self) -> bool {
        self.0.iter().any(Option::is_some)
    }
}

pub(crate) struct Peer {
    pub(crate) number: usize,
    pub(crate) shape: Shape,
    pub(crate) session: Session,
    pub(crate) sending: Sending,
    pub(crate) receiving: Receiving,
    pub(crate) resize: Resize,
    pub(crate) due: Due,
    /// Bytes sent and received in all.
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) next_read: u32,
    pub(crate) offset: usize,
    /// Data and body sizes of received messages.
    lengths: Vec<(usize, usize)>,
    payload_out: u32,
    payload_in: u32,
    granted: bool,
    /// The sending thread holds the send lock; the receiving thread the receive lock.
    pub(crate) send_locked: bool,
    pub(crate) receive_locked: bool,
    pub(crate) readable: Registration,
    pub(crate) writable: Registration,
    /// The program's memory that is sent from and received into.
    pub(crate) outgoing: Vec<u8>,
    pub(crate) incoming: Vec<u8>,
    pub(crate) dead: bool,
}

/// The byte at `offset` of the stream that end `number` sends.
pub(crate) fn stream_byte(number: usize, offset: u64) -> u8 {
    ((offset + number as u64 * 977).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

impl Peer {
    pub(crate) fn new(number: usize, shape: &Shape) -> Peer {
        Peer {
            number,
            shape: shape.clone(),
            session: Session::new(shape.slots as u16),
            sending: Sending::default(),
            receiving: Receiving::default(),
            resize: Resize::default(),
            due: Due::default(),
            sent: 0,
            received: 0,
            next_read: 1,
            offset: 0,
            lengths: vec![(0, 0); shape.slots],
            payload_out: shape.payload,
            payload_in: shape.payload,
            granted: false,
            send_locked: false,
            receive_locked: false,
            readable: Registration::new(),
            writable: Registration::new(),
            outgoing: vec![0; LARGEST_SEND],
            incoming: vec![0; LARGEST_RECEIVE],
            dead: false,
        }
    }

    pub(crate) fn payload_out(&self) -> usize {
        self.payload_out as usize
    }

    pub(crate) fn is_established(&self) -> bool {
        self.session.last_received() != 0
    }

    /// Publishes a message: a body, then data.
    pub(crate) fn publish(&mut self, header: Header, body: &[u8], data: &[u8], out: &mut Link) {
        assert_eq!(header.length as usize, body.len() + data.len());
        out.fill(&header, &[body, data].concat(), true);
        out.publish(&header);
        self.session.sent(&header);
    }

    fn send_control(&mut self, control: &Control, out: &mut Link) -> Result<(), NoCredit> {
        let kind = control.kind();
        let header = self.session.next_message(kind, kind.body_size())?;
        let body = control.encode();
        self.publish(header, &body[..header.length as usize], &[], out);
        Ok(())
    }

    /// Opens the session (A1).
    pub(crate) fn open(&mut self, out: &mut Link, inc: &mut Link) {
        if self.session.last_sent() != 0 {
            return;
        }
        self.absorb_if_free(inc);
        let kind = if self.number == 0 { Kind::SessionRequest } else { Kind::SessionAccept };
        if self.number == 1 && !self.is_established() {
            return;
        }
        if let Ok(header) = self.session.next_message(kind, 0) {
            self.publish(header, &[], &[], out);
        }
    }

    /// Sends what is due and has credit. Send lock.
    pub(crate) fn send_due(&mut self, out: &mut Link) {
        for at in 0..self.due.0.len() {
            let Some(control) = self.due.0[at] else { continue };
            if self.number_given_up(&control) {
                self.due.0[at] = None;
                continue;
            }
            if self.send_control(&control, out).is_err() {
                return;
            }
            self.due.0[at] = None;
        }
    }

    /// A request for larger buffers that gave way to the peer's (A9).
    fn number_given_up(&self, control: &Control) -> bool {
        matches!(control, Control::ResizeRequest(_)) && !self.resize.is_asking()
    }

    pub(crate) fn try_send_due(&mut self, out: &mut Link) {
        if !self.send_locked {
            self.send_due(out);
        }
    }

    /// Renews the peer's credit if that is due (A16). Receive lock.
    pub(crate) fn update_credit(&mut self, out: &mut Link) {
        if !self.send_locked && self.session.credit_update_due() {
            if let Ok(header) = self.session.next_message(Kind::CreditUpdate, 0) {
                self.publish(header, &[], &[], out);
            }
        }
    }

    fn slot(&self, sequence: u32) -> usize {
        sequence as usize % self.shape.slots
    }

    /// Data and body bytes of a received message.
    pub(crate) fn lengths(&self, sequence: u32) -> (usize, usize) {
        self.lengths[self.slot(sequence)]
    }

    /// Takes in all messages that arrived; true: any. Receive lock.
    pub(crate) fn absorb(&mut self, incoming: &mut Link) -> bool {
        let mut any = false;
        loop {
            let expected = self.session.expected();
            let Some(words) = incoming.look(expected) else { return any };
            let honest = "an honest peer's message";
            let header = Header::decode(words, self.payload_in).expect(honest);
            let at = self.slot(expected);
            self.lengths[at] = (header.data_size() as usize, header.body_size() as usize);
            self.session.received(&header).expect(honest);
            let payload = incoming.payload(expected).to_vec();
            self.absorb_control(&header, &payload).unwrap_or_else(|e| panic!("{honest}: {e}"));
            any = true;
            self.pass_controls(incoming);
        }
    }

    pub(crate) fn absorb_if_free(&mut self, incoming: &mut Link) {
        if !self.receive_locked {
            self.absorb(incoming);
        }
    }

    fn absorb_control(&mut self, header: &Header, payload: &[u8]) -> Result<(), ProtocolError> {
        if header.kind == Kind::Data && header.body_size() == 0 {
            return Ok(());
        }
        let mut body = [0; LARGEST_BODY];
        let size = header.body_size() as usize;
        body[..size].copy_from_slice(&payload[..size]);
        let Some(control) = Control::decode(header.kind, &body)? else { return Ok(()) };
        transfer::obey(&control, header.sequence, &self.sending, &self.receiving)?;
        match control {
            Control::ResizeRequest(size) => {
                self.resize.requested(size, header.sequence, self.number == 0);
            }
            Control::ResizeAnswer(size) => self.resize.answer(size),
            Control::Resized => {
                assert!(self.granted, "resized to what was not granted");
                self.payload_in = self.shape.largest_payload;
            }
            _ => {}
        }
        Ok(())
    }

    /// Posts the buffers of messages without data at the front again. Receive lock.
    pub(crate) fn pass_controls(&mut self, incoming: &mut Link) {
        while self.next_read != self.session.expected() && self.lengths(self.next_read).0 == 0 {
            self.repost(incoming);
        }
        if self.resize.is_due(self.next_read) {
            self.granted = self.shape.largest_payload > self.shape.payload;
            self.due.note(Control::ResizeAnswer(self.shape.largest_payload));
            self.resize.answered();
        }
    }

    /// The message `next_read` is consumed.
    pub(crate) fn repost(&mut self, incoming: &mut Link) {
        incoming.post(self.next_read, true);
        self.session.reposted(1);
        self.next_read = self.next_read.wrapping_add(1);
    }

    /// The receiver answered our request for larger messages. Send lock.
    pub(crate) fn obey_resize(&mut self, out: &mut Link) {
        if self.session.credit() < 2 {
            return;
        }
        let Some(payload) = self.resize.take_answer() else { return };
        if payload > self.payload_out && self.send_control(&Control::Resized, out).is_ok() {
            self.payload_out = payload;
            self.resize.grew();
        }
    }

    /// Sends what fits of `length` bytes of the stream in messages and through the send buffer; how
    /// many did. Send lock.
    pub(crate) fn send_in_messages(
        &mut self,
        data: &[u8],
        out: &mut Link,
        inc: &mut Link,
    ) -> usize {
        if self.resize.has_answer() {
            self.obey_resize(out);
        }
        let mut rides = None;
        if self.due.any() {
            if data.len() + LARGEST_BODY <= self.payload_out() {
                rides = self.due.take_advertisement();
            }
            self.send_due(out);
        }
        let fits = data.len() <= self.payload_out();
        if out.buffer_is_empty() && fits && !self.resize.is_asking() {
            match self.session.next_message(Kind::Data, data.len() as u32) {
                Ok(header) => {
                    match rides {
                        Some(control) => {
                            let body = control.encode();
                            self.publish(header.advertising(), &body, data, out);
                        }
                        None => self.publish(header, &[], data, out),
                    }
                    self.sent += data.len() as u64;
                    return data.len();
                }
                Err(NoCredit) => self.absorb_if_free(inc),
            }
        } else if self.is_established() {
            let largest = self.shape.largest_payload;
            if let Some(wanted) = self.resize.fragmented(data.len(), self.payload_out, largest) {
                self.due.note(Control::ResizeRequest(wanted));
            }
        }
        if let Some(control) = rides {
            self.due.note(control);
        }
        let room = out.space().min(data.len());
        if room > 0 {
            out.append(&data[..room]);
        } else {
            self.absorb_if_free(inc);
        }
        self.sent += room as u64;
        room
    }

    /// True if data may be announced: everything sent before is in messages, and there is credit.
    pub(crate) fn may_announce(&mut self, out: &mut Link, inc: &mut Link) -> bool {
        self.send_due(out);
        self.absorb_if_free(inc);
        let told = self.due.0[1].is_none();
        let free = out.buffer_is_empty() && !self.resize.is_asking();
        told && free && self.is_established() && self.session.credit() >= 2
    }

    /// True if anything was sent after what `rest` announced. Receive lock.
    pub(crate) fn has_data_after(&self, rest: &Rest, incoming: &Link) -> bool {
        let messages = self.session.expected().wrapping_sub(rest.after);
        let mut after = (1..messages).map(|ahead| rest.after.wrapping_add(ahead));
        incoming.buffered() > 0 || after.any(|sequence| self.lengths(sequence).0 > 0)
    }

    /// True if a receive would find something.
    pub(crate) fn is_readable(&self, incoming: &mut Link) -> bool {
        self.next_read != self.session.expected()
            || self.receiving.rest().is_some_and(|rest| rest.address.is_some())
            || incoming.look(self.session.expected()).is_some()
            || incoming.buffered() > 0
    }
}
