//! The sending program of one end with RDMA, one operation per step; as the switch's `rdma.rs`. What
//! it sends lies in memory that it overwrites as soon as its send has returned.

use crate::link::Link;
use crate::peer::{stream_byte, Peer};
use crate::rng::Rng;
use sanshim_core::session::transfer::{End, Plan, Progress};
use sanshim_core::session::{Advertisement, Available, Complete, Control, Kind, Mode};

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

#[derive(Clone, Debug)]
enum State {
    Idle,
    Plan,
    Follow(Announced),
    Await,
    Write { to: Advertisement, at: usize, length: usize, then: Then },
    Messages,
    Room,
    Stopped,
}

enum Woken {
    Progress(Progress),
    Scanned,
    Interrupted,
}

pub(crate) struct Sender {
    state: State,
    pub(crate) total: u64,
    /// Bytes that the sends which returned have sent.
    pub(crate) returned: u64,
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
    pub(crate) fn new(total: u64, largest: usize, blocking: usize, chances: &Chances) -> Sender {
        Sender {
            state: State::Idle,
            total,
            returned: 0,
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
            State::Idle => self.begin(me, out, inc, rng),
            State::Plan => self.plan(me, other, out, inc, rng),
            State::Follow(announced) => self.follow(announced, me, other, out, inc, rng),
            State::Await => self.wait_for_advertisement(me, other, out, inc, rng),
            State::Write { to, at, length, then } => {
                self.write(to, at, length, then, me, other, out, rng)
            }
            State::Messages => self.messages(me, out, inc),
            State::Room if other.dead => self.give_back(me, State::Stopped),
            State::Room if rng.percent(self.chances.interrupt) => self.give_back(me, State::Idle),
            State::Room if out.space() > 0 => {
                me.send_locked = true;
                self.start(me)
            }
            State::Room => State::Room,
        };
    }

    fn begin(&mut self, me: &mut Peer, out: &mut Link, inc: &mut Link, rng: &mut Rng) -> State {
        me.open(out, inc);
        let left = self.total - self.returned;
        if left == 0 || me.session.last_sent() == 0 || rng.percent(self.chances.pause) {
            return State::Idle;
        }
        self.length = rng.range(1, self.largest.min(LARGEST_SEND)).min(left as usize);
        self.done = 0;
        self.interrupted = false;
        self.waits = rng.percent(self.blocking);
        for i in 0..self.length {
            me.outgoing[i] = stream_byte(me.number, self.returned + i as u64);
        }
        me.send_locked = true;
        self.start(me)
    }

    fn start(&self, me: &mut Peer) -> State {
        if self.length - self.done < me.shape.abilities.threshold as usize {
            return State::Messages;
        }
        if let Some(mode) = me.sending.learn() {
            me.due.note(Control::EnterMode(mode, false));
        }
        State::Plan
    }

    /// The send returns; the program uses its memory for something else at once.
    fn give_back(&mut self, me: &mut Peer, next: State) -> State {
        assert!(me.readable.is_closed(), "a send returned and its memory is still lent");
        me.send_locked = false;
        for i in 0..self.length {
            me.outgoing[i] = !me.outgoing[i];
        }
        self.returned += self.done as u64;
        next
    }

    fn end(&self, me: &mut Peer, how: End) {
        if let Some(mode) = me.sending.end(how) {
            me.due.note(Control::EnterMode(mode, false));
        }
    }

    fn plan(
        &mut self,
        me: &mut Peer,
        other: &mut Peer,
        out: &mut Link,
        inc: &mut Link,
        rng: &mut Rng,
    ) -> State {
        let left = self.length - self.done;
        if left == 0 {
            return self.give_back(me, State::Idle);
        }
        if !me.may_announce(out, inc) {
            return State::Messages;
        }
        match me.sending.plan(left as u64, me.sent, self.waits, me.shape.abilities) {
            Plan::Messages => State::Messages,
            Plan::Write(a) => self.begin_write(a, a.length, Then::Plan, me, other, rng),
            Plan::Announce { readable, first_part } => self.announce(readable, first_part, me, out),
            Plan::Await => {
                me.sending.await_advertisement();
                State::Await
            }
        }
    }

    fn announce(
        &mut self,
        readable: bool,
        first_part: bool,
        me: &mut Peer,
        out: &mut Link,
    ) -> State {
        let left = self.length - self.done;
        let body = Kind::DataAvailable.body_size() as usize;
        let first =
            if first_part { (me.payload_out() - body).min(FIRST_PART).min(left - 1) } else { 0 };
        let (at, rest) = (self.done + first, left - first);
        let key = me.sending.begin(rest as u32);
        if readable {
            me.readable.register(key, at, rest);
        }
        let Ok(header) = me.session.next_message(Kind::DataAvailable, (body + first) as u32) else {
            me.readable.deregister();
            self.end(me, End::Abandoned);
            return State::Messages;
        };
        let address = readable.then_some(at as u64);
        let control = Control::DataAvailable(Available { key, rest: rest as u32, address });
        let data = me.outgoing[self.done..at].to_vec();
        me.publish(header, &control.encode()[..body], &data, out);
        me.sent += first as u64;
        self.done += first;
        State::Follow(Announced { key, rest: rest as u32, readable, written: 0 })
    }

    fn wait(
        &mut self,
        announced: Option<&Announced>,
        me: &mut Peer,
        other: &Peer,
        out: &mut Link,
        inc: &mut Link,
        rng: &mut Rng,
    ) -> Option<Woken> {
        me.send_due(out);
        me.absorb_if_free(inc);
        let readable = announced.is_some_and(|announced| announced.readable);
        let rest = announced.map_or(0, |announced| announced.rest);
        if readable && me.readable.done() == rest {
            return Some(Woken::Progress(Progress::Complete(rest)));
        }
        match me.sending.progress(me.sent, me.shape.abilities) {
            Progress::Waiting => {}
            progress => return Some(Woken::Progress(progress)),
        }
        if other.dead {
            return Some(Woken::Interrupted);
        }
        if rng.percent(self.chances.interrupt) {
            self.interrupted = true;
            return Some(Woken::Interrupted);
        }
        let taken = if readable { me.readable.done() } else { 0 };
        (rng.percent(self.chances.scan) && me.sending.scan(taken)).then_some(Woken::Scanned)
    }

    fn follow(
        &mut self,
        mut announced: Announced,
        me: &mut Peer,
        other: &mut Peer,
        out: &mut Link,
        inc: &mut Link,
        rng: &mut Rng,
    ) -> State {
        let Announced { key, rest, readable, written } = announced;
        let Some(woken) = self.wait(Some(&announced), me, other, out, inc, rng) else {
            return State::Follow(announced);
        };
        let (end, go_on) = match woken {
            Woken::Progress(Progress::Complete(_)) => (End::Read, true),
            Woken::Progress(Progress::Advertised(a)) if !readable => {
                announced.written = written;
                let most = a.length.min(rest - written);
                return self.begin_write(a, most, Then::Follow(announced), me, other, rng);
            }
            Woken::Progress(Progress::Advertised(a)) => {
                let taken = self.take_back(me);
                if taken == 0 {
                    return self.begin_write(a, a.length, Then::Crossed, me, other, rng);
                }
                self.end(me, End::Abandoned);
                return State::Plan;
            }
            Woken::Progress(Progress::InMessages) => (End::Refused, false),
            Woken::Progress(Progress::Waiting) => unreachable!("it woke for nothing"),
            Woken::Scanned => (End::Scanned, false),
            Woken::Interrupted => (End::Abandoned, false),
        };
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
        me.sent += u64::from(taken);
        self.done += taken as usize;
        taken
    }

    fn wait_for_advertisement(
        &mut self,
        me: &mut Peer,
        other: &mut Peer,
        out: &mut Link,
        inc: &mut Link,
        rng: &mut Rng,
    ) -> State {
        match self.wait(None, me, other, out, inc, rng) {
            None => State::Await,
            Some(Woken::Progress(Progress::Advertised(a))) => {
                self.begin_write(a, a.length, Then::Plan, me, other, rng)
            }
            Some(Woken::Scanned) => {
                self.end(me, End::Scanned);
                State::Messages
            }
            Some(_) => State::Messages,
        }
    }

    fn begin_write(
        &mut self,
        to: Advertisement,
        most: u32,
        then: Then,
        me: &mut Peer,
        other: &mut Peer,
        rng: &mut Rng,
    ) -> State {
        let length = (most.min(to.length) as usize).min(self.length - self.done);
        if rng.percent(self.chances.fail) {
            if rng.percent(20) {
                me.sending.forbid();
            }
            return self.not_written(to, then, me);
        }
        if other.dead {
            return self.not_written(to, then, me);
        }
        match other.writable.begin_write(to.key, to.length) {
            Ok(at) => {
                assert_eq!(at as u64, to.address, "written elsewhere than advertised");
                State::Write { to, at, length, then }
            }
            Err(_) => self.not_written(to, then, me),
        }
    }

    fn not_written(&self, to: Advertisement, then: Then, me: &mut Peer) -> State {
        me.sending.used(to.key, false);
        match then {
            Then::Plan => State::Plan,
            Then::Follow(announced) => State::Follow(announced),
            Then::Crossed => {
                self.end(me, End::Abandoned);
                State::Plan
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn write(
        &mut self,
        to: Advertisement,
        at: usize,
        length: usize,
        then: Then,
        me: &mut Peer,
        other: &mut Peer,
        out: &mut Link,
        rng: &mut Rng,
    ) -> State {
        if other.dead {
            return self.not_written(to, then, me);
        }
        let failed = rng.percent(self.chances.fail);
        let n = if rng.percent(self.chances.fail) { rng.range(1, length) } else { length };
        other.incoming[at..at + n].copy_from_slice(&me.outgoing[self.done..self.done + n]);
        other.writable.end_write(if failed { 0 } else { n });
        if failed {
            return self.not_written(to, then, me);
        }
        me.sending.used(to.key, true);
        self.writes += 1;
        me.sent += n as u64;
        self.done += n;
        let complete = Complete { key: to.key, bytes: n as u32, behaviour: None };
        me.due.note(Control::TransferComplete(complete));
        me.send_due(out);
        let written = End::Written { directly: to.directly };
        if let Then::Follow(mut announced) = then {
            announced.written += n as u32;
            if announced.written < announced.rest {
                me.sending.await_more();
                return State::Follow(announced);
            }
        }
        self.end(me, written);
        State::Plan
    }

    fn messages(&mut self, me: &mut Peer, out: &mut Link, inc: &mut Link) -> State {
        if self.done < self.length {
            let data = me.outgoing[self.done..self.length].to_vec();
            self.done += me.send_in_messages(&data, out, inc);
        }
        if self.done == self.length || self.interrupted || !self.waits {
            return self.give_back(me, State::Idle);
        }
        me.send_locked = false;
        State::Room
    }

    pub(crate) fn is_stopped(&self) -> bool {
        matches!(self.state, State::Stopped) || (self.is_idle() && self.returned == self.total)
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    pub(crate) fn mode(&self, me: &Peer) -> Mode {
        me.sending.observer().mode()
    }

    pub(crate) fn describe(&self) -> String {
        format!("{:?} {}/{}", self.state, self.returned, self.total)
    }
}
