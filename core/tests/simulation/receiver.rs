//! A receiving thread of one end with RDMA, one operation per step. Its memory is used for
//! something else as soon as its receive has returned: nothing may change it after that. What to do is
//! the engine's to say. When a receive waits is a copy of `transfer/receive.rs` and `stream/posted.rs`.

mod taking;

use crate::memory::Reading;
use crate::peer::{stream_byte, Peer, Turn};
use crate::sender::Chances;
use sanshim_core::session::transfer::{Call, Posting};
use sanshim_core::session::Control;

/// Most bytes of one receive.
pub(crate) const LARGEST_RECEIVE: usize = 700;

#[derive(Clone, Copy, Debug)]
enum State {
    Idle,
    Attempt {
        ended: bool,
    },
    Read {
        reading: Reading,
        ended: bool,
        copied: Option<usize>,
    },
    /// So many bytes count as read for the sender, and not for this end yet.
    Got {
        reading: Reading,
        ended: bool,
        bytes: usize,
    },
    Decide {
        ended: bool,
    },
    Wait {
        posted: bool,
    },
    Withdraw {
        posted: bool,
        interrupted: bool,
    },
    Withdrawn {
        bytes: u32,
        interrupted: bool,
    },
    Stopped,
    Dead,
}

pub(crate) struct Receiver {
    state: State,
    /// Its part of the program's memory.
    base: usize,
    least: usize,
    pub(crate) largest: usize,
    pub(crate) blocking: usize,
    chances: Chances,
    wanted: usize,
    got: usize,
    /// For the checks: where in the stream what this call got stands, and what must lie below.
    pieces: Vec<(u64, usize)>,
    floor: u64,
    waits: bool,
    all: bool,
    /// It has the receive lock.
    holds: bool,
    call: Call,
    pub(crate) reads: u64,
}

/// What the program keeps in its memory between two receives.
pub(crate) fn own_byte(at: usize) -> u8 {
    at as u8 ^ 0xA5
}

impl Receiver {
    pub(crate) fn new(
        thread: usize,
        largest: usize,
        blocking: usize,
        chances: &Chances,
    ) -> Receiver {
        Receiver {
            state: State::Idle,
            base: thread * LARGEST_RECEIVE,
            least: 1,
            largest,
            blocking,
            chances: chances.clone(),
            wanted: 0,
            got: 0,
            pieces: Vec::new(),
            floor: 0,
            waits: false,
            all: false,
            holds: false,
            call: Call { number: 0, directly: false },
            reads: 0,
        }
    }

    /// From now on it waits in large receives alone.
    pub(crate) fn receives_much(&mut self) {
        (self.least, self.largest, self.blocking) = (LARGEST_RECEIVE / 2, LARGEST_RECEIVE, 100);
    }

    pub(crate) fn step(&mut self, turn: &mut Turn) {
        let locked = turn.me.receive_locked && !self.holds;
        self.state = match self.state {
            State::Stopped | State::Dead => self.state,
            State::Idle => self.begin(turn),
            State::Attempt { .. } | State::Decide { .. } | State::Withdrawn { .. } if locked => {
                self.state
            }
            State::Attempt { ended } => self.attempt(ended, turn),
            State::Read { reading, ended, copied } => self.read(reading, ended, copied, turn),
            State::Got { reading, ended, bytes } => self.got(reading, ended, bytes, turn),
            State::Decide { ended } => self.decide(ended, turn),
            State::Wait { posted } => self.wait(posted, turn),
            State::Withdraw { posted, interrupted } => self.withdraw(posted, interrupted, turn),
            State::Withdrawn { bytes, interrupted } => self.withdrawn(bytes, interrupted, turn),
        };
    }

    fn ended(turn: &Turn) -> bool {
        turn.other.dead && turn.inc.is_quiet()
    }

    fn begin(&mut self, turn: &mut Turn) -> State {
        let memory = self.base..self.base + LARGEST_RECEIVE;
        for at in memory {
            assert_eq!(turn.me.incoming[at], own_byte(at), "written after the receive returned");
        }
        let left = turn.me.arrived.len() as u64 - turn.me.received;
        if left == 0 && !turn.other.dead || turn.rng.percent(self.chances.pause) {
            return State::Idle;
        }
        self.wanted = turn.rng.range(self.least, self.largest);
        self.got = 0;
        self.pieces.clear();
        self.floor = turn.me.high;
        self.waits = turn.rng.percent(self.blocking);
        self.all = turn.rng.percent(20);
        self.call = if self.is_large(turn.me) {
            let readable = turn.me.is_readable(turn.inc);
            turn.me.receiving.call(!readable)
        } else {
            Call { number: 0, directly: false }
        };
        State::Attempt { ended: Self::ended(turn) }
    }

    fn room(&self) -> usize {
        self.wanted - self.got
    }

    fn is_large(&self, me: &Peer) -> bool {
        self.room() >= me.abilities.threshold as usize
    }

    /// The receive returns.
    fn give_back(&mut self, turn: &mut Turn, stop: bool) -> State {
        let (me, number) = (&mut turn.me, turn.other.number);
        let mut at = self.base;
        let mut below = self.floor;
        for (position, length) in self.pieces.drain(..) {
            assert!(position >= below, "byte {position} of the stream after byte {below}");
            below = position + length as u64;
            for place in position..below {
                assert_eq!(me.incoming[at], stream_byte(number, place), "byte {place} is wrong");
                let before = std::mem::replace(&mut me.arrived[place as usize], true);
                assert!(!before, "byte {place} came twice");
                at += 1;
            }
        }
        assert_eq!(at - self.base, self.got);
        me.delivered += self.got as u64;
        me.high = me.high.max(below);
        for at in self.base..self.base + LARGEST_RECEIVE {
            me.incoming[at] = own_byte(at);
        }
        if stop {
            State::Stopped
        } else {
            State::Idle
        }
    }

    fn lock(&mut self, me: &mut Peer, locks: bool) {
        self.holds = locks;
        me.receive_locked = locks;
    }

    fn will_be_written(&self, me: &Peer) -> bool {
        me.abilities.write
            && self.is_large(me)
            && me.receiving.rest().is_some_and(|rest| rest.address.is_none())
            && me.receiving.may_advertise()
    }

    fn has_enough(&self) -> bool {
        self.got >= if self.all { self.wanted } else { 1 }
    }

    fn decide(&mut self, ended: bool, turn: &mut Turn) -> State {
        let returns = State::Withdraw { posted: false, interrupted: true };
        let me = &mut turn.me;
        let room = self.room();
        if room == 0 || self.has_enough() && !(self.waits && self.will_be_written(me)) {
            return returns;
        }
        if ended {
            self.waits = false;
            return returns;
        }
        let posted = match me.receiving.post(room as u64, self.waits, me.abilities) {
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
                let (at, length) = (self.base + self.got, room as u32);
                me.writable.register(key, at, room, 0);
                let received = me.received;
                let a = me.receiving.advertisement(key, at as u64, length, self.call, received);
                me.due.note(Control::Advertisement(a));
                true
            }
        };
        me.try_send_due(turn.out);
        if self.waits {
            State::Wait { posted }
        } else {
            State::Withdraw { posted, interrupted: true }
        }
    }

    fn wait(&mut self, posted: bool, turn: &mut Turn) -> State {
        // When all has come, another thread has it, and the program has no use for this one.
        let over = turn.me.received == turn.me.arrived.len() as u64;
        if over || turn.rng.percent(self.chances.interrupt) {
            return State::Withdraw { posted, interrupted: true };
        }
        let written = posted && turn.me.writable.done() > 0;
        if written || turn.me.is_readable(turn.inc) || Self::ended(turn) {
            return State::Withdraw { posted, interrupted: false };
        }
        State::Wait { posted }
    }

    fn withdraw(&mut self, posted: bool, interrupted: bool, turn: &mut Turn) -> State {
        if posted {
            let _ = turn.me.due.take_advertisement();
            turn.me.writable.end_write_of_the_dead(turn.other.dead);
            return match turn.me.writable.deregister() {
                Some(bytes) => State::Withdrawn { bytes, interrupted },
                None => State::Withdraw { posted, interrupted },
            };
        }
        if interrupted {
            let stops = self.got == 0 && !self.waits && Self::ended(turn);
            let stops = stops && !turn.me.is_readable(turn.inc);
            return self.give_back(turn, stops);
        }
        State::Attempt { ended: Self::ended(turn) }
    }

    fn withdrawn(&mut self, bytes: u32, interrupted: bool, turn: &mut Turn) -> State {
        let me = &mut turn.me;
        if bytes > 0 {
            me.absorb(turn.inc);
        }
        me.receiving.withdrawn(bytes);
        if bytes > 0 {
            let position = me.writable.position;
            self.count(me, position, bytes as usize);
            me.update_credit(turn.out);
            if self.has_enough() {
                return self.give_back(turn, false);
            }
        }
        self.withdraw(false, interrupted, turn)
    }

    /// It is killed, if it holds the lock, with what it has received. True: it was.
    pub(crate) fn die(&mut self, turn: &mut Turn) -> bool {
        let position = match self.state {
            State::Read { reading, .. } | State::Got { reading, .. } => reading.position,
            _ => return false,
        };
        let me = &mut turn.me;
        for (from, bytes) in self.pieces.drain(..) {
            me.lost(from, bytes);
        }
        me.doubt = Some(position);
        me.dead_receiver = true;
        self.state = State::Dead;
        true
    }

    pub(crate) fn is_stopped(&self) -> bool {
        matches!(self.state, State::Stopped | State::Dead)
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle | State::Dead)
    }

    pub(crate) fn describe(&self) -> String {
        format!("{:?} {} of {}", self.state, self.got, self.wanted)
    }
}
