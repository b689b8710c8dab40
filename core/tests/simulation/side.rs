//! One end of the simulated connection: a session and the threads (or forked processes) that use
//! it. A thread is a state machine that does one operation per step, so that the schedule can
//! switch, or kill it, between any two.

use crate::link::Link;
use crate::rng::Rng;
use sanshim_core::session::{Header, Kind, Session};

/// How one end behaves.
#[derive(Clone, Debug)]
pub(crate) struct Behaviour {
    pub(crate) threads: usize,
    /// Bytes to write in all.
    pub(crate) total: u64,
    /// Largest write and read.
    pub(crate) largest_write: usize,
    pub(crate) largest_read: usize,
    /// How often an idle thread reads rather than writes, in percent.
    pub(crate) reads: usize,
    /// False: never reads, only takes credit in.
    pub(crate) reading: bool,
    /// `Some(size)`: writes `size` bytes, then waits for as many.
    pub(crate) ping: Option<u64>,
    /// True: writes back what it read and no more.
    pub(crate) pong: bool,
    /// Threads publish after they left the send lock, in any order (A15).
    pub(crate) late: bool,
}

/// What both ends share.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) slots: usize,
    pub(crate) max_payload: usize,
    /// Bytes of the send buffer; 0: only messages, which both ends must read.
    pub(crate) send_buffer: usize,
}

#[derive(Clone, Debug)]
enum State {
    Idle,
    Open,
    Write { length: usize },
    Update,
    Filled { header: Header, length: usize },
    Published { header: Header },
    Reserved { header: Header },
    Snapshot { want: usize },
    Scan { want: usize, buffered: usize },
    Consume { want: usize, buffered: usize },
    Repost,
    Due,
    Dead,
}

pub(crate) struct Side {
    pub(crate) session: Session,
    pub(crate) behaviour: Behaviour,
    shape: Shape,
    number: usize,
    threads: Vec<State>,
    send_lock: Option<usize>,
    receive_lock: Option<usize>,
    /// Reserved but not yet published messages.
    reserved: usize,
    /// Bytes that are part of the stream we send, and bytes read from the other.
    pub(crate) written: u64,
    pub(crate) read: u64,
    /// Sequence number of the last message consumed, and how much of the next one was.
    consumed: u32,
    offset: usize,
    /// Payload lengths of received messages by buffer: the peer's memory is read once.
    lengths: Vec<usize>,
    /// PR + LRSQ of the last header sent.
    granted: u32,
    updates: u64,
    reposted: u64,
    /// Whether the peer keeps the protocol.
    pub(crate) honest_peer: bool,
    /// We ended the connection because the peer broke the protocol.
    pub(crate) failed: bool,
}

/// The byte at `offset` of the stream that side `number` writes.
fn stream_byte(number: usize, offset: u64) -> u8 {
    ((offset + number as u64 * 977).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

impl Side {
    pub(crate) fn new(number: usize, shape: &Shape, behaviour: &Behaviour) -> Side {
        Side {
            session: Session::new(shape.slots as u16),
            behaviour: behaviour.clone(),
            shape: shape.clone(),
            number,
            threads: vec![State::Idle; behaviour.threads],
            send_lock: None,
            receive_lock: None,
            reserved: 0,
            written: 0,
            read: 0,
            consumed: 0,
            offset: 0,
            lengths: vec![0; shape.slots],
            granted: 0,
            updates: 0,
            reposted: 0,
            honest_peer: true,
            failed: false,
        }
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads.len()
    }

    pub(crate) fn kill(&mut self, thread: usize) {
        self.threads[thread] = State::Dead;
    }

    pub(crate) fn kill_all(&mut self) {
        self.threads.fill(State::Dead);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.threads.iter().all(|state| matches!(state, State::Dead))
    }

    /// Credit updates sent.
    pub(crate) fn updates(&self) -> u64 {
        self.updates
    }

    fn may_write(&self) -> u64 {
        let behaviour = &self.behaviour;
        let end = match behaviour.ping {
            Some(size) => behaviour.total.min(self.read + size),
            None if behaviour.pong => self.read,
            None => behaviour.total,
        };
        end.saturating_sub(self.written)
    }

    fn next_bytes(&self, length: usize) -> Vec<u8> {
        (0..length as u64).map(|i| stream_byte(self.number, self.written + i)).collect()
    }

    /// Takes the send lock, also from a dead holder. A message that the dead one published but did not
    /// record is recorded now.
    fn lock_send(&mut self, thread: usize, out: &mut Link) -> bool {
        match self.send_lock {
            Some(holder) if !matches!(self.threads[holder], State::Dead) => return false,
            Some(_) => {
                if let Some(words) = out.published(self.session.last_sent().wrapping_add(1)) {
                    let header = Header::decode(words, self.shape.max_payload as u32).unwrap();
                    self.record_sent(&header);
                }
            }
            None => {}
        }
        self.send_lock = Some(thread);
        true
    }

    fn lock_receive(&mut self, thread: usize) -> bool {
        match self.receive_lock {
            Some(holder) if !matches!(self.threads[holder], State::Dead) => false,
            _ => {
                self.receive_lock = Some(thread);
                true
            }
        }
    }

    fn record_sent(&mut self, header: &Header) {
        self.session.sent(header);
        self.granted = header.last_received.wrapping_add(u32::from(header.posted));
    }

    /// One operation of `thread`. True: it changed something others can see.
    pub(crate) fn step(
        &mut self,
        thread: usize,
        out: &mut Link,
        incoming: &mut Link,
        rng: &mut Rng,
    ) -> bool {
        let written = self.written;
        let (next, mut progress) = match self.threads[thread].clone() {
            State::Dead => return false,
            State::Idle => (self.choose(thread, out, rng), false),
            State::Open => (self.open(out), false),
            State::Write { length } => self.write(length, out),
            State::Update => (self.update(out), false),
            State::Filled { header, length } => (self.publish(header, length, out), true),
            State::Published { header } => {
                self.record_sent(&header);
                self.send_lock = None;
                (State::Idle, true)
            }
            State::Reserved { header } => {
                out.publish(&header);
                self.reserved -= 1;
                (State::Idle, true)
            }
            State::Snapshot { want } => {
                (State::Scan { want, buffered: incoming.buffered() }, false)
            }
            State::Scan { want, buffered } => self.scan(want, buffered, incoming),
            State::Consume { want, buffered } => self.consume(want, buffered, incoming),
            State::Repost => self.repost(incoming),
            State::Due => {
                let due = self.session.credit_update_due() && self.lock_send(thread, out);
                (if due { State::Update } else { State::Idle }, false)
            }
        };
        progress |= self.written != written;
        self.threads[thread] = next;
        assert!(usize::from(self.session.posted()) <= self.shape.slots);
        assert!(self.session.credit() as usize <= self.shape.slots + 1);
        progress
    }

    fn choose(&mut self, thread: usize, out: &mut Link, rng: &mut Rng) -> State {
        let opened = self.session.last_sent() != 0;
        let answers = self.number == 0 || self.session.last_received() != 0;
        if !opened && answers && self.lock_send(thread, out) {
            return State::Open;
        }
        let may_write = self.may_write() as usize;
        if may_write == 0 || rng.percent(self.behaviour.reads) {
            if self.lock_receive(thread) {
                let reading = self.behaviour.reading;
                let want = if reading { rng.range(1, self.behaviour.largest_read) } else { 0 };
                return State::Snapshot { want };
            }
        } else if self.lock_send(thread, out) {
            let length = rng.range(1, self.behaviour.largest_write).min(may_write);
            return State::Write { length };
        }
        State::Idle
    }

    fn open(&mut self, out: &mut Link) -> State {
        let kind = if self.number == 0 { Kind::SessionRequest } else { Kind::SessionAccept };
        match self.session.next_message(kind, 0) {
            Ok(header) => {
                assert_eq!(header.sequence, 1);
                out.fill(&header, &[], self.honest_peer);
                State::Filled { header, length: 0 }
            }
            // Another thread was faster.
            Err(_) => self.unlock_send(),
        }
    }

    fn unlock_send(&mut self) -> State {
        self.send_lock = None;
        State::Idle
    }

    fn write(&mut self, length: usize, out: &mut Link) -> (State, bool) {
        // The end of the stream may have moved between the choice and the lock.
        let mut length = length.min(self.may_write() as usize);
        if self.shape.send_buffer == 0 {
            length = length.min(self.shape.max_payload);
        }
        if length == 0 {
            return (self.unlock_send(), false);
        }
        if out.buffer_is_empty() && length <= self.shape.max_payload {
            let credit = self.session.credit();
            if let Ok(header) = self.session.next_message(Kind::Data, length as u32) {
                assert!(credit >= 2, "the last credit went to data");
                out.fill(&header, &self.next_bytes(length), self.honest_peer);
                return (State::Filled { header, length }, false);
            }
        }
        let room = out.space().min(length);
        // Bytes in the send buffer would overtake a message that is not published yet.
        if room > 0 && self.reserved == 0 {
            out.append(&self.next_bytes(room));
            self.written += room as u64;
        }
        (self.unlock_send(), false)
    }

    fn update(&mut self, out: &mut Link) -> State {
        if !self.session.credit_update_due() {
            return self.unlock_send();
        }
        let theirs = self.session.other_sides_credit();
        let Ok(header) = self.session.next_message(Kind::CreditUpdate, 0) else {
            return self.unlock_send();
        };
        let threshold = u32::from(self.session.threshold());
        assert!(theirs < threshold, "credit update at credit {theirs}");
        let gain =
            header.last_received.wrapping_add(u32::from(header.posted)).wrapping_sub(self.granted);
        assert!(gain >= threshold, "a credit update that gives {gain}");
        self.updates += 1;
        assert!(
            self.updates * u64::from(threshold) <= self.reposted + self.shape.slots as u64,
            "{} credit updates for {} buffers posted again",
            self.updates,
            self.reposted
        );
        out.fill(&header, &[], self.honest_peer);
        State::Filled { header, length: 0 }
    }

    fn publish(&mut self, header: Header, length: usize, out: &mut Link) -> State {
        self.written += length as u64;
        if self.behaviour.late {
            self.record_sent(&header);
            self.reserved += 1;
            self.send_lock = None;
            return State::Reserved { header };
        }
        out.publish(&header);
        State::Published { header }
    }

    fn scan(&mut self, want: usize, buffered: usize, incoming: &mut Link) -> (State, bool) {
        let Some(words) = incoming.look(self.session.expected()) else {
            return (State::Consume { want, buffered }, false);
        };
        let theirs = self.session.other_sides_credit();
        let credit = self.session.credit();
        let result = Header::decode(words, self.shape.max_payload as u32)
            .and_then(|header| self.session.received(&header).map(|()| header));
        if let Ok(header) = &result {
            self.lengths[header.sequence as usize % self.shape.slots] = header.length as usize;
        }
        match result {
            Ok(header) if self.honest_peer => {
                assert_eq!(self.session.last_received(), header.sequence);
                assert_eq!(self.session.other_sides_credit(), theirs.saturating_sub(1));
                let gain = self.session.credit() - credit;
                let threshold = u32::from(self.session.threshold());
                if header.kind == Kind::CreditUpdate {
                    assert!(gain >= threshold, "an update raised the credit by {gain}");
                }
            }
            Ok(_) => {}
            Err(error) => {
                assert!(!self.honest_peer, "honest message refused: {error}");
                self.failed = true;
                self.kill_all();
                return (State::Dead, true);
            }
        }
        (State::Scan { want, buffered }, true)
    }

    fn verify(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let expected = stream_byte(1 - self.number, self.read);
            assert!(
                *byte == expected || !self.honest_peer,
                "side {} read a wrong byte at offset {}",
                self.number,
                self.read
            );
            self.read += 1;
        }
    }

    fn consume(&mut self, want: usize, buffered: usize, incoming: &mut Link) -> (State, bool) {
        if self.consumed == self.session.last_received() {
            // No message is left: what was in the send buffer before the scan comes next.
            let count = want.min(buffered);
            let bytes = incoming.take(count);
            self.verify(&bytes);
            return (State::Repost, count > 0);
        }
        let sequence = self.consumed.wrapping_add(1);
        let left = self.lengths[sequence as usize % self.shape.slots] - self.offset;
        let count = left.min(want);
        let bytes = incoming.payload(sequence)[self.offset..self.offset + count].to_vec();
        self.verify(&bytes);
        self.offset += count;
        if count < left {
            return (State::Repost, count > 0);
        }
        self.consumed = sequence;
        self.offset = 0;
        (State::Consume { want: want - count, buffered }, true)
    }

    /// Posts what was consumed, also by a reader that died before it could.
    fn repost(&mut self, incoming: &mut Link) -> (State, bool) {
        let unread = self.session.last_received().wrapping_sub(self.consumed);
        let count = self.shape.slots as u32 - u32::from(self.session.posted()) - unread;
        for behind in 0..count {
            incoming.post(self.consumed.wrapping_sub(behind), self.honest_peer);
        }
        self.session.reposted(count as u16);
        self.reposted += u64::from(count);
        self.receive_lock = None;
        (State::Due, count > 0)
    }
}
