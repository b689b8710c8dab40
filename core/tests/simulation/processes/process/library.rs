//! What a process's library does for the connection beside the program's calls: it takes over from dead processes, moves the
//! connection to the process that has control, which takes both tokens, and carries what is due.

use super::super::end::{End, RECEIVE, SEND};
use super::super::provider::{Kind, Memory, Provider};
use super::{Chances, Process, State};
use crate::rng::Rng;
use sanshim_core::session::token::{Step, Wake};
use std::sync::atomic::Ordering::Relaxed;

impl Process {
    fn borrow(&mut self, token: usize, end: &End) -> bool {
        if self.borrowed.is_none() && end.tokens[token].try_borrow(self.claim.thread) {
            self.borrowed = Some(token);
        }
        self.borrowed == Some(token)
    }

    pub(super) fn release(&mut self, end: &End) {
        if let Some(token) = self.borrowed.take() {
            let _: Wake = end.tokens[token].give_back();
        }
    }

    /// One step of moving the connection to process `next`, which has that token, if what is under way in the other direction
    /// allows it.
    pub(super) fn move_to(
        &mut self,
        next: usize,
        token: usize,
        end: &mut End,
        provider: &mut Provider,
        chances: &Chances,
        rng: &mut Rng,
    ) {
        if self.borrow(1 - token, end) {
            let given_up = &mut self.given_up;
            self.suspensions +=
                u64::from(swap(end, provider, [next, token], given_up, chances, rng));
        } else if rng.percent(chances.give_up.max(2)) {
            self.given_up += 1;
            end.gave_up[token] = true;
        }
    }

    /// Takes the tokens over that dead processes have, and ends what these asked for.
    fn succeed_the_dead(&mut self, end: &mut End, provider: &mut Provider, alive: &[bool]) {
        let lives = |thread: u32| alive[thread as usize % 100];
        for token in [SEND, RECEIVE] {
            if end.tokens[token].holder().is_none_or(lives) {
                continue;
            }
            let word = end.tokens[token].word().load(Relaxed);
            let taken = end.tokens[token].waited_in_vain(self.claim, None, word, lives);
            if matches!(taken, Step::Taken(_)) {
                end.holders[token] = None;
                if token == SEND {
                    end.resume(provider);
                }
                let _: Wake = end.tokens[token].give_back();
            }
        }
    }

    /// What the library does for the connection beside the program's calls, without taking control from
    /// anybody (D3). `alive`: which processes are.
    pub(crate) fn serve(
        &mut self,
        end: &mut End,
        provider: &mut Provider,
        alive: &[bool],
        chances: &Chances,
        rng: &mut Rng,
    ) {
        let here = provider.owner(end.number) == self.number;
        if here || provider.kind == Kind::Shared {
            self.succeed_the_dead(end, provider, alive);
        }
        if provider.kind == Kind::OfOneProcess && !here {
            // It went to the next one.
            if !matches!(self.state, State::Holds { .. }) {
                self.release(end);
            }
            return;
        }
        if matches!(self.state, State::Holds { .. }) {
            return;
        }
        if provider.kind == Kind::OfOneProcess
            && self.moves_for_another(end, provider, alive, chances, rng)
        {
            return;
        }
        self.carry(end, provider);
        if !end.suspension.is_asking() {
            self.release(end);
        }
    }

    /// One step of moving the connection to a process that has control and waits for it; false: none does.
    fn moves_for_another(
        &mut self,
        end: &mut End,
        provider: &mut Provider,
        alive: &[bool],
        chances: &Chances,
        rng: &mut Rng,
    ) -> bool {
        let waits = |token: usize| {
            let holder = end.holders[token].filter(|&holder| alive[holder])?;
            (!end.gave_up[token] && holder != self.number).then_some([holder, token])
        };
        let Some([next, token]) = waits(SEND).or_else(|| waits(RECEIVE)) else { return false };
        if self.borrowed == Some(token) {
            return false;
        }
        self.move_to(next, token, end, provider, chances, rng);
        if end.gave_up[token] {
            self.release(end);
        }
        true
    }

    /// Carries what is due, with the tokens that nobody has at this moment.
    fn carry(&mut self, end: &mut End, provider: &mut Provider) {
        let thread = self.claim.thread;
        let borrow = |token: usize| end.tokens[token].try_borrow(thread);
        let borrowed = [SEND, RECEIVE].map(|token| self.borrowed != Some(token) && borrow(token));
        let has = [SEND, RECEIVE].map(|token| self.borrowed == Some(token) || borrowed[token]);
        if has == [true; 2] {
            end.open(provider);
        }
        if has[RECEIVE] {
            end.absorb(provider);
        }
        if has[SEND] {
            // Of a process that died, or for one.
            end.resume(provider);
        }
        if has[RECEIVE] {
            end.answer(provider);
            end.update_credit(provider);
        }
        if has[SEND] {
            end.flush(provider);
        }
        for token in [SEND, RECEIVE] {
            if borrowed[token] {
                let _: Wake = end.tokens[token].give_back();
            }
        }
    }
}

/// One step of moving the connection to process `next`, which has `token`; the other one is held for that. True: it moved while
/// the session was suspended.
fn swap(
    end: &mut End,
    provider: &mut Provider,
    [next, token]: [usize; 2],
    given_up: &mut u64,
    chances: &Chances,
    rng: &mut Rng,
) -> bool {
    end.absorb(provider);
    if end.suspension.is_suspended() {
        provider.deregister(end.number, Memory::SendBuffers);
        provider.move_to(end.number, next);
        return true;
    }
    end.answer(provider);
    let may_ask = !end.suspension.is_asking() || end.suspension.gave_way();
    if may_ask && end.ask(provider) {
        return false;
    }
    // Nothing is suspended yet: what else there is to do goes on.
    end.flush(provider);
    end.update_credit(provider);
    if rng.percent(chances.give_up.max(2)) && end.resume(provider) {
        *given_up += 1;
        end.gave_up[token] = true;
        if provider.kind == Kind::Shared {
            // The connection belongs to no process: it may move all the same.
            provider.deregister(end.number, Memory::Posted);
            provider.deregister(end.number, Memory::SendBuffers);
            provider.move_to(end.number, next);
        }
    }
    false
}
