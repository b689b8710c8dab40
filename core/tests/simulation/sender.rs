//! A sending thread of one end with RDMA, one operation per step. What it sends lies in memory that
//! it overwrites as soon as its send has returned. What to do is the engine's to say. How that is carried out, and how a
//! wait ends, is a copy of `transfer/rdma.rs`.

mod writing;

use crate::peer::{stream_byte, Peer, Turn};
use crate::rng::Rng;
use sanshim_core::session::transfer::{End, Plan, Progress};
use sanshim_core::session::{Advertisement, Available, Control, Kind, Mode};

/// Most bytes of one send.
pub(crate) const LARGEST_SEND: usize = 700;
const FIRST_PART: usize = 1024;

/// How often the schedule does what, in percent of the steps that could.
#[derive(Clone, Debug)]
pub(crate) struct Chances {
    pub(crate) interrupt: usize,
    pub(crate) scan: usize,
    pub(crate) fail: usize,
    /// A program pauses between two calls.
    pub(crate) pause: usize,
    /// A sender finds by measurement that RDMA does not pay, or does again.
    pub(crate) settle: usize,
}

#[derive(Clone, Copy, Debug)]
enum Then {
    Plan,
    Follow(Announced),
    Crossed,
}

#[derive(Clone, Copy, Debug)]
struct Announced {
    key: u32,
    rest: u32,
    readable: bool,
    written: u32,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    to: Advertisement,
    /// Where in the receiver's memory, and how much.
    at: usize,
    length: usize,
    /// Half of it is there.
    begun: bool,
    /// So much of it counts as written for the receiver, and not for this end yet.
    ended: Option<usize>,
    then: Then,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Idle,
    /// Waits for the send lock.
    Lock,
    Plan,
    Follow(Announced),
    Await,
    Write(Write),
    Messages,
    Room,
    Stopped,
    Dead,
}

enum Woken {
    Progress(Progress),
    Scanned,
    Interrupted,
}

pub(crate) struct Sender {
    state: State,
    /// Its part of the program's memory.
    base: usize,
    pub(crate) largest: usize,
    pub(crate) blocking: usize,
    chances: Chances,
    length: usize,
    done: usize,
    waits: bool,
    interrupted: bool,
    pub(crate) writes: u64,
}

impl Sender {
    pub(crate) fn new(thread: usize, largest: usize, blocking: usize, chances: &Chances) -> Sender {
        Sender {
            state: State::Idle,
            base: thread * LARGEST_SEND,
            largest,
            blocking,
            chances: chances.clone(),
            length: 0,
            done: 0,
            waits: false,
            interrupted: false,
            writes: 0,
        }
    }

    pub(crate) fn step(&mut self, turn: &mut Turn) {
        self.state = match self.state {
            State::Stopped | State::Dead => self.state,
            State::Idle => self.begin(turn),
            State::Lock | State::Room if turn.me.send_locked => self.state,
            State::Lock => self.start(turn.me),
            State::Plan => self.plan(turn),
            State::Follow(announced) => self.follow(announced, turn),
            State::Await => self.wait_for_advertisement(turn),
            State::Write(write) => self.write(write, turn),
            State::Messages => self.messages(turn),
            State::Room if turn.other.dead => self.give_back(turn.me, State::Stopped),
            State::Room if self.is_interrupted(turn.rng) => self.give_back(turn.me, State::Idle),
            State::Room if turn.out.space() > 0 => self.start(turn.me),
            State::Room => State::Room,
        };
    }

    fn is_interrupted(&self, rng: &mut Rng) -> bool {
        rng.percent(self.chances.interrupt)
    }

    fn begin(&mut self, turn: &mut Turn) -> State {
        let Turn { me, rng, .. } = turn;
        if turn.other.dead && rng.percent(20) {
            // Sooner or later it hears of it.
            return State::Stopped;
        }
        me.open(turn.out, turn.inc);
        let left = me.total - me.claimed;
        if left == 0 || me.session.last_sent() == 0 || rng.percent(self.chances.pause) {
            return State::Idle;
        }
        self.length = rng.range(1, self.largest.min(LARGEST_SEND)).min(left as usize);
        me.claimed += self.length as u64;
        self.done = 0;
        self.interrupted = false;
        self.waits = rng.percent(self.blocking);
        State::Lock
    }

    /// Takes the send lock. What the program sends is decided here, so that bytes can be checked
    /// by their place in the stream, whichever thread comes first.
    fn start(&self, me: &mut Peer) -> State {
        me.send_locked = true;
        for i in self.done..self.length {
            let position = me.sent + (i - self.done) as u64;
            me.outgoing[self.base + i] = stream_byte(me.number, position);
        }
        if self.length - self.done < me.abilities.threshold as usize {
            return State::Messages;
        }
        if let Some(mode) = me.sending.learn() {
            me.due.note(Control::EnterMode(mode, false));
        }
        State::Plan
    }

    /// The send returns; the program uses its memory for something else at once.
    fn give_back(&mut self, me: &mut Peer, next: State) -> State {
        for byte in &mut me.outgoing[self.base..self.base + self.length] {
            *byte = !*byte;
        }
        me.returned += self.done as u64;
        me.claimed -= (self.length - self.done) as u64;
        next
    }

    /// As `give_back`, by the holder of the send lock.
    fn finish(&mut self, turn: &mut Turn) -> State {
        let Turn { me, rng, .. } = turn;
        assert!(me.readable.is_closed(), "a send returned and its memory is still lent");
        if rng.percent(self.chances.settle) {
            me.sending.observer().settle_on_messages();
            me.due.note(Control::EnterMode(Mode::SmallReceive, true));
        } else if rng.percent(self.chances.settle) && me.sending.observer().rediscover() {
            me.due.note(Control::EnterMode(Mode::Discovery, false));
        }
        me.send_locked = false;
        self.give_back(me, State::Idle)
    }

    fn end(&self, me: &mut Peer, how: End) {
        if let Some(mode) = me.sending.end(how) {
            me.due.note(Control::EnterMode(mode, false));
        }
    }

    fn plan(&mut self, turn: &mut Turn) -> State {
        let left = self.length - self.done;
        if left == 0 {
            return self.finish(turn);
        }
        if !turn.me.may_announce(turn.out, turn.inc) {
            return State::Messages;
        }
        let me = &mut turn.me;
        match me.sending.plan(left as u64, me.sent, self.waits, me.abilities) {
            Plan::Messages => State::Messages,
            Plan::Write(a) => self.begin_write(a, a.length, Then::Plan, turn),
            Plan::Announce { readable, first_part } => self.announce(readable, first_part, turn),
            Plan::Await => {
                me.sending.await_advertisement();
                State::Await
            }
        }
    }

    fn announce(&mut self, readable: bool, first_part: bool, turn: &mut Turn) -> State {
        let me = &mut turn.me;
        let left = self.length - self.done;
        let body = Kind::DataAvailable.body_size() as usize;
        let most = if first_part { FIRST_PART.min(me.payload_out() - body) } else { 0 };
        let first = most.min(left - 1);
        let (from, rest) = (self.base + self.done, (left - first) as u32);
        if rest < me.abilities.threshold / 2 {
            return State::Messages;
        }
        let at = from + first;
        let key = me.sending.begin(rest);
        if readable {
            me.readable.register(key, at, rest as usize, me.sent + first as u64);
        }
        let Ok(header) = me.session.next_message(Kind::DataAvailable, (body + first) as u32) else {
            me.readable.deregister();
            self.end(me, End::Abandoned);
            return State::Messages;
        };
        let address = readable.then_some(at as u64);
        let control = Control::DataAvailable(Available { key, rest, address });
        let data = me.outgoing[from..at].to_vec();
        me.publish(header, &control.encode()[..body], &data, turn.out);
        self.done += first;
        me.announced = (key, 0);
        State::Follow(Announced { key, rest, readable, written: 0 })
    }

    fn wait(&mut self, announced: Option<&Announced>, turn: &mut Turn) -> Option<Woken> {
        let me = &mut turn.me;
        me.send_due(turn.out);
        me.absorb_if_free(turn.inc);
        let readable = announced.is_some_and(|announced| announced.readable);
        let rest = announced.map_or(0, |announced| announced.rest);
        if readable && me.readable.done() == rest {
            return Some(Woken::Progress(Progress::Complete(rest)));
        }
        match me.sending.progress(me.sent, me.abilities) {
            Progress::Waiting => {}
            progress => return Some(Woken::Progress(progress)),
        }
        if turn.other.dead {
            return Some(Woken::Interrupted);
        }
        if self.is_interrupted(turn.rng) {
            self.interrupted = true;
            return Some(Woken::Interrupted);
        }
        let taken = if readable { me.readable.done() } else { 0 };
        (turn.rng.percent(self.chances.scan) && me.sending.scan(taken)).then_some(Woken::Scanned)
    }

    fn follow(&mut self, announced: Announced, turn: &mut Turn) -> State {
        let Announced { key, rest, readable, written } = announced;
        let Some(woken) = self.wait(Some(&announced), turn) else {
            return State::Follow(announced);
        };
        let (end, go_on) = match woken {
            Woken::Progress(Progress::Complete(_)) => (End::Read, true),
            Woken::Progress(Progress::Advertised(a)) if !readable => {
                let most = a.length.min(rest - written);
                return self.begin_write(a, most, Then::Follow(announced), turn);
            }
            Woken::Progress(Progress::Advertised(a)) => {
                if self.take_back(turn.me) == 0 {
                    return self.begin_write(a, a.length, Then::Crossed, turn);
                }
                turn.me.sending.forget();
                return State::Plan;
            }
            Woken::Progress(Progress::InMessages) => (End::Refused, false),
            Woken::Progress(Progress::Waiting) => unreachable!("it woke for nothing"),
            Woken::Scanned => (End::Scanned, false),
            Woken::Interrupted => (End::Abandoned, false),
        };
        let me = &mut turn.me;
        let taken = if readable { self.take_back(me) } else { written };
        if taken < rest {
            me.due.note(Control::RestInMessages(key, taken));
        }
        let all = taken == rest;
        self.end(me, if all && readable { End::Read } else { end });
        if all || go_on {
            State::Plan
        } else {
            State::Messages
        }
    }

    fn take_back(&mut self, me: &mut Peer) -> u32 {
        let taken = me.readable.deregister().expect("nobody writes to it");
        let before = me.sending.bytes();
        me.sending.read(taken);
        assert_eq!(me.count_sent(before), u64::from(taken));
        self.done += taken as usize;
        taken
    }

    fn wait_for_advertisement(&mut self, turn: &mut Turn) -> State {
        match self.wait(None, turn) {
            None => State::Await,
            Some(Woken::Progress(Progress::Advertised(a))) => {
                self.begin_write(a, a.length, Then::Plan, turn)
            }
            Some(Woken::Scanned) => {
                self.end(turn.me, End::Scanned);
                State::Messages
            }
            Some(_) => State::Messages,
        }
    }

    fn messages(&mut self, turn: &mut Turn) -> State {
        if self.done < self.length {
            let me = &mut turn.me;
            let data = me.outgoing[self.base + self.done..self.base + self.length].to_vec();
            self.done += me.send_in_messages(&data, turn.out, turn.inc);
        }
        if self.done == self.length || self.interrupted || !self.waits {
            return self.finish(turn);
        }
        turn.me.send_locked = false;
        State::Room
    }

    /// It is killed, if it holds the lock, and its memory is nobody's any more. True: it was.
    pub(crate) fn die(&mut self, turn: &mut Turn) -> bool {
        use State::{Await, Follow, Messages, Plan, Write};
        if !matches!(self.state, Plan | Follow(_) | Await | Write(_) | Messages) {
            return false;
        }
        let me = &mut turn.me;
        me.readable.owner_dies();
        if matches!(self.state, Write(_)) {
            turn.other.writable.writer_dies();
        }
        me.outgoing[self.base..self.base + LARGEST_SEND].fill(0xEE);
        me.dead_sender = Some((self.length - self.done) as u64);
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
        format!("{:?} {} of {}", self.state, self.done, self.length)
    }
}
