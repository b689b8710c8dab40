//! Model check of the token: as in [`super`], with the kernel's futex beside it.

use super::sync::Ordering;
use super::token::{Claim, Step, Token, TokenTaken, Wake};
use super::{bounded, Reached};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// A token with the kernel's futex: a sleeper looks at the word again under the lock that wakers take.
struct Controlled {
    token: Token,
    asleep: loom::sync::Mutex<()>,
    woken: loom::sync::Condvar,
    /// Who was served, in that order, and the ticket it had drawn first.
    guarded: UnsafeCell<Vec<(u32, Option<u32>)>>,
    /// The thread that died with the token, or one above the ticket of one that died in the queue.
    dead: [loom::sync::atomic::AtomicU32; 2],
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
            dead: Default::default(),
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
    fn operate(&self, process: u32) -> TokenTaken {
        self.try_operate(process, true).expect("it waits")
    }

    /// `None` if it would have had to sleep and does not wait.
    fn try_operate(&self, process: u32, waits: bool) -> Option<TokenTaken> {
        let taken = self.take(process, waits)?;
        match self.token.give_back() {
            Wake::Nobody => {}
            whom => self.wake(whom),
        }
        Some(taken)
    }

    fn take(&self, process: u32, waits: bool) -> Option<TokenTaken> {
        let claim = claim(process);
        let (mut ticket, mut first) = (None, None);
        let taken = self.token.try_take(claim).or_else(|_| loop {
            let mut step = self.token.look(claim, &mut ticket);
            // One that was passed over draws another.
            first = first.or(ticket);
            if let Step::Sleep(seen) = step {
                if !waits {
                    return Err(ticket);
                }
                step = self.sleep(claim, ticket, seen);
            }
            match step {
                Step::Taken(taken) => return Ok(taken),
                Step::WakeAll => self.wake(Wake::All),
                Step::Again | Step::Sleep(_) => {}
            }
        });
        match taken {
            Ok(taken) => {
                self.guarded.with_mut(|at| {
                    // SAFETY: the token's holder is alone, which loom checks.
                    unsafe { (*at).push((process, first)) };
                });
                Some(taken)
            }
            Err(ticket) => {
                if let Some(ticket) = ticket {
                    self.token.give_up(ticket);
                    self.wake(Wake::All);
                }
                None
            }
        }
    }

    /// Until it is woken, or the time runs out in which whom it waits for would have come.
    fn sleep(&self, claim: Claim, ticket: Option<u32>, seen: u32) -> Step {
        let held = self.asleep.lock().unwrap();
        let [thread, queued] = [0, 1].map(|of| self.dead[of].load(Ordering::Acquire));
        let in_vain = match Token::holder_or_ticket(seen) {
            Ok(holder) => holder == thread,
            Err(ticket) => ticket + 1 == queued,
        };
        if in_vain {
            drop(held);
            return self.token.waited_in_vain(claim, ticket, seen, |holder| holder != thread);
        }
        if self.token.word().load(Ordering::Relaxed) == seen {
            drop(self.woken.wait(held).unwrap());
        }
        Step::Again
    }

    /// The process dies while it has the token.
    fn die_with_it(&self, process: u32) {
        self.take(process, true).expect("it waits");
        self.note_dead(0, claim(process).thread);
    }

    /// The process dies in the queue, if it comes there.
    fn die_in_the_queue(&self, process: u32) {
        let claim = claim(process);
        let mut ticket = None;
        let mut taken = self.token.try_take(claim).is_ok();
        while !taken {
            match self.token.look(claim, &mut ticket) {
                Step::Taken(_) => taken = true,
                Step::WakeAll => self.wake(Wake::All),
                Step::Again => {}
                Step::Sleep(_) => return ticket.map_or((), |own| self.note_dead(1, own + 1)),
            }
        }
        self.wake(self.token.give_back());
    }

    fn note_dead(&self, of: usize, number: u32) {
        self.dead[of].store(number, Ordering::Release);
        self.wake(Wake::All);
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
                thread::spawn(move || {
                    shared.operate(process);
                })
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
            move || {
                shared.operate(2);
            }
        });
        shared.operate(3);
        let operated = gives_up.join().unwrap().is_some();
        waits.join().unwrap();
        // The token may be kept for any ticket now. The next waiter draws that ticket.
        shared.operate(4);
        seen.note((operated.into(), 0));
    });
    assert_eq!(reached.states(), [(0, 0), (1, 0)]);
}

/// D12: from a holder that dies with it the token goes to exactly one, who knows that; the others get it as ever.
#[test]
fn d12_one_takes_over_from_a_holder_that_dies() {
    let reached = std::sync::Arc::new(Reached::default());
    let seen = reached.clone();
    bounded(2, move || {
        let shared = Controlled::new();
        let dies = thread::spawn({
            let shared = shared.clone();
            move || shared.die_with_it(1)
        });
        let waits = thread::spawn({
            let shared = shared.clone();
            move || shared.operate(2)
        });
        let mut taken = vec![shared.operate(3)];
        taken.push(waits.join().unwrap());
        dies.join().unwrap();
        taken.push(shared.operate(4));
        let heirs: Vec<_> = (0u32..).zip(&taken).filter(|(_, taken)| taken.from_the_dead).collect();
        assert_eq!(heirs.len(), 1, "{taken:?}");
        seen.note((heirs[0].0, 0));
        shared.guarded.with(|at| {
            // SAFETY: nobody else is left.
            assert_eq!(unsafe { (*at).len() }, 4);
        });
    });
    assert_eq!(reached.states(), [(0, 0), (1, 0), (2, 0)]);
}

/// D12: one that dies in the queue holds nobody up for longer than its turn.
#[test]
fn d12_the_turn_of_one_that_died_in_the_queue_passes() {
    let reached = std::sync::Arc::new(Reached::default());
    let seen = reached.clone();
    bounded(2, move || {
        let shared = Controlled::new();
        let dies = thread::spawn({
            let shared = shared.clone();
            move || shared.die_in_the_queue(1)
        });
        let waits = thread::spawn({
            let shared = shared.clone();
            move || {
                shared.operate(2);
            }
        });
        shared.operate(3);
        waits.join().unwrap();
        dies.join().unwrap();
        assert!(!shared.operate(4).from_the_dead);
        seen.note((shared.dead[1].load(Ordering::Relaxed).min(1), 0));
    });
    assert_eq!(reached.states(), [(0, 0), (1, 0)]);
}
