//! One end of a connection with RDMA: what its threads share. The engine is the session's own. What the switch does with
//! it is copied: here when a send goes in messages, in the send buffer, or may be announced (`stream/send.rs`,
//! `rdma_send.rs`).

mod arriving;
mod deaths;
mod due;

use crate::link::Link;
use crate::memory::Registration;
use crate::receiver::LARGEST_RECEIVE;
use crate::rng::Rng;
use crate::sender::LARGEST_SEND;
use due::Due;
use sanshim_core::session::transfer::{Abilities, Receiving, Rest, Sending};
use sanshim_core::session::{Control, Header, Kind, NoCredit, Resize, Session, LARGEST_BODY};
use std::collections::VecDeque;

/// Threads of an end that send, and as many that receive.
pub(crate) const THREADS: usize = 2;

/// What one step of a thread may touch.
pub(crate) struct Turn<'a> {
    pub(crate) me: &'a mut Peer,
    pub(crate) other: &'a mut Peer,
    pub(crate) out: &'a mut Link,
    pub(crate) inc: &'a mut Link,
    pub(crate) rng: &'a mut Rng,
}

/// What both ends share.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) slots: usize,
    pub(crate) payload: u32,
    pub(crate) largest_payload: u32,
    pub(crate) send_buffer: usize,
}

pub(crate) struct Peer {
    pub(crate) number: usize,
    pub(crate) shape: Shape,
    pub(crate) abilities: Abilities,
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
    /// So many requests for larger buffers find no memory.
    pub(crate) short_of_memory: u32,
    /// Requests that met one of our own.
    pub(crate) collisions: u64,
    /// The message that asked last.
    asked_at: u32,
    /// A sending thread holds the send lock; a receiving one the receive lock.
    pub(crate) send_locked: bool,
    pub(crate) receive_locked: bool,
    /// Whoever holds it died: the bytes that it had claimed and not sent, as far as is known.
    pub(crate) dead_sender: Option<u64>,
    pub(crate) dead_receiver: bool,
    /// For the checks alone: where in the stream the bytes stand that a dead receiver was reading, if it is
    /// not known yet how many it got.
    pub(crate) doubt: Option<u64>,
    pub(crate) readable: Registration,
    pub(crate) writable: Registration,
    /// The program's memory that is sent from and received into, a part for each thread.
    pub(crate) outgoing: Vec<u8>,
    pub(crate) incoming: Vec<u8>,
    /// For the checks alone: the bytes that the program has to send and that calls have taken on,
    /// those of sends that returned, and where in the stream what was not written by RDMA stands.
    pub(crate) total: u64,
    pub(crate) claimed: u64,
    pub(crate) returned: u64,
    /// Advertisements that rode on data (A13).
    pub(crate) rides: u64,
    channel: VecDeque<(u64, usize)>,
    /// For the checks alone: the newest announcement, and how much of it went by RDMA.
    pub(crate) announced: (u32, u32),
    /// For the checks alone: the bytes of the stream that receives returned with, how many they are,
    /// and the end of what is known to be returned.
    pub(crate) arrived: Vec<bool>,
    pub(crate) delivered: u64,
    pub(crate) high: u64,
    pub(crate) dead: bool,
}

/// The byte at `offset` of the stream that end `number` sends.
pub(crate) fn stream_byte(number: usize, offset: u64) -> u8 {
    ((offset + number as u64 * 977).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

impl Peer {
    pub(crate) fn new(
        number: usize,
        shape: &Shape,
        abilities: Abilities,
        [to_send, to_come]: [u64; 2],
    ) -> Peer {
        Peer {
            number,
            shape: shape.clone(),
            abilities,
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
            short_of_memory: 0,
            collisions: 0,
            asked_at: 0,
            send_locked: false,
            receive_locked: false,
            dead_sender: None,
            dead_receiver: false,
            doubt: None,
            readable: Registration::new(),
            writable: Registration::new(),
            outgoing: vec![0; THREADS * LARGEST_SEND],
            incoming: vec![0; THREADS * LARGEST_RECEIVE],
            total: to_send,
            claimed: 0,
            returned: 0,
            rides: 0,
            channel: VecDeque::new(),
            announced: (0, 0),
            arrived: vec![false; to_come as usize],
            delivered: 0,
            high: 0,
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
        self.sent(data.len());
    }

    /// Bytes went where the receiver takes them in order.
    fn sent(&mut self, bytes: usize) {
        self.channel.push_back((self.sent, bytes));
        self.sent += bytes as u64;
    }

    /// Where in the stream the next of the at most `most` bytes stand that the receiver takes in
    /// order, and how many follow one another there.
    pub(crate) fn taken(&mut self, most: usize) -> (u64, usize) {
        loop {
            let (position, length) = self.channel.front_mut().expect("sent before it is taken");
            let (at, n) = (*position, most.min(*length));
            *position += n as u64;
            *length -= n;
            if *length == 0 {
                self.channel.pop_front();
            }
            if n > 0 {
                return (at, n);
            }
        }
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
            let request = matches!(control, Control::ResizeRequest(_));
            if request && !self.resize.is_asking() {
                self.due.0[at] = None;
                continue;
            }
            if self.send_control(&control, out).is_err() {
                return;
            }
            self.due.0[at] = None;
        }
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
                            self.rides += 1;
                        }
                        None => self.publish(header, &[], data, out),
                    }
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
            self.sent(room);
        } else {
            self.absorb_if_free(inc);
        }
        room
    }

    /// Counts what went by RDMA since the session had counted `before`.
    pub(crate) fn count_sent(&mut self, before: u64) -> u64 {
        let bytes = self.sending.bytes() - before;
        self.sent += bytes;
        bytes
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
