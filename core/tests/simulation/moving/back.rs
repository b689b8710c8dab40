//! Doorbells, and the way back to TCP, in the order of `switch/waiting/ring`, `switch/anchor/doorbell` and
//! `switch/back_to_tcp`.

use super::end::{flag, End, Endpoint};
use super::kernel::{Byte, Error};
use super::schedule::{call, Ready};
use super::transfer::{is_due, is_half_left};
use super::way_back::{end_reading, Missing};
use std::convert::Infallible;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

impl Endpoint {
    /// True if a doorbell is due that was not sent.
    pub(super) fn is_owing(&self) -> bool {
        self.called_to_read.is_behind(&self.peer().to_read)
            || self.called_to_write.is_behind(&self.peer().to_write)
    }
}

impl End {
    /// Rings the peer's doorbell, unless another thread did since that was due.
    pub(super) fn ring(&self, e: &Endpoint) {
        if e.has(flag::SENDS_TCP) && !e.sending.try_lock().is_some_and(|_held| self.turn(e)) {
            // Nothing but the stream's bytes may go over TCP yet.
            return;
        }
        let held = e.ringing.lock();
        let mut listens = true;
        if e.is_owing() {
            let (to_read, to_write) = (&e.peer().to_read, &e.peer().to_write);
            e.called_to_read.make(to_read, || {
                e.called_to_write.make(to_write, || listens = self.send_doorbell(e));
            });
            e.own().word.rung();
        }
        drop(held);
        if !listens {
            self.look_after(e);
        }
    }

    /// Sends one, unless the peer does not listen here any more (false).
    fn send_doorbell(&self, e: &Endpoint) -> bool {
        let (owed, word) = (e.owed.load(Relaxed), &e.own().word);
        if !(if owed == 0 { word.promise() } else { word.resume() }) {
            return false;
        }
        let sent = call(|kernel| kernel.send(self.number, &[Byte::Doorbell]));
        let is_full = sent == Err(Error::Again);
        e.owed.store(if is_full { owed.max(1) } else { owed.saturating_sub(1) }, Relaxed);
        true
    }

    /// Before a thread sleeps: takes the doorbells off.
    pub(super) fn drain(&self, e: &Endpoint) {
        self.take_off(e);
        self.look_after(e);
    }

    /// Takes off what the peer promised and not a byte more.
    fn take_off(&self, e: &Endpoint) {
        if e.has(flag::NO_MORE_DOORBELLS) {
            return;
        }
        let word = &e.peer().word;
        let _held = e.draining.lock();
        if e.has(flag::RECEIVES_TCP) {
            let state = word.state();
            let is_without = state.is_final()
                && (!state.turned || state.bells == e.peer().turned_at.load(SeqCst));
            if is_without {
                e.set(flag::NO_MORE_DOORBELLS);
            }
            return;
        }
        while !e.has(flag::NO_MORE_DOORBELLS) {
            let state = word.state();
            let promised = state.bells.saturating_sub(e.heard.load(Relaxed));
            if promised == 0 {
                if state.is_final() {
                    e.set(flag::NO_MORE_DOORBELLS);
                }
                return;
            }
            match call(|kernel| kernel.receive(self.number, promised as usize)) {
                Ok(bytes) if !bytes.is_empty() => {
                    assert!(bytes.iter().all(|byte| *byte == Byte::Doorbell), "a byte was lost");
                    e.heard.fetch_add(bytes.len() as u64, Relaxed);
                }
                Err(Error::Again) => return,
                // Promised by one that died before it was sent.
                _ if word.state().is_final() => e.set(flag::NO_MORE_DOORBELLS),
                _ => return e.set(flag::ANCHOR_ENDED),
            }
        }
    }

    /// Goes on with a return that either end began; true if the socket is on TCP now.
    pub(super) fn look_after(&self, e: &Endpoint) -> bool {
        (is_due(e) || e.own().word.state().recalled) && self.advance(e)
    }

    /// Begins the return or goes on with it; true if the socket is on TCP now.
    pub(super) fn advance(&self, e: &Endpoint) -> bool {
        if !self.is_on_san(e) {
            return true;
        }
        if e.has(flag::SENDS_TCP) {
            if self.retreat(e) {
                return true;
            }
            let _turned = e.sending.try_lock().is_some_and(|_held| self.turn(e));
        }
        if self.behaviour.recalls && !e.has(flag::READ_OUT) {
            // For a program that can not read on the SAN.
            self.end_reading(e);
        }
        if !e.has(flag::NATIVE) {
            let has_left = self.leave(e);
            if !(has_left || is_half_left(e)) || !self.settle(e) {
                return false;
            }
            if !has_left {
                // What goes first has no room, perhaps until this end reads what comes over TCP.
                e.set(flag::RECEIVES_TCP);
                return false;
            }
            e.set(flag::NATIVE);
        }
        self.returned.fetch_add(1, Relaxed);
        self.leave_to_kernel(e);
        true
    }

    /// From the next byte on this end sends over TCP; true once it does.
    fn leave(&self, e: &Endpoint) -> bool {
        let _held = e.sending.lock();
        if e.has(flag::LEFT) {
            return true;
        }
        let state = e.own().word.state();
        let over = flag::RESET | flag::BROKEN_PIPE;
        let impossible = if state.left { over } else { over | flag::ANCHOR_ENDED };
        if e.has(impossible) {
            return false;
        }
        let (is_gone, has_room) =
            call(|kernel| (kernel.is_reset(self.number), kernel.is(self.number, Ready::Writable)));
        if !state.is_final() && !is_gone && !has_room {
            return false;
        }
        let _ringing = e.ringing.lock();
        e.own().word.leave();
        e.own().returned.store(1, SeqCst);
        if is_gone || self.resend(e, state.left) {
            e.set(flag::LEFT);
            true
        } else {
            e.set(flag::LEAVING);
            false
        }
    }

    /// What goes over TCP first; `resumed`: some of it may be out. True if all of it is, or nobody is there.
    fn resend(&self, e: &Endpoint, resumed: bool) -> bool {
        let state = e.own().word.state();
        let written = call(|kernel| kernel.written(self.number));
        let Some(missing) = Missing::of(state, e.owed.load(Relaxed), true, written, resumed) else {
            return call(|kernel| kernel.is_reset(self.number));
        };
        let mut bytes = vec![Byte::Doorbell; missing.doorbells as usize];
        if state.recalled {
            let unread = e.own().unread_of(e.peer());
            bytes.extend(unread.into_iter().skip(missing.skip as usize).map(Byte::Stream));
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match call(|kernel| kernel.send(self.number, rest)) {
                Ok(sent) => rest = &rest[sent..],
                Err(why) => return why != Error::Again,
            }
        }
        true
    }

    /// Ends reading on the SAN once all is read, and takes the last doorbells off; true once that is done.
    fn settle(&self, e: &Endpoint) -> bool {
        if !e.has(flag::READ_OUT) && !self.end_reading(e) {
            return false;
        }
        self.take_off(e);
        e.has(flag::NO_MORE_DOORBELLS)
    }

    /// Ends reading on the SAN; true if it has.
    fn end_reading(&self, e: &Endpoint) -> bool {
        let _held = e.receiving.lock();
        let sleeps = e.sleepers.load(Relaxed) > 0 && !e.peer().word.state().left;
        if sleeps && !self.behaviour.recalls {
            // Who recalls takes the peer's doorbell from its own threads.
            return false;
        }
        let unread = || Ok::<_, Infallible>(e.own().has_unread(e.peer()));
        let stops = || {
            e.own().stop();
            let _ = e.own().to_read.raise();
        };
        let Ok(ended) = end_reading(&e.peer().word, self.behaviour.recalls, unread, stops);
        if ended {
            e.set(flag::READ_OUT);
        }
        ended
    }
}
