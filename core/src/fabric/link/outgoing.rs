//! Going out: what this end published and did not send yet, in the stream's order.
//!
//! Messages before the bytes of the send buffer that were published before them, and the end behind
//! everything.

use super::super::frame::{self, Kind, State, HEADER};
use super::super::helper;
use super::controller::Controller;
use super::{stage, Body, Full, Link, Out, CHUNK, DEPTH, SILENT};
use crate::provider::interface::{Completion, Error, Flags};
use crate::provider::shm;
use crate::session::HEADER_SIZE;
use crate::sys::handlers::Undisturbed;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

/// What a push tells the peer beside data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Tell {
    /// What it waits for.
    Due,
    /// Everything.
    All,
    /// Everything, and that it has arrived is to be known.
    Certain,
}

impl Tell {
    fn from_note(note: u32) -> Self {
        match note {
            0 | 1 => Tell::Due,
            2 => Tell::All,
            _ => Tell::Certain,
        }
    }
}

impl Link {
    /// Sends what is to be sent, unless another thread is at it, who then does.
    pub(in super::super) fn push(&self, tell: Tell) {
        if !self.is_ours() {
            return self.kick_owner();
        }
        let mut tell = tell;
        loop {
            // Nobody sends in the stead of who is interrupted.
            let _undisturbed = Undisturbed::begin();
            if self.pushing.swap(true, SeqCst) {
                self.again.fetch_max(tell as u32 + 1, SeqCst);
                // Once more: it may just have finished.
                if self.pushing.swap(true, SeqCst) {
                    return;
                }
            }
            tell = tell.max(Tell::from_note(self.again.swap(0, SeqCst)));
            if self.moving.sealed.load(SeqCst) || !self.is_ours() {
                // Another queue pair goes on with it, here or in another process.
                self.pushing.store(false, SeqCst);
                return;
            }
            // SAFETY: `pushing` is held.
            let out = unsafe { &mut *self.out.get() };
            let full = self.push_all(out, tell).is_err() && !self.failed.load(Relaxed);
            let reclaimed = out.reclaimed;
            self.starved.store(full, SeqCst);
            self.pushing.store(false, SeqCst);
            if full {
                // What completed while nobody knew that somebody waits for it; and a lack of
                // buffers that another link's sends end.
                if self.completed.load(SeqCst) != reclaimed {
                    continue;
                }
                helper::wake_if_dormant();
            }
            if self.again.load(SeqCst) == 0 {
                return;
            }
        }
    }

    fn push_all(&self, out: &mut Out, tell: Tell) -> Result<(), Full> {
        out.certain = tell == Tell::Certain;
        self.reclaim(out);
        // Once: Taken goes out when what the peer then sends finds its place, and before anything else of the end.
        let body = self.body.get();
        const WORDS: [Kind; 7] = [
            Kind::Bound,
            Kind::Withdraw,
            Kind::Taken,
            Kind::Refused,
            Kind::Answer,
            Kind::Move,
            Kind::Moved,
        ];
        for kind in WORDS {
            let bit = 1 << kind as u32;
            if self.due.load(Acquire) & bit != 0 && (kind != Kind::Taken || body.is_some()) {
                let (destination, answer) = (self.destination(), self.own_answer());
                let bound = self.binding.get();
                let payload = match kind {
                    Kind::Bound => bound.map_or(&[][..], Vec::as_slice),
                    Kind::Move => &destination,
                    Kind::Answer => &answer,
                    _ => &[],
                };
                self.send(out, kind, &[payload])?;
                self.due.fetch_and(!bit, SeqCst);
                if matches!(kind, Kind::Move | Kind::Moved) && self.seal(kind) {
                    return Ok(());
                }
            }
        }
        let (Some(body), stage::OPEN) = (body, self.stage()) else { return Ok(()) };
        self.send_question(out, body)?;
        if self.due.load(Acquire) & 1 << Kind::Ring as u32 != 0 {
            self.offer(out, body)?;
            self.due.fetch_and(!(1 << Kind::Ring as u32), SeqCst);
        }
        let (own, peer) = (body.segment.side(body.role), body.segment.side(body.role.peer()));
        let sending = &own.sending.0;
        if peer.sending.0.finished.load(Acquire) & shm::CLOSED != 0 {
            // Nobody reads it any more.
            return Ok(());
        }
        // Before the data, like the end: that this end left goes behind all that it published before.
        let word = sending.doorbells.state();
        // Before the data: what finished is sent behind all of it.
        let finished = sending.finished.load(SeqCst) & State::FINISHED_BITS;
        // Before the messages: those that are published later come later.
        let tail = sending.tail.load(Acquire);
        // What the peer did not read it gets over TCP.
        if !word.recalled {
            self.send_data(out, body, tail)?;
        }
        // Before the end, behind which TCP's may come.
        self.send_left(out, word)?;
        let stalled = sending.stalled.load(Acquire);
        let (told, receiving) = (out.told, &own.receiving.0);
        let (head, total) = (receiving.head.load(Acquire), receiving.total.load(Acquire));
        let taken = head.wrapping_sub(told.head);
        let due = finished != told.finished
            || stalled != told.stalled
            || sending.urgent.load(Acquire) != told.urgent
            || taken >= body.eighth()
            || (taken > 0 && (tell >= Tell::All || peer.sending.0.stalled.load(Relaxed) != 0))
            || (tell >= Tell::All && total != told.total)
            || (tell == Tell::Certain && out.silent > 0);
        if due {
            out.told.finished = finished;
            let sent = self.send(out, Kind::State, &[]);
            if sent.is_err() {
                out.told.finished = told.finished;
            }
            sent?;
        }
        Ok(())
    }

    /// Sends what was published: all messages, and the send buffer up to `tail`.
    fn send_data(&self, out: &mut Out, body: &Body, tail: u64) -> Result<(), Full> {
        loop {
            let next = self.next_out.load(Relaxed);
            let slot = body.segment.slot(body.role, next, 0);
            if slot.sequence() != next {
                break;
            }
            let words = slot.header(next);
            let most = body.segment.geometry().message_size as usize - HEADER_SIZE;
            let length = (words[3] as usize).min(most);
            // SAFETY: within the message buffer, which is ours until the peer posted it again.
            let payload = unsafe { std::slice::from_raw_parts(slot.payload(), length) };
            let header = words.map(u32::to_le_bytes);
            self.send(out, Kind::Message, &[header.as_flattened(), payload])?;
            self.next_out.store(next.wrapping_add(1), Relaxed);
        }
        let ring = body.segment.send_buffer(body.role, false);
        loop {
            let sent = self.bytes_out.load(Relaxed);
            let left = tail.wrapping_sub(sent).min(ring.size());
            if left == 0 {
                break;
            }
            let (from, n) = ring.stretch(sent, left as usize);
            if let Some(written) = self.write(out, body, from, n) {
                self.bytes_out.store(sent + written? as u64, Relaxed);
                continue;
            }
            let n = n.min(CHUNK);
            // SAFETY: within the ring; nobody writes there until the peer has taken the bytes.
            let bytes = unsafe { std::slice::from_raw_parts(from, n) };
            self.send(out, Kind::Bytes, &[bytes])?;
            self.bytes_out.store(sent + n as u64, Relaxed);
        }
        Ok(())
    }

    /// The number of the next request; there is room for it.
    pub(super) fn begin(&self, out: &mut Out) -> Result<u64, Full> {
        let number = self.posted.load(Relaxed);
        if number - out.reclaimed >= u64::from(DEPTH) {
            self.reclaim(out);
        }
        if self.wire().is_none()
            || self.failed.load(Relaxed)
            || number - out.reclaimed >= u64::from(DEPTH)
            || !self.port().may_send()
        {
            return Err(Full);
        }
        Ok(number)
    }

    /// True if the next request is to tell of its end, and so of all before it.
    pub(super) fn is_to_tell(&self, out: &Out) -> bool {
        out.silent + 1 >= SILENT || self.port().is_short()
    }

    /// The request was posted. `tells`: of its end.
    pub(super) fn begun(&self, out: &mut Out, number: u64, tells: bool) {
        out.silent = if tells { 0 } else { out.silent + 1 };
        self.posted.store(number + 1, Relaxed);
    }

    /// Sends one frame.
    pub(super) fn send(&self, out: &mut Out, kind: Kind, parts: &[&[u8]]) -> Result<(), Full> {
        let number = self.begin(out)?;
        let certain = self.closing.load(Relaxed) || out.certain;
        let state = self.snapshot(out);
        let payload: usize = parts.iter().map(|part| part.len()).sum();
        let header = frame::encode(kind, payload, &state);
        let length = HEADER + payload;
        let mut small = [0u8; 256];
        let inline = length <= self.port().inline().min(small.len());
        let adapter = || self.port().device().map(|device| device.adapter);
        let held = if inline { None } else { self.port().pool.take(adapter) };
        if !inline && held.is_none() {
            self.port().sent(1);
            return Err(Full);
        }
        let mut to = held.map_or(small.as_mut_ptr(), |buffer| buffer.at);
        for part in std::iter::once(&header[..]).chain(parts.iter().copied()) {
            // SAFETY: header and payload fit into either: a payload is at most CHUNK bytes.
            unsafe {
                std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
                to = to.add(part.len());
            }
        }
        let is_data = matches!(kind, Kind::Message | Kind::Bytes | Kind::Written | Kind::State);
        let tells = held.is_some() || certain || !is_data || self.is_to_tell(out);
        let wire = self.wire().ok_or(Full)?;
        let posted = match held {
            Some(buffer) => wire.pair.send(number, &[buffer.segment(length)], Flags::NONE),
            None if tells => wire.pair.send_inline(number, &small[..length], Flags::NONE),
            None => wire.pair.send_inline(number, &small[..length], Flags::SILENT),
        };
        if let Err(why) = posted {
            self.port().sent(1);
            if let Some(buffer) = held {
                self.port().pool.give_back(buffer);
            }
            // Some providers say at once what others say of the request.
            if !self.ends_on_its_way() {
                self.fail(why);
            }
            return Err(Full);
        }
        if let Some(buffer) = held {
            out.held.push_back((number, buffer));
        }
        self.begun(out, number, tells);
        out.told = state;
        self.told_head.store(state.head, Relaxed);
        self.told_total.store(state.total, Relaxed);
        self.told_finished.store(state.finished, SeqCst);
        Ok(())
    }

    /// What every frame tells: all but the end, which must not overtake data.
    fn snapshot(&self, out: &Out) -> State {
        let Some(body) = self.body.get() else { return State::default() };
        let own = body.segment.side(body.role);
        // A mark that is told comes with what it made gone.
        let urgent = own.sending.0.urgent.load(Acquire);
        let gone = own.sending.0.gone.load(Acquire);
        State {
            head: own.receiving.0.head.load(Acquire),
            total: own.receiving.0.total.load(Acquire),
            urgent,
            gone,
            finished: out.told.finished,
            stalled: own.sending.0.stalled.load(Acquire),
        }
    }

    /// Gives back what completed sends held.
    fn reclaim(&self, out: &mut Out) {
        let completed = self.completed.load(Acquire);
        while let Some((number, buffer)) = out.held.front().copied() {
            if number >= completed || !self.port().pool.give_back(buffer) {
                break;
            }
            out.held.pop_front();
        }
        self.port().sent(completed - out.reclaimed);
        out.reclaimed = completed;
    }

    /// A send, and all before it, completed. By who takes the port's completions.
    pub(in super::super) fn completed(&self, of: &Completion, result: Result<(), Error>) {
        if self.wire().is_none_or(|wire| wire.number != of.queue_pair) {
            // Of one that another took the place of.
            return;
        }
        match result {
            Ok(()) => {
                self.completed.fetch_max(of.request + 1, SeqCst);
                if self.starved.load(SeqCst) {
                    self.push(Tell::Due);
                }
            }
            Err(why) => self.fail_over(of.queue_pair, why),
        }
    }

    /// Gives everything back that unfinished sends held; nothing completes any more.
    pub(super) fn release(&self, out: &mut Out) {
        for (_, buffer) in out.held.drain(..) {
            self.port().pool.give_back(buffer);
        }
        self.port().sent(self.posted.load(Relaxed) - out.reclaimed);
        out.reclaimed = self.posted.load(Relaxed);
    }

    /// What the helper does for it from time to time; true if there is still something to do.
    pub(in super::super) fn tick(&self, tell: Tell) -> bool {
        if self.is_ours() && self.controller().is_some_and(Controller::take_withdrawal) {
            self.withdraw();
        }
        let keeps_anchor = self.keeps_anchor();
        let tell = if keeps_anchor { Tell::Certain } else { tell };
        self.push(tell);
        if keeps_anchor && self.is_drained() {
            self.let_anchor_go();
        }
        if let Some(body) = self.body.get().filter(|_| tell == Tell::Certain) {
            self.note_delivered();
            // For relatives that wait for what had arrived: the port was looked at before.
            body.segment.side(body.role.peer()).sending.0.delivered.fetch_add(1, SeqCst);
        }
        self.progress();
        self.is_busy()
    }

    /// If the peer has all that this end published, relatives learn of it.
    pub(in super::super) fn note_delivered(&self) {
        let Some(body) = self.body.get() else { return };
        // Read before it is found that all of it has arrived.
        let stamp = body.stamp(self.bytes_out.load(Acquire), self.next_out.load(Acquire));
        if self.is_drained() {
            let sending = &body.segment.side(body.role).sending.0;
            sending.delivered.store(stamp, SeqCst);
        }
    }

    /// True if there is something to do for it from time to time.
    pub(in super::super) fn is_busy(&self) -> bool {
        let waits = self.is_moving() || self.starved.load(Relaxed) || self.due.load(Relaxed) != 0;
        (waits && !self.failed.load(Relaxed)) || self.is_returning() || self.keeps_anchor()
    }
}
