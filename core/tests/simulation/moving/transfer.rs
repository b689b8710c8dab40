//! What the threads of an end do: one sends a stream, one receives the peer's, both waiting where they have to; in the order of
//! `switch/transfer`, `switch/waiting` and `switch/anchor/switchover`.

use super::agreement::AgreementState;
use super::end::{flag, stream_byte, End, Endpoint};
use super::kernel::Error;
use super::schedule::{call, chance, range, sleep_until, step, Ready};
use super::turn::Inbound;
use super::way_in::{InEvent, WayIn};
use super::way_out::WayOut;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// A thread waits to read, or for room.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Read,
    Write,
}

/// What a look for bytes came to.
enum Found {
    Bytes,
    Nothing,
    End,
    /// The connection may go another way by now.
    Again,
}

impl End {
    /// The sending thread.
    pub(super) fn send_all(&self) {
        while self.sent.load(Relaxed) < self.behaviour.total {
            let sent = self.sent.load(Relaxed);
            let most = (self.behaviour.total - sent).min(self.behaviour.largest as u64);
            let end = sent + range(1, most as usize) as u64;
            self.attempted.store(end, Relaxed);
            let bytes: Vec<u8> = (sent..end).map(|at| stream_byte(self.number, at)).collect();
            if self.send(&bytes).is_err() {
                return;
            }
            self.sent.store(end, Relaxed);
            if self.behaviour.waits {
                self.wait_outside(end);
            } else {
                self.go_back_sometimes();
            }
        }
        // Bytes that are owed on the way back go with the calls that follow.
        while let Some(e) = self.endpoint().filter(|e| is_half_left(e) && !self.is_read()) {
            // A peer that has read all makes no room for what comes again.
            if self.behaviour.overfills {
                step();
            } else {
                sleep_until(Ready::Writable);
            }
            self.look_after(&e);
        }
        while self.behaviour.recalls && !self.place.is_over() && !self.is_alone() {
            if let Some(e) = self.endpoint() {
                self.look_after(&e);
            }
        }
    }

    /// True if the peer has read all of it.
    fn is_read(&self) -> bool {
        self.place.read[1 - self.number].load(Relaxed) == self.behaviour.total
    }

    fn is_alone(&self) -> bool {
        call(|kernel| kernel.has_ended(self.number))
    }

    /// Until the peer has read so many bytes.
    fn wait_outside(&self, sent: u64) {
        while self.place.read[1 - self.number].load(Relaxed) < sent && !self.is_alone() {
            step();
        }
    }

    /// The receiving thread.
    pub(super) fn receive_all(&self, total: u64) {
        self.receive_until(total);
        self.place.note_received();
    }

    fn receive_until(&self, total: u64) {
        while self.read() < total {
            if !self.receive(total) {
                self.ended.store(true, Relaxed);
                return;
            }
            self.go_back_sometimes();
        }
    }

    fn go_back_sometimes(&self) {
        if chance(self.behaviour.returns) {
            if let Some(e) = self.endpoint() {
                self.advance(&e);
            }
        }
    }

    fn send(&self, bytes: &[u8]) -> Result<(), Error> {
        self.pinned(|| self.send_pinned(bytes))
    }

    fn send_pinned(&self, bytes: &[u8]) -> Result<(), Error> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let sent = match self.endpoint() {
                None => match self.on_tcp(|| self.send_over_tcp(rest)) {
                    Some(sent) => sent?,
                    None => continue,
                },
                Some(e) => self.send_on_san(&e, rest)?,
            };
            rest = &rest[sent..];
        }
        Ok(())
    }

    /// The kernel's own call, which waits.
    fn send_over_tcp(&self, bytes: &[u8]) -> Result<usize, Error> {
        loop {
            match call(|kernel| kernel.send(self.number, bytes)) {
                Err(Error::Again) => sleep_until(Ready::Writable),
                sent => return sent,
            }
        }
    }

    /// Sends what goes now; nothing: it is to look again.
    fn send_on_san(&self, e: &Endpoint, bytes: &[u8]) -> Result<usize, Error> {
        self.look_after(e);
        if e.way_out() == WayOut::Tcp && e.segment.agreement.state() == AgreementState::Withdrawn {
            self.retreat(e);
        }
        let held = e.sending.lock();
        if is_half_left(e) {
            drop(held);
            if !self.look_after(e) && is_half_left(e) {
                sleep_until(Ready::Writable);
            }
            return Ok(0);
        }
        if !self.is_on_san(e) || e.way_out() == WayOut::Left {
            drop(held);
            return self.send_over_tcp(bytes);
        }
        if e.has(flag::RESET | flag::BROKEN_PIPE | flag::ANCHOR_ENDED) {
            return Err(Error::Pipe);
        }
        if !self.turn(e) {
            let sent = call(|kernel| kernel.send(self.number, bytes));
            drop(held);
            return match sent {
                Err(Error::Again) => {
                    self.wait(e, Event::Write);
                    Ok(0)
                }
                Err(why) => {
                    self.broke(e, why);
                    Err(why)
                }
                sent => sent,
            };
        }
        let sent = e.own().put(e.peer(), bytes);
        let rings = sent > 0 && e.peer().to_read.signal_after(&e.called_to_read);
        drop(held);
        if rings {
            self.ring(e);
        }
        if sent == 0 {
            self.wait(e, Event::Write);
        }
        Ok(sent)
    }

    /// One receive; false at the end.
    fn receive(&self, total: u64) -> bool {
        self.pinned(|| self.receive_pinned(total))
    }

    fn receive_pinned(&self, total: u64) -> bool {
        loop {
            let most = range(1, self.behaviour.largest);
            let most = most.min((total - self.read()) as usize);
            let found = match self.endpoint() {
                None => match self.on_tcp(|| self.receive_over_tcp(most)) {
                    Some(is_more) => return is_more,
                    None => Found::Again,
                },
                Some(e) => self.receive_on_san(&e, most),
            };
            match found {
                Found::Bytes => return true,
                Found::End => return false,
                Found::Nothing | Found::Again => {}
            }
        }
    }

    /// The kernel's own call, which waits.
    fn receive_over_tcp(&self, most: usize) -> bool {
        loop {
            match call(|kernel| kernel.receive(self.number, most)) {
                Ok(bytes) => {
                    self.read_from_kernel(&bytes);
                    return !bytes.is_empty();
                }
                Err(Error::Again) => sleep_until(Ready::Readable),
                Err(_) => return false,
            }
        }
    }

    fn receive_on_san(&self, e: &Endpoint, most: usize) -> Found {
        if is_half_left(e) || e.way_in() == WayIn::Back {
            self.look_after(e);
        }
        let held = e.receiving.lock();
        if !self.is_on_san(e) {
            return Found::Again;
        }
        if e.way_in() != WayIn::San {
            let found = self.take_over_tcp(e, most);
            drop(held);
            if let Found::Nothing = found {
                self.look_after(e);
                self.wait(e, Event::Read);
            }
            return found;
        }
        // Before the look: at an end that is seen here nothing comes any more.
        let ended = e.has(flag::ANCHOR_ENDED | flag::RESET);
        let bytes = e.own().take(e.peer(), most);
        for byte in &bytes {
            self.read_byte(*byte);
        }
        let rings = !bytes.is_empty() && e.peer().to_write.signal_after(&e.called_to_write);
        drop(held);
        if rings {
            self.ring(e);
        }
        if !bytes.is_empty() {
            return Found::Bytes;
        }
        if self.look_after(e) {
            return Found::Again;
        }
        if ended {
            return Found::End;
        }
        self.wait(e, Event::Read);
        Found::Nothing
    }

    /// Takes bytes of the stream off the TCP connection. Receive lock.
    fn take_over_tcp(&self, e: &Endpoint, most: usize) -> Found {
        let peer = e.peer();
        if e.way_in() == WayIn::Back {
            return match call(|kernel| kernel.receive(self.number, most)) {
                Ok(bytes) if !bytes.is_empty() => {
                    self.read_from_kernel(&bytes);
                    Found::Bytes
                }
                Err(Error::Again) => Found::Nothing,
                _ => Found::End,
            };
        }
        let taken = || call(|kernel| kernel.taken(self.number));
        let receive = |most| call(|kernel| kernel.receive(self.number, most));
        let next = e.over_tcp.next(&peer.word, &peer.turned_at, taken).expect("an honest peer");
        let (received, is_before_turn) = match next {
            Inbound::San(_) => {
                e.step_in(InEvent::Turned);
                return Found::Again;
            }
            Inbound::Before(left) => (receive(most.min(left as usize)), true),
            Inbound::Tcp => match peer.word.while_taking(|| receive(most)) {
                Some(received) => (received, false),
                None => return Found::Again,
            },
        };
        match received {
            Ok(bytes) if !bytes.is_empty() => {
                e.over_tcp.took(bytes.len() as u64);
                self.read_from_kernel(&bytes);
                Found::Bytes
            }
            Err(Error::Again) => Found::Nothing,
            // The bytes on the SAN do not follow.
            _ if is_before_turn => {
                e.set(flag::RESET | flag::ANCHOR_ENDED);
                Found::End
            }
            _ => {
                e.set(flag::ANCHOR_ENDED);
                e.step_in(InEvent::Turned);
                Found::Again
            }
        }
    }

    /// Sleeps until the event may have come.
    fn wait(&self, e: &Endpoint, event: Event) {
        self.take_off(e);
        self.look_after(e);
        let counter = match event {
            Event::Read => &e.own().to_read,
            Event::Write => &e.own().to_write,
        };
        step();
        e.sleepers.fetch_add(1, Relaxed);
        let ticket = counter.raise();
        self.sleep(e, event);
        counter.withdraw(ticket);
        step();
        e.sleepers.fetch_sub(1, Relaxed);
        self.look(e);
    }

    /// Unless it has come.
    fn sleep(&self, e: &Endpoint, event: Event) {
        let is_ready = match event {
            Event::Read => self.may_read(e),
            Event::Write => self.may_write(e),
        };
        if is_ready || !self.is_on_san(e) {
            return;
        }
        let word = e.peer().word.state();
        let comes_again = word.left && word.pulled;
        let reads_tcp = comes_again || e.way_in() != WayIn::San;
        let reads_tcp = event == Event::Read && reads_tcp;
        let sends_tcp = event == Event::Write && e.way_out() != WayOut::San;
        sleep_until(Ready::Rung { reads_tcp, sends_tcp });
    }

    fn may_read(&self, e: &Endpoint) -> bool {
        if e.has(flag::ANCHOR_ENDED) || is_due(e) {
            return true;
        }
        if e.way_in() == WayIn::Tcp {
            // A thread that sends on the SAN rings for it, and the ring says where to look.
            return call(|kernel| kernel.is(self.number, Ready::Readable))
                || e.peer().word.state().turned;
        }
        e.own().has_unread(e.peer())
    }

    fn may_write(&self, e: &Endpoint) -> bool {
        if e.has(flag::ANCHOR_ENDED) || is_due(e) {
            return true;
        }
        if e.way_out() == WayOut::Tcp {
            return call(|kernel| kernel.is(self.number, Ready::Writable));
        }
        e.own().has_room(e.peer())
    }

    /// What the kernel tells of the peer's end.
    pub(super) fn look(&self, e: &Endpoint) {
        if !call(|kernel| kernel.has_ended(self.number)) {
            return;
        }
        if e.peer().word.state().left || e.way_in() == WayIn::Back {
            // It is the kernel's to tell, after what is still to be read here.
            e.peer().returned.store(1, SeqCst);
            return;
        }
        e.set(flag::ANCHOR_ENDED);
    }
}

/// True if either end has begun to go back.
pub(super) fn is_due(e: &Endpoint) -> bool {
    e.state().is_returning() || e.peer().returned.load(SeqCst) != 0
}

/// True if part of what goes over TCP first is still to be sent.
pub(super) fn is_half_left(e: &Endpoint) -> bool {
    let state = e.state();
    state.way_out() == WayOut::Leaving && !state.has(flag::RESET | flag::BROKEN_PIPE)
}
