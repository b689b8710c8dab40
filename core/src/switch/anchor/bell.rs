//! The bell that this end sleeps on, and when a thread takes its rings off.
//!
//! A ring that lies there wakes every thread that sleeps on the bell's level. So only a thread that found the stream
//! empty and is about to raise its counter takes rings off. It first lets the threads that a ring woke come out of the
//! kernel.

use crate::switch::anchor::watchers;
use crate::switch::socket::Socket;
use crate::switch::stream::counters::{self, CountedEvent};
use crate::switch::stream::{Hold, Stream};
use crate::sys::{jump, poll, process, time};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// How long (ns) sleepers may take to come out of the kernel once the ring is there. One that is
/// given up too early falls asleep again without having seen what it was woken for.
const SLEEPERS_TIMEOUT: u64 = 2_000_000_000;
/// After so long (ns) a thread asks whether the others live.
const LOOK_FOR_DEAD: u64 = 1_000_000;

/// Notes that a ring lies on the bell, for the thread that sleeps next. Takes the ring off at once where no other
/// thread can have been meant.
pub(in crate::switch) fn note_ring(socket: &Socket, stream: &Stream) {
    let e = stream.endpoint;
    let is_mine = e.sleepers.are_one()
        && e.holders.load(Relaxed) == 1
        && socket.watch_count.load(Relaxed) == 0;
    if is_mine && stream.carrier().silence(stream) {
        socket.statistics().wakeups_received.add(1);
        if !e.sleepers.are_one() {
            // Another thread went to sleep meanwhile: the ring may have been that thread's.
            stream.wake_own();
        }
    } else {
        e.rang.store(1, SeqCst);
    }
}

/// Takes off the rings that are noted. Only a thread that found the stream empty and is about to raise a counter calls
/// this. It waits until the threads that the rings were to wake are awake, but not once `ready`.
pub(in crate::switch) fn take_off(socket: &Socket, stream: &Stream, ready: impl FnMut() -> bool) {
    let e = stream.endpoint;
    if e.rang.load(SeqCst) == 0 {
        return;
    }
    let forced = match let_sleepers_leave(stream, ready) {
        Departure::Done => false,
        Departure::Never => true,
        Departure::Awaited => return,
    };
    let _hold = Hold::of(stream);
    if e.anchor.lock().is_err() {
        return;
    }
    if !forced && e.sleepers.any() {
        // A thread went to sleep meanwhile: the ring, if there is one, is for that thread.
        e.anchor.unlock();
        return;
    }
    e.rang.store(0, SeqCst);
    let rang = stream.carrier().silence(stream);
    if forced {
        e.sleepers.clear();
    }
    e.anchor.unlock();
    if forced || (rang && e.holders.load(Relaxed) > 1) {
        // Sleepers that are stopped, and other processes' epoll sets, hear the next event.
        for event in [CountedEvent::Read, CountedEvent::Write] {
            let _ = counters::raise(stream, event);
        }
    }
    if rang {
        socket.statistics().wakeups_received.add(1);
        watchers::ring_taken_off(socket);
    }
}

/// What became of the threads that sleep on a connection.
enum Departure {
    /// All came out of the kernel, or there was no ring to wake them.
    Done,
    /// Some are still there, and the thread that waits for them has something better to do.
    Awaited,
    /// Some never came: stopped.
    Never,
}

/// As long as the ring is there, every sleeper comes out of the kernel; waits for that.
fn let_sleepers_leave(stream: &Stream, mut ready: impl FnMut() -> bool) -> Departure {
    let mut started = 0;
    let mut pause = 10_000;
    loop {
        let sleepers = &stream.endpoint.sleepers;
        if sleepers.any() && !jump::is_asleep() {
            sleepers.forget_own();
        }
        if !sleepers.any() || poll::poll_one(stream.bell(), libc::POLLIN) == Ok(0) {
            return Departure::Done;
        }
        if ready() {
            return Departure::Awaited;
        }
        let now = time::now();
        if started == 0 {
            started = now;
        } else if now - started > SLEEPERS_TIMEOUT {
            return Departure::Never;
        } else if now - started > LOOK_FOR_DEAD {
            sleepers.forget_the_dead();
        }
        process::yield_now();
        time::sleep(pause);
        pause = (pause + pause / 8).min(1_000_000);
    }
}
