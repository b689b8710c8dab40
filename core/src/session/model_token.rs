//! Model check of the token: as in [`super`], with the kernel's futex beside it.

use super::token::{Claim, Step, Token, Wake};
use super::*;

/// A token with the kernel's futex: a sleeper looks at the word again under the lock that wakers take.
struct Controlled {
    token: Token,
    asleep: loom::sync::Mutex<()>,
    woken: loom::sync::Condvar,
    /// Who was served, in that order, and the ticket it had drawn first.
    guarded: UnsafeCell<Vec<(u32, Option<u32>)>>,
}

impl Controlled {
    fn new() -> Arc<Controlled> {
        let token = Token::new();
        // Makes the loom objects here, before any thread runs.
        let (one, other) = (claim(1), claim(2));
        let mut ticket = None;
        assert!(token.try_take(one).is_ok());
        assert!(matches!(token.look(other, &mut ticket), Step::Sleep(_)));
        assert_eq!(token.give_back(), Wake::All);
        assert!(matches!(token.look(other, &mut ticket), Step::Taken(_)));
        assert_eq!(token.give_back(), Wake::One);
        assert_eq!((token.process(), token.swaps()), (2, 1));
        Arc::new(Controlled {
            token,
            asleep: loom::sync::Mutex::new(()),
            woken: loom::sync::Condvar::new(),
            guarded: UnsafeCell::new(Vec::new()),
        })
    }

    fn wake(&self, whom: Wake) {
        let _held = self.asleep.lock().unwrap();
        match whom {
            Wake::Nobody => {}
            Wake::One => self.woken.notify_one(),
            Wake::All => self.woken.notify_all(),
        }
    }

    /// One operation of the process, which is never interrupted by another.
    fn operate(&self, process: u32) {
        assert!(self.try_operate(process, true), "it waits");
    }

    /// False if it would have had to sleep and does not wait.
    fn try_operate(&self, process: u32, waits: bool) -> bool {
        let claim = claim(process);
        let (mut ticket, mut first) = (None, None);
        if self.token.try_take(claim).is_err() {
            loop {
                let step = self.token.look(claim, &mut ticket);
                // One that was passed over draws another.
                first = first.or(ticket);
                match step {
                    Step::Taken(_) => break,
                    Step::Again => {}
                    Step::WakeAll => self.wake(Wake::All),
                    Step::Sleep(_) if !waits => {
                        if let Some(ticket) = ticket {
                            self.token.give_up(ticket);
                            self.wake(Wake::All);
                        }
                        return false;
                    }
                    Step::Sleep(seen) => {
                        let held = self.asleep.lock().unwrap();
                        if self.token.word().load(Ordering::Relaxed) == seen {
                            drop(self.woken.wait(held).unwrap());
                        }
                    }
                }
            }
        }
        self.guarded.with_mut(|at| {
            // SAFETY: the token's holder is alone, which loom checks.
            unsafe { (*at).push((process, first)) };
        });
        match self.token.give_back() {
            Wake::Nobody => {}
            whom => self.wake(whom),
        }
        true
    }
}

fn claim(process: u32) -> Claim {
    Claim { process, thread: process * 10 }
}

/// D2: one process at a time, and every one that waits gets its turn, first in, first out, however they meet.
#[test]
fn d2_control_is_exclusive_and_goes_to_those_who_wait_in_their_order() {
    let reached = std::sync::Arc::new(Reached::default());
    let seen = reached.clone();
    bounded(2, move || {
        let shared = Controlled::new();
        let others: Vec<_> = [1, 2]
            .map(|process| {
                let shared = shared.clone();
                thread::spawn(move || shared.operate(process))
            })
            .into();
        shared.operate(3);
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(shared.token.word().load(Ordering::Relaxed), 0);
        shared.guarded.with(|at| {
            // SAFETY: nobody else is left.
            let served = unsafe { (*at).clone() };
            let tickets: Vec<u32> = served.iter().filter_map(|(_, ticket)| *ticket).collect();
            assert!(tickets.is_sorted(), "{served:?}");
            let mut processes: Vec<u32> = served.iter().map(|(process, _)| *process).collect();
            processes.sort_unstable();
            assert_eq!(processes, [1, 2, 3]);
            seen.note((tickets.len() as u32, 0));
        });
    });
    // Among them those where two waited at once.
    assert_eq!(reached.states(), [(0, 0), (1, 0), (2, 0)]);
}

/// D2: nobody waits for one that queued and gave up.
#[test]
fn d2_a_claim_that_is_given_up_holds_nobody_up() {
    let reached = std::sync::Arc::new(Reached::default());
    let seen = reached.clone();
    bounded(2, move || {
        let shared = Controlled::new();
        let gives_up = thread::spawn({
            let shared = shared.clone();
            move || shared.try_operate(1, false)
        });
        let waits = thread::spawn({
            let shared = shared.clone();
            move || shared.operate(2)
        });
        shared.operate(3);
        let operated = gives_up.join().unwrap();
        waits.join().unwrap();
        // Whatever it is kept for now, the next one draws that.
        shared.operate(4);
        seen.note((operated.into(), 0));
    });
    assert_eq!(reached.states(), [(0, 0), (1, 0)]);
}
