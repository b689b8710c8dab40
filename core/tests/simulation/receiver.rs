//! The receiving program of one end with RDMA, one operation per step; as the switch's
//! `stream/receive.rs` and `stream/rdma.rs`. Its memory is used for something else as soon as its
//! receive has returned: nothing may change it after that.

use crate::link::Link;
use crate::memory::Reading;
use crate::peer::{stream_byte, Peer};
use crate::rng::Rng;
use crate::sender::Chances;
use sanshim_core::session::transfer::{Call, Posting};
use sanshim_core::session::Control;

/// Most bytes of one receive.
pub(crate) const LARGEST_RECEIVE: usize = 700;

#[derive(Clone, Debug)]
enum State {
    Idle,
    Attempt { ended: bool },
    Read { reading: Reading, ended: bool, copied: Option<usize> },
    Decide { ended: bool },
    Wait { posted: bool },
    Withdraw { posted: bool, interrupted: bool },
    Stopped,
}

pub(crate) struct Receiver {
    state: State,
    /// Bytes received and found right.
    pub(crate) verified: u64,
    /// Bytes that will come in all.
    total: u64,
    pub(crate) largest: usize,
    pub(crate) blocking: usize,
    chances: Chances,
    wanted: usize,
    got: usize,
    waits: bool,
    all: bool,
    call: Call,
    pub(crate) reads: u64,
}

/// What the program keeps in its memory between two receives.
pub(crate) fn own_byte(at: usize) -> u8 {
    at as u8 ^ 0xA5
}

impl Receiver {
    pub(crate) fn new(total: u64, largest: usize, blocking: usize, chances: &Chances) -> Receiver {
        Receiver {
            state: State::Idle,
            verified: 0,
            total,
            largest,
            blocking,
            chances: chances.clone(),
            wanted: 0,
            got: 0,
            waits: false,
            all: false,
            call: Call { number: 0, directly: false },
            reads: 0,
        }
    }

    pub(crate) fn step(
        &mut self,
        me: &mut Peer,
        other: &mut Peer,
        out: &mut Link,
        inc: &mut Link,
        rng: &mut Rng,
    ) {
        self.state = match self.state.clone() {
            State::Stopped => State::Stopped,
            State::Idle => self.begin(me, other, inc, rng),
            State::Attempt { ended } => self.attempt(ended, me, other, out, inc, rng),
            State::Read { reading, ended, copied } => {
                self.read(reading, ended, copied, me, other, rng)
            }
            State::Decide { ended } => self.decide(ended, me, out),
            State::Wait { posted } => self.wait(posted, me, other, inc, rng),
            State::Withdraw { posted, interrupted } => {
                self.withdraw(posted, interrupted, me, other, out, inc)
            }
        };
    }

    fn ended(other: &Peer, inc: &Link) -> bool {
        other.dead && inc.is_quiet()
    }

    fn begin(&mut self, me: &mut Peer, other: &Peer, inc: &mut Link, rng: &mut Rng) -> State {
        for (at, byte) in me.incoming.iter().enumerate() {
            assert_eq!(*byte, own_byte(at), "written to after the receive returned");
        }
        let left = self.total - self.verified;
        if left == 0 && !other.dead || rng.percent(self.chances.pause) {
            return State::Idle;
        }
        self.wanted = rng.range(1, self.largest.min(LARGEST_RECEIVE));
        self.got = 0;
        self.waits = rng.percent(self.blocking);
        self.all = left > 0 && rng.percent(20);
        if self.all {
            self.wanted = self.wanted.min(left as usize);
        }
        self.call = me.receiving.call(!me.is_readable(inc));
        State::Attempt { ended: Self::ended(other, inc) }
    }

    fn give_back(&mut self, me: &mut Peer, other: &Peer, stop: bool) -> State {
        assert!(me.writable.is_closed(), "a receive returned and its memory is still lent");
        assert!(me.receiving.advertised().is_none());
        for at in 0..self.got {
            let expected = stream_byte(other.number, self.verified);
            let got = me.incoming[at];
            assert_eq!(got, expected, "a wrong byte at offset {} of the stream", self.verified);
            self.verified += 1;
        }
        for at in 0..LARGEST_RECEIVE {
            me.incoming[at] = own_byte(at);
        }
        if stop {
            State::Stopped
        } else {
            State::Idle
        }
    }

    fn put(&mut self, me: &mut Peer, bytes: &[u8]) {
        me.incoming[self.got..self.got + bytes.len()].copy_from_slice(bytes);
        self.got += bytes.len();
        me.received += bytes.len() as u64;
    }

    fn attempt(
        &mut self,
        ended: bool,
        me: &mut Peer,
        other: &mut Peer,
        out: &mut Link,
        inc: &mut Link,
        rng: &mut Rng,
    ) -> State {
        while self.got < self.wanted {
            if let Some(rest) = me.receiving.rest() {
                if me.next_read.wrapping_sub(rest.after) as i32 > 0 {
                    let advertised = me.receiving.advertised().is_some();
                    if !advertised && rest.address.is_none() && me.has_data_after(&rest, inc) {
                        me.receiving.close();
                        continue;
                    }
                    if advertised || rest.address.is_none() {
                        if me.absorb(inc) {
                            continue;
                        }
                        break;
                    }
                    if rng.percent(self.chances.fail) {
                        me.receiving.cannot_read();
                        me.due.note(Control::SendInMessages(rest.key, rng.percent(20)));
                        break;
                    }
                    let room = self.wanted - self.got;
                    let peers = &other.readable;
                    match peers.begin_read(rest.key, rest.length, rest.taken, room) {
                        Ok(reading) if !other.dead => {
                            me.receive_locked = true;
                            return State::Read { reading, ended, copied: None };
                        }
                        _ => me.receiving.close(),
                    }
                    continue;
                }
            }
            if me.next_read != me.session.expected() || me.absorb(inc) {
                if me.next_read != me.session.expected() {
                    self.take_message(me, inc);
                }
                continue;
            }
            let there = inc.buffered();
            if there == 0 {
                break;
            }
            let bytes = inc.take(there.min(self.wanted - self.got));
            self.put(me, &bytes);
        }
        me.update_credit(out);
        me.try_send_due(out);
        State::Decide { ended }
    }

    fn take_message(&mut self, me: &mut Peer, inc: &mut Link) {
        let next = me.next_read;
        let (data, body) = me.lengths(next);
        let n = (data - me.offset).min(self.wanted - self.got);
        if me.receiving.rest().is_some_and(|rest| rest.after == next) {
            me.receiving.begun(self.call);
        }
        let from = body + me.offset;
        let bytes = inc.payload(next)[from..from + n].to_vec();
        self.put(me, &bytes);
        me.offset += n;
        if me.offset == data {
            me.offset = 0;
            me.repost(inc);
            me.pass_controls(inc);
        }
    }

    fn read(
        &mut self,
        reading: Reading,
        ended: bool,
        copied: Option<usize>,
        me: &mut Peer,
        other: &mut Peer,
        rng: &mut Rng,
    ) -> State {
        let Some(n) = copied else {
            let short = rng.percent(self.chances.fail);
            let n = if short { rng.range(1, reading.length) } else { reading.length };
            let from = &other.outgoing[reading.at..reading.at + n];
            me.incoming[self.got..self.got + n].copy_from_slice(from);
            return State::Read { reading, ended, copied: Some(n) };
        };
        me.receive_locked = false;
        if other.dead || other.readable.end_read(reading, n).is_err() {
            me.receiving.close();
            return State::Attempt { ended };
        }
        let room = (self.wanted - self.got) as u64;
        self.got += n;
        me.received += n as u64;
        self.reads += 1;
        let abilities = me.shape.abilities;
        if let Some(complete) = me.receiving.read(self.call, n as u32, room, abilities) {
            me.due.note(Control::TransferComplete(complete));
        } else if room < u64::from(abilities.threshold) {
            if let Posting::SendInMessages(key) = me.receiving.post(room, false, abilities) {
                me.due.note(Control::SendInMessages(key, false));
            }
        }
        State::Attempt { ended }
    }

    fn will_be_written(&self, me: &Peer) -> bool {
        let abilities = me.shape.abilities;
        abilities.write
            && self.wanted - self.got >= abilities.threshold as usize
            && me.receiving.rest().is_some_and(|rest| rest.address.is_none())
            && me.receiving.may_advertise()
    }

    fn enough(&self) -> usize {
        if self.all {
            self.wanted
        } else {
            1
        }
    }

    fn decide(&mut self, ended: bool, me: &mut Peer, out: &mut Link) -> State {
        if self.got == self.wanted
            || self.got >= self.enough() && !(self.waits && self.will_be_written(me))
        {
            return State::Withdraw { posted: false, interrupted: true };
        }
        if ended {
            self.waits = false;
            return State::Withdraw { posted: false, interrupted: true };
        }
        let room = self.wanted - self.got;
        let abilities = me.shape.abilities;
        let posted = match me.receiving.post(room as u64, self.waits, abilities) {
            Posting::Nothing => false,
            Posting::SendInMessages(key) => {
                me.due.note(Control::SendInMessages(key, false));
                false
            }
            Posting::Rediscover => {
                me.due.note(Control::Rediscover);
                false
            }
            Posting::Advertise(key) => {
                me.writable.register(key, self.got, room);
                let (at, length) = (self.got as u64, room as u32);
                let received = me.received;
                let a = me.receiving.advertisement(key, at, length, self.call, received);
                me.due.note(Control::Advertisement(a));
                true
            }
        };
        me.try_send_due(out);
        if self.waits {
            State::Wait { posted }
        } else {
            State::Withdraw { posted, interrupted: true }
        }
    }

    fn wait(
        &mut self,
        posted: bool,
        me: &mut Peer,
        other: &Peer,
        inc: &mut Link,
        rng: &mut Rng,
    ) -> State {
        if rng.percent(self.chances.interrupt) {
            return State::Withdraw { posted, interrupted: true };
        }
        let written = posted && me.writable.done() > 0;
        if written || me.is_readable(inc) || Self::ended(other, inc) {
            return State::Withdraw { posted, interrupted: false };
        }
        State::Wait { posted }
    }

    fn withdraw(
        &mut self,
        posted: bool,
        interrupted: bool,
        me: &mut Peer,
        other: &Peer,
        out: &mut Link,
        inc: &mut Link,
    ) -> State {
        if posted {
            let _ = me.due.take_advertisement();
            if other.dead {
                me.writable.abandon_write();
            }
            let Some(bytes) = me.writable.deregister() else {
                return State::Withdraw { posted, interrupted };
            };
            me.receiving.withdrawn(bytes);
            self.got += bytes as usize;
            me.received += u64::from(bytes);
            if bytes > 0 {
                me.update_credit(out);
                if self.got >= self.enough() {
                    return self.give_back(me, other, false);
                }
            }
        }
        if interrupted {
            let stop = self.got == 0 && !self.waits && Self::ended(other, inc);
            let stop = stop && !me.is_readable(inc);
            return self.give_back(me, other, stop);
        }
        State::Attempt { ended: Self::ended(other, inc) }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        matches!(self.state, State::Stopped)
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    pub(crate) fn describe(&self) -> String {
        format!("{:?} {} of {} got, {} in all", self.state, self.got, self.wanted, self.verified)
    }
}
