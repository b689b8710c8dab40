//! The bell, and the way back to TCP, in the order of `switch/waiting/ring`, `switch/anchor/bell` and
//! `switch/back_to_tcp`.

use super::end::{flag, End, Endpoint};
use super::kernel::Error;
use super::schedule::{call, chance, step, Ready};
use super::transfer::{is_due, is_half_left};
use super::way_back::{end_reading, read_twice, resent};
use super::way_in::{InEvent, WayIn};
use super::way_out::{OutEvent, WayOut};
use std::convert::Infallible;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

impl Endpoint {
    /// True if a ring is due that was not made.
    pub(super) fn is_owing(&self) -> bool {
        self.called_to_read.is_behind(&self.peer().to_read)
            || self.called_to_write.is_behind(&self.peer().to_write)
    }
}

impl End {
    /// Rings the peer's bell, unless another thread did since that was due.
    pub(super) fn ring(&self, e: &Endpoint) {
        let (mut goes_on, word) = (true, &e.own().word);
        if e.is_owing() {
            let (to_read, to_write) = (&e.peer().to_read, &e.peer().to_write);
            e.called_to_read.make(to_read, || {
                e.called_to_write.make(to_write, || {
                    goes_on = word.ring() || !word.state().is_final();
                    call(|kernel| kernel.ring(1 - self.number));
                });
            });
        }
        if !goes_on {
            self.look_after(e);
        }
    }

    /// Before a thread sleeps: takes the rings off, once the threads that they woke are awake.
    pub(super) fn take_off(&self, e: &Endpoint) {
        while e.sleepers.load(Relaxed) > 0 && call(|kernel| kernel.rings(self.number)) {
            step();
        }
        // Not while another thread is about to sleep, whose ring it may be.
        call(|kernel| {
            if e.sleepers.load(Relaxed) == 0 {
                kernel.silence(self.number);
            }
        });
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
        if e.way_out() == WayOut::Tcp {
            if self.retreat(e) {
                return true;
            }
            let _turned = e.sending.try_lock().is_some_and(|_held| self.turn(e));
        }
        if self.behaviour.recalls && e.way_in() != WayIn::Back {
            // For a program that can not read on the SAN.
            self.end_reading(e);
        }
        if !e.state().is_back() {
            let has_left = self.leave(e);
            let goes_on = has_left || is_half_left(e);
            // What goes first may have no room until this end reads what comes over TCP.
            let is_settled = goes_on && self.settle(e);
            if !(is_settled && has_left) {
                return false;
            }
        }
        self.returned.fetch_add(1, Relaxed);
        self.leave_to_kernel(e);
        true
    }

    /// From the next byte on this end sends over TCP; true once it does.
    fn leave(&self, e: &Endpoint) -> bool {
        let _held = e.sending.lock();
        if e.way_out() == WayOut::Left {
            return true;
        }
        let state = e.own().word.state();
        let begun = state.left || state.pulled;
        let over = flag::RESET | flag::BROKEN_PIPE;
        let impossible = if begun { over } else { over | flag::ANCHOR_ENDED };
        if e.has(impossible) {
            return false;
        }
        let (is_gone, has_room) =
            call(|kernel| (kernel.is_reset(self.number), kernel.is(self.number, Ready::Writable)));
        if !state.is_final() && !is_gone && !has_room {
            return false;
        }
        // What is sent again before the peer turns to TCP lies on the SAN as well, if this end dies.
        let resent = (!begun && !is_gone && self.pull(e)).then(|| self.resend(e, false));
        e.own().word.leave();
        e.own().returned.store(1, SeqCst);
        call(|kernel| kernel.ring(1 - self.number));
        if is_gone || resent.unwrap_or_else(|| self.resend(e, begun)) {
            e.step_out(OutEvent::Out);
            call(|kernel| kernel.ring(self.number));
            true
        } else {
            e.step_out(OutEvent::OutInPart);
            false
        }
    }

    /// True if this end sends again by itself what the peer has not read.
    fn pull(&self, e: &Endpoint) -> bool {
        if !chance(self.behaviour.pulls) {
            return false;
        }
        let bytes = e.own().note_pulled(e.peer());
        let room = call(|kernel| kernel.room(self.number));
        let fits = bytes > 0 && (bytes <= room || self.behaviour.overfills);
        let pulls = fits && e.own().word.pull();
        self.pulled.fetch_add(u32::from(pulls), Relaxed);
        pulls
    }

    /// What goes over TCP first; `resumed`: some of it may be out. True if all of it is, or nobody is there.
    fn resend(&self, e: &Endpoint, resumed: bool) -> bool {
        let from = match e.own().word.state() {
            state if state.pulled => e.own().resent_from.load(SeqCst),
            state if state.recalled => e.peer().stopped_at.load(SeqCst),
            _ => return true,
        };
        let written = call(|kernel| kernel.written(self.number));
        let Some(skip) = resent(written, e.own().turned_at.load(SeqCst), resumed) else {
            return call(|kernel| kernel.is_reset(self.number));
        };
        let bytes = e.own().sent_from(from).split_off(skip as usize);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match call(|kernel| kernel.send(self.number, rest)) {
                Ok(sent) => rest = &rest[sent..],
                Err(why) => return why != Error::Again,
            }
        }
        true
    }

    /// Ends reading on the SAN once all is read; true once that is done.
    fn settle(&self, e: &Endpoint) -> bool {
        e.way_in() == WayIn::Back || self.end_reading(e)
    }

    /// Ends reading on the SAN; true if it has.
    fn end_reading(&self, e: &Endpoint) -> bool {
        let _held = e.receiving.lock();
        let sleeps = e.sleepers.load(Relaxed) > 0 && !e.peer().word.state().left;
        if sleeps && !self.behaviour.recalls {
            // A recall takes the peer's ring from this end's own threads.
            return false;
        }
        let unread = || Ok::<_, Infallible>(e.own().has_unread(e.peer()));
        let stops = || {
            e.own().stop();
            let _ = e.own().to_read.raise();
        };
        let passes = || Ok(self.pass_what_comes_again(e));
        let Ok(ended) = end_reading(&e.peer().word, self.behaviour.recalls, unread, stops, passes);
        if ended {
            e.step_in(InEvent::ReadOut);
            call(|kernel| kernel.ring(self.number));
        }
        ended
    }

    /// Takes off what the peer sends again and this end has read; true once it has.
    fn pass_what_comes_again(&self, e: &Endpoint) -> bool {
        let from = e.peer().resent_from.load(SeqCst);
        loop {
            let passed = e.passed.load(Relaxed);
            match read_twice(e.own().read(), from, passed).expect("an honest peer") {
                0 => return true,
                left => match call(|kernel| kernel.receive(self.number, left as usize)) {
                    Ok(bytes) if !bytes.is_empty() => {
                        e.passed.store(passed + bytes.len() as u64, Relaxed);
                    }
                    Err(Error::Again) => return false,
                    _ => return true,
                },
            }
        }
    }
}
