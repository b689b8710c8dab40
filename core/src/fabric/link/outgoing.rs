//! Sends what this end published and did not send yet, in the stream's order.
//!
//! The sender notes the send buffer's tail, and then sends all messages. The bytes up to that tail follow, and the end
//! goes behind everything.

use super::body::Body;
use super::sender::{Full, LinkSender, CHUNK};
use super::state::{stage, Link};
use crate::fabric::frame::{FrameKind, FrameState};
use crate::fabric::helper;
use crate::provider::shm;
use crate::session::HEADER_SIZE;
use crate::sys::handlers::Undisturbed;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

/// Kinds without data that are sent when they are due, in this order.
const WORDS: [FrameKind; 7] = [
    FrameKind::Proof,
    FrameKind::Entered,
    FrameKind::Withdraw,
    FrameKind::Refused,
    FrameKind::Answer,
    FrameKind::Move,
    FrameKind::Moved,
];

/// What a push tells the peer beside data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::fabric) enum Tell {
    /// What it waits for.
    Due,
    /// Everything.
    All,
    /// Everything, with certainty that it has arrived.
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
    /// Sends what is due, unless another thread is sending, which then sends it.
    pub(in crate::fabric) fn push(&self, tell: Tell) {
        if !self.is_ours() {
            return self.kick_owner();
        }
        let mut tell = tell;
        loop {
            // No handler sends in the stead of the thread that it interrupts.
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
                // Completions that came while no thread knew that another one waits for them; and a lack of buffers
                // that another link's sends end.
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

    fn push_all(&self, out: &mut LinkSender, tell: Tell) -> Result<(), Full> {
        out.certain = tell == Tell::Certain;
        self.reclaim(out);
        // Before Move and Moved, behind which nothing goes out.
        self.send_usage(out)?;
        // Before the words: if the end has entered by now, its word for that is due.
        let stage = self.stage();
        if self.send_words(out, stage)? {
            return Ok(());
        }
        let (Some(body), stage::OPEN) = (self.body.get(), stage) else { return Ok(()) };
        self.send_question(out, body)?;
        if self.due.load(Acquire) & 1 << FrameKind::Ring as u32 != 0 {
            self.offer(out, body)?;
            self.due.fetch_and(!(1 << FrameKind::Ring as u32), SeqCst);
        }
        let (own, peer) = (body.segment.side(body.role), body.segment.side(body.role.peer()));
        let sending = &own.sending.0;
        if peer.sending.0.finished.load(Acquire) & shm::CLOSED != 0 {
            // Nobody reads it any more.
            return Ok(());
        }
        // Before the data, like the end: that this end left goes behind all that it published before.
        let word = sending.direction.state();
        self.send_turned(out, body, word)?;
        // Before the data: what finished is sent behind all of it.
        let finished = sending.finished.load(SeqCst) & FrameState::FINISHED_BITS;
        // Before the messages: those that are published later come later.
        let tail = sending.tail.load(Acquire);
        // The peer gets over TCP what it did not read.
        if !word.recalled {
            self.send_data(out, body, tail)?;
        }
        // Before the end, behind which TCP's may come.
        self.send_pulled(out, body, word)?;
        self.send_left(out, word)?;
        self.send_state(out, body, finished, tell)
    }

    /// Sends what is due of what has no data. True: the link goes on over another queue pair, and nothing more goes
    /// out.
    fn send_words(&self, out: &mut LinkSender, stage: u32) -> Result<bool, Full> {
        for kind in WORDS {
            let bit = 1 << kind as u32;
            // The peer's answer may come at once, and this end takes it only after that stage.
            let is_early = kind == FrameKind::Entered && stage == stage::MADE;
            if self.due.load(Acquire) & bit != 0 && !is_early {
                let moves = matches!(kind, FrameKind::Move | FrameKind::Moved);
                if moves && self.uses_programs_memory() {
                    // A receive that waits with its memory lent takes that back.
                    self.wake_all();
                    continue;
                }
                match kind {
                    FrameKind::Move => self.send(out, kind, &[&self.destination()])?,
                    FrameKind::Answer => self.send_answer(out)?,
                    FrameKind::Proof => self.send_conclusion(out)?,
                    _ => self.send(out, kind, &[])?,
                }
                self.due.fetch_and(!bit, SeqCst);
                if moves && self.seal(kind) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Sends what was published: all messages, and the send buffer up to `tail`.
    fn send_data(&self, out: &mut LinkSender, body: &Body, tail: u64) -> Result<(), Full> {
        loop {
            let next = self.next_out.load(Relaxed);
            let slot = body.segment.slot(body.role, next, false);
            if slot.sequence() != next {
                break;
            }
            let words = slot.header(next);
            let most = body.segment.geometry().message_size as usize - HEADER_SIZE;
            let length = (words[3] as usize).min(most);
            // It is ours until the peer posted it again.
            let payload = slot.payload().part(0, length);
            let header = words.map(u32::to_le_bytes);
            self.send(out, FrameKind::Message, &[header.as_flattened(), payload.bytes()])?;
            self.next_out.store(next.wrapping_add(1), Relaxed);
        }
        let ring = body.segment.send_buffer(body.role, false);
        loop {
            let sent = self.bytes_out.load(Relaxed);
            let left = tail.wrapping_sub(sent).min(ring.size());
            if left == 0 {
                break;
            }
            // No thread writes there until the peer has taken the bytes.
            let from = ring.stretch(sent, left as usize);
            if let Some(written) = self.write(out, body, from.at(), from.length()) {
                self.bytes_out.store(sent + written? as u64, Relaxed);
                continue;
            }
            let piece = from.part(0, CHUNK);
            self.send(out, FrameKind::Bytes, &[piece.bytes()])?;
            self.bytes_out.store(sent + piece.length() as u64, Relaxed);
        }
        Ok(())
    }

    /// Tells the peer what it waits for, or what `tell` asks for, if no frame did yet. `finished`: how the end ends,
    /// whose data was sent.
    fn send_state(
        &self,
        out: &mut LinkSender,
        body: &Body,
        finished: u32,
        tell: Tell,
    ) -> Result<(), Full> {
        let own = body.segment.side(body.role);
        let stalled = own.sending.0.stalled.load(Acquire);
        let (told, receiving) = (out.told, &own.receiving.0);
        let (head, total) = (receiving.head.load(Acquire), receiving.total.load(Acquire));
        let taken = head.wrapping_sub(told.head);
        let due = finished != told.finished
            || stalled != told.stalled
            || body.is_read_due(head, taken)
            || (taken > 0 && tell >= Tell::All)
            || (tell >= Tell::All && total != told.total)
            || (tell == Tell::Certain && out.silent > 0);
        if due {
            out.told.finished = finished;
            let sent = self.send(out, FrameKind::State, &[]);
            if sent.is_err() {
                out.told.finished = told.finished;
            }
            sent?;
        }
        Ok(())
    }

    /// True if the peer does not know of all that was read here, and can be told.
    #[inline]
    pub(in crate::fabric) fn has_rest(&self) -> bool {
        self.body.get().is_some_and(|body| {
            let total = &body.segment.side(body.role).receiving.0.total;
            total.load(Relaxed) != self.told_total.load(Relaxed)
                && self.is_ours()
                && !self.has_failed()
                && !self.is_closed_by_peer()
        })
    }

    fn tell_if_due(&self, body: &Body) {
        let head = body.segment.side(body.role).receiving.0.head.load(Relaxed);
        let taken = head.wrapping_sub(self.told_head.load(Relaxed));
        if body.is_read_due(head, taken) || self.has_message(body) {
            self.push(Tell::Due);
        }
    }

    /// True if a message of ours was published and not sent.
    #[inline]
    pub(super) fn has_message(&self, body: &Body) -> bool {
        let next = self.next_out.load(Relaxed);
        body.segment.slot(body.role, next, false).sequence() == next
    }

    /// The helper tells the peer in a moment what it need not know at once, unless a frame does so before. If this
    /// process is killed, the peer is to know what it had read.
    #[inline]
    fn have_rest_told(&self) {
        if self.has_rest() {
            helper::wake_if_dormant();
        }
    }

    /// After this end received: tells the peer if that is due.
    #[inline]
    pub(in crate::fabric) fn tell_what_was_read(&self) {
        if let Some(body) = self.body.get() {
            self.tell_if_due(body);
        }
        self.have_rest_told();
    }

    /// A thread of this end is about to sleep: tells the peer what it may wait for, and has the completion queue tell
    /// of what comes. This process controls the link.
    pub(in crate::fabric) fn prepare_sleep(&self) {
        let Some(body) = self.body.get() else { return };
        self.tell_if_due(body);
        self.have_rest_told();
        // A handler that finds it armed relies on the look.
        let _undisturbed = Undisturbed::begin();
        if self.port().device.arm() {
            // A look alone is not enough: the thread that takes completions may have looked before the queue was armed.
            self.port().catch_up();
        }
    }

    /// This end published something that its peer waits for. The link asks to be rung for the next as well.
    pub(in crate::fabric) fn have_link_rung_again(&self) {
        if let Some(body) = self.body.get() {
            body.have_link_rung_again();
        }
    }
}
