//! Coming in: frames in their order, by whoever takes the port's completions.

use super::super::frame::{self, Kind, State};
use super::outgoing::Tell;
use super::{stage, In, Link};
use crate::provider::interface::Error;
use crate::provider::shm::{self, Role, Sending, Side};
use crate::session::{Gone, Mark, HEADER_SIZE};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

impl In {
    /// No more may come for the send buffer than it holds.
    fn check_room(&self, own: &Side, count: u64, size: u64) -> Result<(), ()> {
        let used = self.tail.wrapping_sub(own.receiving.0.head.load(Acquire));
        if used.saturating_add(count) > size {
            Err(())
        } else {
            Ok(())
        }
    }
}

impl Link {
    /// A frame came over a queue pair.
    pub(in super::super) fn arrived_over(&self, number: u64, bytes: &[u8]) {
        if self.wire().is_some_and(|wire| wire.number == number) {
            self.arrived(bytes);
        }
    }

    /// A frame came over the one in use. By who takes the port's completions.
    pub(in super::super) fn arrived(&self, bytes: &[u8]) {
        let wrong = match frame::decode(bytes) {
            Err(frame::Malformed) => Some(format!("{} bytes that are no frame", bytes.len())),
            Ok((kind, state, payload)) => {
                let applied = self.apply(kind, &state, payload);
                applied
                    .err()
                    .map(|()| format!("a {kind:?} frame that may not come, or not with that"))
            }
        };
        if let Some(why) = wrong.filter(|_| !self.failed.load(Relaxed)) {
            log::error!("link {:x}: the peer broke the protocol: {why}", self.id);
            if let Some(wire) = self.wire() {
                let _ = wire.pair.flush();
            }
            self.fail(Error::ConnectionReset);
        }
    }

    fn apply(&self, kind: Kind, state: &State, payload: &[u8]) -> Result<(), ()> {
        // SAFETY: called by who takes the port's completions, one at a time.
        let into = unsafe { &mut *self.into.get() };
        match kind {
            Kind::Bound => {
                self.binding.set(payload.to_vec()).map_err(drop)?;
                let _ = self.stage.compare_exchange(stage::OFFERED, stage::BOUND, SeqCst, SeqCst);
                return Ok(());
            }
            Kind::Withdraw => {
                self.refuse();
                return Ok(());
            }
            Kind::Taken | Kind::Refused => {
                let body = self.body.get().ok_or(())?;
                if body.role != Role::Connector || self.stage() != stage::OFFERED {
                    return Err(());
                }
                if kind == Kind::Taken && body.segment.decide(shm::State::Taken) {
                    self.stage.store(stage::OPEN, SeqCst);
                } else {
                    self.stage.store(stage::REFUSED, SeqCst);
                    let _ = body.segment.decide(shm::State::Refused);
                }
                self.wake(body, true, true);
                self.push(Tell::Due);
                return Ok(());
            }
            Kind::Move => return if self.is_to_follow(payload) { Ok(()) } else { Err(()) },
            Kind::Moved => return if self.was_followed() { Ok(()) } else { Err(()) },
            Kind::Ring => return if self.may_write(payload) { Ok(()) } else { Err(()) },
            Kind::State
            | Kind::Message
            | Kind::Bytes
            | Kind::Written
            | Kind::Left
            | Kind::Ask
            | Kind::Answer => {}
        }
        let body = self.body.get().filter(|_| self.stage() == stage::OPEN).ok_or(())?;
        let makes_sense = match kind {
            Kind::Left => self.peer_left(body, payload),
            Kind::Ask => self.peer_asks(body, state, payload),
            Kind::Answer => self.peer_answers(body, payload),
            _ => true,
        };
        if !makes_sense {
            return Err(());
        }
        let (role, sender) = (body.role, body.role.peer());
        let (own, peer) = (body.segment.side(role), body.segment.side(sender));
        // The mark before its byte.
        let mut news = note_mark(&peer.sending.0, own.receiving.0.total.load(Acquire), state);
        match kind {
            Kind::Message => {
                let (header, rest) = payload.split_at_checked(HEADER_SIZE).ok_or(())?;
                let word = |i: usize| {
                    let bytes =
                        [header[4 * i], header[4 * i + 1], header[4 * i + 2], header[4 * i + 3]];
                    u32::from_le_bytes(bytes)
                };
                let words = [word(0), word(1), word(2), word(3)];
                let most = body.segment.geometry().message_size as usize - HEADER_SIZE;
                if words[0] != into.message || rest.len() > most || words[3] as usize != rest.len()
                {
                    return Err(());
                }
                let slot = body.segment.slot(sender, into.message, 0);
                // SAFETY: it fits, as was checked. A peer that sends without credit overwrites what
                // it sent itself.
                unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), slot.payload(), rest.len()) };
                slot.publish(words);
                into.message = into.message.wrapping_add(1);
            }
            Kind::Bytes => {
                let ring = body.segment.send_buffer(sender, false);
                into.check_room(own, payload.len() as u64, ring.size())?;
                let mut rest = payload;
                while !rest.is_empty() {
                    let (to, n) = ring.stretch(into.tail, rest.len());
                    // SAFETY: within the ring, where nothing unread lies.
                    unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), to, n) };
                    into.tail += n as u64;
                    rest = &rest[n..];
                }
                peer.sending.0.tail.swap(into.tail, SeqCst);
                self.consider_offer(body, into.tail);
            }
            Kind::Written => {
                let count = self.written(payload).ok_or(())?;
                into.check_room(own, count, body.segment.geometry().send_buffer.into())?;
                into.tail += count;
                peer.sending.0.tail.swap(into.tail, SeqCst);
            }
            _ => {}
        }
        let (sending, receiving) = (&peer.sending.0, &peer.receiving.0);
        news |= kind != Kind::State;
        // Before the end, by which it is judged.
        receiving.total.store(state.total, SeqCst);
        // The other bits are this end's own.
        let changed = |finished: u32| {
            let known = finished & State::FINISHED_BITS;
            (known != state.finished).then_some(finished ^ known | state.finished)
        };
        news |= sending.finished.fetch_update(SeqCst, SeqCst, changed).is_ok();
        if sending.stalled.swap(state.stalled, SeqCst) != state.stalled {
            news = true;
        }
        let room = receiving.head.swap(state.head, SeqCst) != state.head && {
            let waiting = own.sending.0.tail.load(Relaxed).wrapping_sub(state.head);
            waiting <= u64::from(body.segment.geometry().send_buffer) / 2
        };
        if news || room {
            self.wake(body, news, room);
        }
        if self.starved.load(Relaxed) {
            self.push(Tell::Due);
        }
        Ok(())
    }
}

/// The peer's mark may be a new one, for a reader that has read `total`; true if it is. What it makes gone the sender may not
/// know: it hears late how far the reader is.
fn note_mark(sending: &Sending, total: u64, told: &State) -> bool {
    let before = Mark(sending.urgent.load(Relaxed));
    if before.0 == told.urgent {
        return false;
    }
    let known = Gone(sending.gone.load(Relaxed));
    let known = if before == Mark(0) { known } else { known.with(before, total) };
    let told_gone = Gone(told.gone);
    let more = if told_gone.ahead(total) > known.ahead(total) { told_gone } else { known };
    sending.gone.store(more.0, Relaxed);
    sending.urgent.store(told.urgent, SeqCst);
    true
}
