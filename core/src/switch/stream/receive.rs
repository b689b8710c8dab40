//! Takes bytes out of a stream, in the order in which they were sent: data that is announced for RDMA read, unread
//! messages, the peer's send buffer.

use super::rdma_receive::Read;
use super::Broken;
use super::Moved;
use super::Stream;
use super::Take;
use super::CHUNK;
use crate::provider::shm::Span;
use crate::session::transfer::Call;
use crate::switch::buffers::Buffers;
use crate::sys::Errno;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// Steps without a byte before a receive gives up: a peer may send control messages for ever.
const MOST_FRUITLESS: u32 = 64;

impl Stream<'_> {
    /// Takes what is there into `to`. Receive lock.
    pub(crate) fn receive(
        &self,
        to: &mut Buffers,
        take: Take,
        call: Call,
    ) -> Result<Moved, Broken> {
        let mut taking = Taking::begin(self, to, take, call);
        let mut fruitless = 0;
        while taking.has_room() && fruitless < MOST_FRUITLESS {
            fruitless += 1;
            match taking.take_next()? {
                Step::Bytes => fruitless = 0,
                Step::Again => {}
                Step::Over => break,
            }
        }
        Ok(taking.finish())
    }

    /// After bytes were consumed: tells the sender. Receive lock.
    #[inline(always)]
    pub(super) fn consumed(&self, bytes: u64, made_room: bool) -> bool {
        let receive = &self.endpoint.receive;
        let total = receive.total();
        self.statistics.received.bytes.add(bytes);
        self.update_credit();
        let published = &self.own().receiving.0.total;
        let is_half_full = || {
            let tail = self.peer().sending.0.tail.load(Relaxed);
            tail.wrapping_sub(receive.head.load(Relaxed)) > self.buffer_in().0.size() / 2
        };
        if !made_room || is_half_full() {
            // No space came free that a writer could wait for, or a later receive tells the writer of it. So this store
            // need not come before a look at the writer's counter.
            published.store(total, Release);
            return false;
        }
        published.swap(total, SeqCst);
        self.signal_write()
    }
}

/// What a step led to.
enum Step {
    /// Bytes were taken.
    Bytes,
    /// None were. The caller looks again at what is there now.
    Again,
    /// There is nothing more, or the program's memory failed.
    Over,
}

/// One receive: where it reads, and what it has taken.
struct Taking<'a, 'b> {
    stream: &'a Stream<'a>,
    to: &'a mut Buffers<'b>,
    take: Take,
    call: Call,
    /// Bytes that it has taken, and takes at most.
    taken: usize,
    most: usize,
    /// The message that it reads from next, and how much of that was read.
    next: u32,
    offset: usize,
    /// Where in the peer's send buffer it reads next.
    head: u64,
    /// Space came free that a sender may wait for.
    made_room: bool,
    fault: Option<Errno>,
}

impl<'a, 'b> Taking<'a, 'b> {
    #[inline(always)]
    fn begin(stream: &'a Stream<'a>, to: &'a mut Buffers<'b>, take: Take, call: Call) -> Self {
        let receive = &stream.endpoint.receive;
        Taking {
            taken: 0,
            most: to.remaining(),
            next: receive.next_read(),
            offset: receive.offset() as usize,
            head: receive.head.load(Relaxed),
            made_room: false,
            fault: None,
            stream,
            to,
            take,
            call,
        }
    }

    #[inline(always)]
    fn has_room(&self) -> bool {
        self.room() > 0
    }

    /// How many more bytes it takes.
    #[inline(always)]
    fn room(&self) -> usize {
        self.most - self.taken
    }

    /// True unless it leaves the bytes where they are.
    #[inline(always)]
    fn consumes(&self) -> bool {
        self.take != Take::Peek
    }

    /// Takes some of the bytes that come next.
    #[inline(always)]
    fn take_next(&mut self) -> Result<Step, Broken> {
        if self.is_announced_data_next() {
            return self.take_announced();
        }
        // Before it is looked for messages: one that was published before those bytes goes first.
        let tail = self.stream.peer().sending.0.tail.load(Acquire);
        if self.next != self.stream.endpoint.session.expected() || self.stream.absorb()? {
            return Ok(self.take_from_message());
        }
        self.take_from_send_buffer(tail)
    }

    /// Announced data follows the message that announced it, before anything else.
    #[inline(always)]
    fn is_announced_data_next(&self) -> bool {
        let rest = self.stream.endpoint.receive.transfers.rest();
        rest.is_some_and(|rest| self.next.wrapping_sub(rest.after) as i32 > 0)
    }

    /// Reads announced data where the sender has it.
    #[inline(always)]
    fn take_announced(&mut self) -> Result<Step, Broken> {
        match self.stream.read_rest(self.to, self.room(), self.take, self.call) {
            Read::Bytes(n) => {
                self.taken += n;
                self.made_room |= self.consumes();
                Ok(if self.consumes() { Step::Bytes } else { Step::Over })
            }
            Read::Over => Ok(Step::Again),
            // A message behind it may say that it comes otherwise.
            Read::NotNow if self.stream.absorb()? => {
                let passed = self.stream.endpoint.receive.next_read();
                if passed.wrapping_sub(self.next) as i32 > 0 {
                    self.next = passed;
                }
                Ok(Step::Again)
            }
            Read::NotNow => Ok(Step::Over),
            Read::Fault(e) => {
                self.fault = Some(e);
                Ok(Step::Over)
            }
        }
    }

    /// Takes from the next message that has data.
    #[inline(always)]
    fn take_from_message(&mut self) -> Step {
        let (stream, receive) = (self.stream, &self.stream.endpoint.receive);
        if self.consumes() {
            self.next = receive.next_read();
        }
        self.next = stream.next_with_data(self.next);
        if self.next == stream.endpoint.session.expected() {
            return Step::Again;
        }
        let data = stream.arrived_data(self.next);
        let n = data.length().saturating_sub(self.offset).min(self.room());
        if receive.transfers.rest().is_some_and(|rest| rest.after == self.next) {
            receive.transfers.begun(self.call);
        }
        if !self.put(data.part(self.offset, n)) {
            return Step::Over;
        }
        self.offset += n;
        if self.offset >= data.length() {
            self.pass_message(data.length());
        } else if self.consumes() {
            receive.read_to(self.next, self.offset as u32);
        }
        Step::Bytes
    }

    /// The message is read to the end: its buffer is posted again.
    #[inline(always)]
    fn pass_message(&mut self, length: usize) {
        let stream = self.stream;
        self.next = self.next.wrapping_add(1);
        self.offset = 0;
        if self.consumes() {
            stream.endpoint.receive.finish(self.next, length as u32);
            stream.endpoint.session.reposted(1);
            stream.statistics.received.messages.add(1);
            stream.pass_controls();
            self.next = stream.endpoint.receive.next_read();
        }
    }

    /// Takes from the peer's send buffer, whose bytes end at `tail`.
    #[inline(always)]
    fn take_from_send_buffer(&mut self, tail: u64) -> Result<Step, Broken> {
        let stream = self.stream;
        // After the tail: where the buffer grew is published before the bytes that lie there.
        let (ring, grown) = stream.buffer_in();
        let there = ring.used(self.head, tail)? as usize;
        if there == 0 {
            return Ok(Step::Over);
        }
        let most = there.min(self.room()).min(CHUNK);
        let piece = stream.stretch(stream.role.peer(), grown, self.head, most);
        if !self.put(piece) {
            return Ok(Step::Over);
        }
        self.head += piece.length() as u64;
        if self.consumes() {
            stream.endpoint.receive.head.store(self.head, Relaxed);
            stream.own().receiving.0.head.store(self.head, Release);
            self.made_room |= piece.length() > 0;
        }
        Ok(Step::Bytes)
    }

    /// Brings bytes to where the call wants them; false: the program's memory failed.
    #[inline(always)]
    fn put(&mut self, from: Span) -> bool {
        let put = match self.take {
            Take::Discard => {
                self.to.skip(from.length());
                Ok(())
            }
            _ => self.to.copy_in(from),
        };
        match put {
            Ok(()) => self.taken += from.length(),
            Err(e) => self.fault = Some(e),
        }
        put.is_ok()
    }

    /// Tells the sender, if it consumed anything, and sends what is due.
    #[inline(always)]
    fn finish(self) -> Moved {
        let (stream, bytes) = (self.stream, self.taken as u64);
        let mut ring = false;
        if self.consumes() {
            if bytes > 0 {
                ring = stream.consumed(bytes, self.made_room);
            }
        } else {
            stream.note_seen(bytes);
        }
        ring |= stream.try_send_due();
        Moved { bytes: self.taken, ring, fault: self.fault }
    }
}
