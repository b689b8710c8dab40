//! One process of an end, one operation per step. Its program writes and reads: each call takes control of a direction, has the
//! connection moved if another process had it, and gives control back. Where the connection cannot be moved now, the call
//! works on what the processes share. What its library does beside the calls is in [`library`].

mod library;

use super::end::{End, RECEIVE, SEND};
use super::provider::{Kind, Memory, Provider};
use crate::rng::Rng;
use sanshim_core::session::token::{Claim, Step, Wake};
use std::sync::atomic::Ordering::Relaxed;

/// The bit of a token's word that says for whom it is kept, and the tickets below it.
const KEPT: u32 = 1 << 30;
const TICKET: u32 = (1 << 29) - 1;

/// How often the schedule does what, in percent of the steps that could.
#[derive(Clone, Debug)]
pub(crate) struct Chances {
    /// A program pauses between two calls.
    pub(crate) pause: usize,
    /// Calls that may wait.
    pub(crate) blocking: usize,
    /// A process that waits for an answer gives up.
    pub(crate) give_up: usize,
    /// Calls by RDMA, if they are long.
    pub(crate) rdma: usize,
    /// A process is stopped, and goes on.
    pub(crate) stop: usize,
    /// 20 ms have passed for who waits for control.
    pub(crate) in_vain: usize,
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Write { left: usize },
    Read { room: usize },
}

#[derive(Clone, Copy, Debug)]
enum State {
    Idle,
    Wants,
    Asleep(u32),
    /// Has control. `moved`: of the connection as well, and the peer is to be told.
    Holds {
        moved: bool,
        lends: usize,
    },
    /// Waits for data or room.
    Waits,
    Dead,
}

pub(crate) struct Process {
    number: usize,
    claim: Claim,
    state: State,
    call: Call,
    blocking: bool,
    ticket: Option<u32>,
    /// The token that it has beside that of its call, or while it has no call, while the connection moves.
    borrowed: Option<usize>,
    pub(crate) stopped: bool,
    pub(crate) suspensions: u64,
    pub(crate) given_up: u64,
}

/// What all processes of an end see of each other.
pub(crate) struct Family<'a> {
    pub(crate) alive: &'a [bool],
    /// Tickets of those that wait, and of those that were passed over because they did not come.
    pub(crate) waiting: &'a [Option<u32>],
    pub(crate) passed: &'a mut Vec<u32>,
}

impl Process {
    pub(crate) fn new(end: usize, number: usize) -> Process {
        let id = (100 * (end + 1) + number) as u32;
        Process {
            number,
            claim: Claim { process: id, thread: id },
            state: State::Idle,
            call: Call::Read { room: 0 },
            blocking: false,
            ticket: None,
            borrowed: None,
            stopped: false,
            suspensions: 0,
            given_up: 0,
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.state, State::Dead)
    }

    pub(crate) fn die(&mut self) {
        self.state = State::Dead;
        self.ticket = None;
        self.borrowed = None;
        self.stopped = false;
    }

    /// Its ticket for a token, while it waits for that.
    pub(crate) fn ticket(&self, token: usize) -> Option<u32> {
        self.ticket.filter(|_| self.token() == token)
    }

    /// The token that its call takes.
    pub(crate) fn token(&self) -> usize {
        match self.call {
            Call::Write { .. } => SEND,
            Call::Read { .. } => RECEIVE,
        }
    }

    pub(crate) fn step(
        &mut self,
        end: &mut End,
        provider: &mut Provider,
        family: &mut Family,
        chances: &Chances,
        rng: &mut Rng,
    ) {
        self.state = match self.state {
            State::Dead => State::Dead,
            State::Idle => self.begin(end, chances, rng),
            State::Wants => self.want(end, family),
            State::Asleep(word) => self.sleep(word, end, family, chances, rng),
            State::Holds { moved, lends } => self.hold(moved, lends, end, provider, chances, rng),
            State::Waits => self.wait(end, provider, chances, rng),
        };
    }

    fn begin(&mut self, end: &mut End, chances: &Chances, rng: &mut Rng) -> State {
        // Its library is at it.
        let is_busy = self.borrowed.is_some();
        if !end.is_open() || is_busy || rng.percent(chances.pause) {
            return State::Idle;
        }
        self.blocking = rng.percent(chances.blocking);
        let left = (end.total - end.written) as usize;
        self.call = if (left > 0 || !end.is_flushed()) && rng.percent(50) {
            // Of nothing: what is kept goes on.
            Call::Write { left: rng.range(1, 120).min(left) }
        } else {
            Call::Read { room: rng.range(1, 120) }
        };
        State::Wants
    }

    fn want(&mut self, end: &mut End, family: &mut Family) -> State {
        let token = &end.tokens[self.token()];
        if self.ticket.is_none() && token.try_take(self.claim).is_ok() {
            return self.got(end);
        }
        let step = token.look(self.claim, &mut self.ticket);
        self.after(step, end, family)
    }

    fn after(&mut self, step: Step, end: &mut End, family: &mut Family) -> State {
        match step {
            Step::Taken(_) => {
                // D2: first in, first out, but for those that did not come.
                if let Some(mine) = self.ticket.take() {
                    for (other, ticket) in family.waiting.iter().enumerate() {
                        let before = ticket.filter(|&t| t < mine && other != self.number);
                        let skipped = before.filter(|t| !family.passed.contains(t));
                        assert_eq!(skipped, None, "served before its turn");
                    }
                }
                self.got(end)
            }
            Step::Again | Step::WakeAll => State::Wants,
            Step::Sleep(word) => State::Asleep(word),
        }
    }

    fn sleep(
        &mut self,
        word: u32,
        end: &mut End,
        family: &mut Family,
        chances: &Chances,
        rng: &mut Rng,
    ) -> State {
        let token = &end.tokens[self.token()];
        if token.word().load(Relaxed) != word {
            return State::Wants;
        }
        if !rng.percent(chances.in_vain) {
            return State::Asleep(word);
        }
        let lives = |thread: u32| family.alive[thread as usize % 100];
        let step = token.waited_in_vain(self.claim, self.ticket, word, lives);
        if word & KEPT != 0 && step == Step::WakeAll {
            family.passed.push(word & TICKET);
        }
        self.after(step, end, family)
    }

    fn got(&mut self, end: &mut End) -> State {
        self.ticket = None;
        end.gave_up[self.token()] = false;
        end.holders[self.token()] = Some(self.number);
        State::Holds { moved: false, lends: 0 }
    }

    fn give_back(&mut self, end: &mut End, next: State) -> State {
        let token = self.token();
        assert_eq!(end.tokens[token].holder(), Some(self.claim.thread), "it has control no more");
        assert_eq!(self.borrowed, None, "the connection moves");
        let _: Wake = end.tokens[token].give_back();
        end.holders[token] = None;
        next
    }

    fn hold(
        &mut self,
        moved: bool,
        lends: usize,
        end: &mut End,
        provider: &mut Provider,
        chances: &Chances,
        rng: &mut Rng,
    ) -> State {
        let token = self.token();
        assert_eq!(end.holders[token], Some(self.number), "two in control");
        let here = provider.owner(end.number) == self.number;
        if !here && end.gave_up[token] {
            self.release(end);
            return self.do_without(end);
        }
        if !here {
            // Where the connection is another's, that process does the steps: see `serve`.
            if provider.kind == Kind::Shared {
                self.move_to(self.number, token, end, provider, chances, rng);
            }
            return State::Holds { moved: true, lends };
        }
        if moved || (token == SEND && end.suspension.is_asking()) {
            // Also what a process left that died in the middle: else who asks has both tokens.
            if !end.resume(provider) {
                end.absorb(provider);
                end.answer(provider);
            }
            let moved = end.suspension.is_asking();
            return State::Holds { moved, lends };
        }
        self.release(end);
        if token == SEND {
            end.flush(provider);
        }
        match self.call {
            Call::Write { left } => self.write(left, lends, end, provider, chances, rng),
            Call::Read { room } => self.read(room, end, provider, chances, rng),
        }
    }

    /// The call is done in the memory that the processes share; the library of the process that has the
    /// connection carries it.
    fn do_without(&mut self, end: &mut End) -> State {
        let waits = match self.call {
            Call::Write { left } => {
                let left = left.min((end.total - end.written) as usize);
                let rest = left - end.keep(left);
                self.call = Call::Write { left: rest };
                rest > 0
            }
            Call::Read { room } => end.receive(room) == 0,
        };
        let next = if waits && self.blocking { State::Waits } else { State::Idle };
        self.give_back(end, next)
    }

    fn write(
        &mut self,
        left: usize,
        lends: usize,
        end: &mut End,
        provider: &mut Provider,
        chances: &Chances,
        rng: &mut Rng,
    ) -> State {
        let lent = provider.has(end.number, self.number, Memory::Lent);
        if lends == 0 && self.blocking && !end.suspension.holds_back() && rng.percent(chances.rdma)
        {
            provider.register(end.number, self.number, Memory::Lent);
            return State::Holds { moved: false, lends: rng.range(2, 10) };
        }
        if lent {
            // It waits for the peer to read; a suspension, or time, ends that.
            end.absorb(provider);
            if lends > 1 && !end.suspension.holds_back() {
                return State::Holds { moved: false, lends: lends - 1 };
            }
            provider.deregister(end.number, Memory::Lent);
        }
        let left = left.min((end.total - end.written) as usize);
        let taken = end.write(provider, left);
        if taken == left || !self.blocking {
            return self.give_back(end, State::Idle);
        }
        self.call = Call::Write { left: left - taken };
        self.give_back(end, State::Waits)
    }

    fn read(
        &mut self,
        room: usize,
        end: &mut End,
        provider: &mut Provider,
        chances: &Chances,
        rng: &mut Rng,
    ) -> State {
        end.absorb(provider);
        let got = end.receive(room);
        end.update_credit(provider);
        end.answer(provider);
        if got > 0 || !self.blocking {
            return self.give_back(end, State::Idle);
        }
        let posted = provider.registered(end.number).iter().any(|&(_, m)| m == Memory::Posted);
        if !posted && !end.suspension.holds_back() && rng.percent(chances.rdma) {
            provider.register(end.number, self.number, Memory::Posted);
        }
        self.give_back(end, State::Waits)
    }

    /// A blocked call; a signal may end it.
    fn wait(
        &mut self,
        end: &mut End,
        provider: &mut Provider,
        chances: &Chances,
        rng: &mut Rng,
    ) -> State {
        let ready = match self.call {
            Call::Write { .. } => end.has_room(),
            Call::Read { .. } => end.has_data(),
        };
        let interrupted = rng.percent(chances.give_up.max(1));
        if !ready && !interrupted {
            return State::Waits;
        }
        if provider.has(end.number, self.number, Memory::Posted) {
            provider.deregister(end.number, Memory::Posted);
        }
        if interrupted {
            State::Idle
        } else {
            State::Wants
        }
    }

    pub(crate) fn describe(&self) -> String {
        format!("{:?} {:?} stopped {}", self.state, self.call, self.stopped)
    }
}
