//! The threads of both ends, of which one runs at a time, as the schedule has it: at each step another may go on instead, and
//! an end may die, whatever its threads are in the middle of.

use super::kernel::Kernel;
use crate::rng::Rng;
use std::cell::RefCell;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Threads of an end: one sends, one receives.
pub(super) const THREADS: usize = 2;
const ALL: usize = 2 * THREADS;
const MOST_STEPS: usize = 400_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Ready,
    /// In the kernel, until its end's socket is this.
    Asleep(Ready),
    Done,
}

/// What a thread sleeps for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    Readable,
    Writable,
    /// Its bell rings, or the peer is gone, or the TCP connection is ready for what goes over it.
    Rung {
        reads_tcp: bool,
        sends_tcp: bool,
    },
}

/// See the module.
pub(super) struct Schedule {
    state: Mutex<State>,
    turns: [Condvar; ALL],
}

struct State {
    rng: Rng,
    running: usize,
    status: [Status; ALL],
    steps: usize,
    /// How often the next step is another thread's, in percent.
    switches: usize,
    /// The end that dies, and before which step.
    dies: Option<(usize, usize)>,
    dead: [bool; 2],
    /// A thread failed: the others end as well.
    failed: bool,
    kernel: Kernel,
}

/// What became of it.
pub(super) struct Ended {
    /// The end that died.
    pub(super) dead: Option<usize>,
    /// How many of its bytes a reset took away.
    pub(super) lost: usize,
}

/// With which a thread is unwound whose end died.
struct Killed;

thread_local! {
    static OWN: RefCell<Option<(Arc<Schedule>, usize)>> = const { RefCell::new(None) };
}

fn own() -> Option<(Arc<Schedule>, usize)> {
    OWN.with(|own| own.borrow().clone())
}

/// A step of the calling thread's.
pub(super) fn step() {
    if let Some((schedule, thread)) = own() {
        schedule.step(thread);
    }
}

/// True so often, in percent.
pub(super) fn chance(percent: usize) -> bool {
    own().is_some_and(|(schedule, _)| schedule.state().rng.percent(percent))
}

/// Uniform in `low..=high`.
pub(super) fn range(low: usize, high: usize) -> usize {
    own().map_or(low, |(schedule, _)| schedule.state().rng.range(low, high))
}

/// A system call: what it does, it does at once.
pub(super) fn call<T>(what: impl FnOnce(&mut Kernel) -> T) -> T {
    step();
    let (schedule, _) = own().expect("a thread of the schedule");
    let mut state = schedule.state();
    let result = what(&mut state.kernel);
    state.wake();
    result
}

/// Sleeps in the kernel until the socket is that. Whoever takes off meanwhile what it was, as the library does, waits until its
/// sleepers are awake: so they are at once.
pub(super) fn sleep_until(ready: Ready) {
    step();
    let (schedule, thread) = own().expect("a thread of the schedule");
    let mut state = schedule.state();
    if !state.kernel.is(thread / THREADS, ready) {
        state.status[thread] = Status::Asleep(ready);
        drop(schedule.pass_on(state, thread));
    }
}

impl State {
    /// A thread that sleeps on a socket where something happened looks again.
    fn wake(&mut self) {
        for thread in 0..ALL {
            if let Status::Asleep(ready) = self.status[thread] {
                if self.kernel.is(thread / THREADS, ready) {
                    self.status[thread] = Status::Ready;
                }
            }
        }
    }

    fn kill(&mut self, end: usize) {
        self.dies = None;
        self.dead[end] = true;
        self.kernel.die(end, &mut self.rng);
        self.wake();
        for status in &mut self.status[end * THREADS..][..THREADS] {
            if *status != Status::Done {
                *status = Status::Ready;
            }
        }
    }

    fn is_over(&self, thread: usize) -> bool {
        self.failed || self.dead[thread / THREADS]
    }
}

impl Schedule {
    pub(super) fn new(rng: Rng, kernel: Kernel, dies: Option<(usize, usize)>) -> Arc<Schedule> {
        let mut state = State {
            rng,
            running: 0,
            status: [Status::Ready; ALL],
            steps: 0,
            switches: 0,
            dies,
            dead: [false; 2],
            failed: false,
            kernel,
        };
        state.switches = [3, 10, 30, 60][state.rng.below(4)];
        state.running = state.rng.below(ALL);
        Arc::new(Schedule { state: Mutex::new(state), turns: Default::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs these, in the order of their ends, until all are done.
    pub(super) fn run<'a>(
        self: &Arc<Self>,
        threads: [Box<dyn FnOnce() + Send + 'a>; ALL],
    ) -> Ended {
        let ended: Vec<_> = std::thread::scope(|scope| {
            let begun: Vec<_> = threads
                .into_iter()
                .enumerate()
                .map(|(thread, work)| scope.spawn(move || self.run_one(thread, work)))
                .collect();
            begun.into_iter().map(|thread| thread.join().expect("it caught its panic")).collect()
        });
        if let Some(panic) = ended.into_iter().flatten().next() {
            resume_unwind(panic);
        }
        let state = self.state();
        Ended { dead: state.dead.iter().position(|dead| *dead), lost: state.kernel.lost }
    }

    /// What it failed with.
    fn run_one(
        self: &Arc<Self>,
        thread: usize,
        work: Box<dyn FnOnce() + Send + '_>,
    ) -> Option<Box<dyn std::any::Any + Send>> {
        OWN.with(|own| *own.borrow_mut() = Some((self.clone(), thread)));
        let ended = catch_unwind(AssertUnwindSafe(|| {
            drop(self.wait(self.state(), thread));
            work();
        }));
        OWN.with(|own| *own.borrow_mut() = None);
        let failed = ended.err().filter(|panic| !panic.is::<Killed>());
        let mut state = self.state();
        state.failed |= failed.is_some();
        state.status[thread] = Status::Done;
        self.choose(&mut state);
        failed
    }

    fn step(&self, thread: usize) {
        let mut state = self.state();
        if std::thread::panicking() {
            return;
        }
        state.steps += 1;
        let steps = state.steps;
        if let Some((end, _)) = state.dies.filter(|(_, at)| *at <= steps) {
            state.kill(end);
        }
        if state.steps > MOST_STEPS {
            drop(state);
            panic!("it never ends");
        }
        let switches = state.switches;
        if state.rng.percent(switches) || state.is_over(thread) {
            drop(self.pass_on(state, thread));
        }
    }

    /// Another may run; back when this one may.
    fn pass_on<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        thread: usize,
    ) -> MutexGuard<'a, State> {
        if !state.is_over(thread) {
            self.choose(&mut state);
        }
        self.wait(state, thread)
    }

    fn choose(&self, state: &mut State) {
        let ready: Vec<_> =
            (0..ALL).filter(|&thread| state.status[thread] == Status::Ready).collect();
        if ready.is_empty() {
            // A thread that finds that fails.
            if let Some(asleep) = state.status.iter().position(|one| *one != Status::Done) {
                state.running = asleep;
                self.turns[asleep].notify_one();
            }
            return;
        }
        state.running = ready[state.rng.below(ready.len())];
        self.turns[state.running].notify_one();
    }

    fn wait<'a>(&self, mut state: MutexGuard<'a, State>, thread: usize) -> MutexGuard<'a, State> {
        while state.running != thread {
            state = self.turns[thread].wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_over(thread) {
            drop(state);
            resume_unwind(Box::new(Killed));
        }
        let hangs = state.status[thread] != Status::Ready;
        state.status[thread] = Status::Ready;
        if hangs {
            drop(state);
            panic!("everybody sleeps, and nothing will happen any more");
        }
        state
    }
}
