//! The doorbell: bytes on the anchor, and who may take them off.
//!
//! Each is counted: promised before it is sent ([`Doorbells`](crate::session::Doorbells)), heard
//! when it is taken off. So the stream itself may follow the doorbells on the same anchor (the way
//! back to TCP, [`back_to_tcp`](crate::switch::back_to_tcp)) and not one of its bytes is taken for a doorbell.

use crate::switch::anchor::ends;
use crate::switch::anchor::options;
use crate::switch::anchor::switchover;
use crate::switch::anchor::watchers;
use crate::switch::endpoint::flag;
use crate::switch::socket::Socket;
use crate::switch::stream::counters::{self, Event};
use crate::switch::stream::{Broken, Hold, Stream};
use crate::sys::lock::Acquired;
use crate::sys::{jump, net, poll, process, time, Errno, Fd, Result};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Rings with an urgent byte, for which the kernel raises SIGURG at the peer, unless that does not listen here any more
/// (false): then it gets the byte with what is sent again. The kernel's error. Send lock.
pub(in crate::switch) fn ring_urgent(
    socket: &Socket,
    stream: &Stream,
    byte: u8,
) -> (bool, Option<Errno>) {
    let e = stream.endpoint;
    let _hold = Hold::of(stream);
    let held = e.doorbell_lock.lock();
    if held == Ok(Acquired::FromTheDead) {
        recount_sent(stream, socket.anchor());
    }
    let sent = send_doorbell(socket, stream, byte, libc::MSG_OOB);
    if held.is_ok() {
        stream.own().sending.0.doorbells.rung();
        e.doorbell_lock.unlock();
    }
    sent
}

/// Sends one byte, unless the peer does not listen here any more (false); the kernel's error. Bell lock.
pub(in crate::switch) fn send_doorbell(
    socket: &Socket,
    stream: &Stream,
    byte: u8,
    flags: i32,
) -> (bool, Option<Errno>) {
    let doorbells_owed = &stream.endpoint.doorbells_owed;
    let owed = doorbells_owed.load(Relaxed);
    let doorbells = &stream.own().sending.0.doorbells;
    if !(if owed == 0 { doorbells.promise() } else { doorbells.resume() }) {
        return (false, None);
    }
    socket.statistics().wakeups_sent.add(1);
    let sent = net::send(socket.anchor(), &[byte], flags | libc::MSG_DONTWAIT);
    // No room, or not for this process.
    let unsent = matches!(sent, Err(Errno(e)) if e == libc::EAGAIN || ends::is_local(e));
    doorbells_owed.store(if unsent { owed.max(1) } else { owed.saturating_sub(1) }, Relaxed);
    (true, sent.err().filter(|_| !unsent))
}

/// After the doorbell lock came from a dead holder: the kernel knows whether its doorbell was sent.
pub(in crate::switch) fn recount_sent(stream: &Stream, anchor: Fd) {
    let doorbells = &stream.own().sending.0.doorbells;
    doorbells.rung();
    let word = doorbells.state();
    let Some(written) = net::bytes_written(anchor) else { return };
    if !word.left {
        let owed = word.bells.saturating_sub(written).min(1);
        stream.endpoint.doorbells_owed.store(owed as u32, Relaxed);
    }
}

/// What taking doorbells off an anchor met.
enum End {
    /// Nothing.
    None,
    /// The anchor's stream ended, or failed with this error.
    Of(i32),
    /// More doorbells than there can be.
    Flood,
}

impl End {
    /// What such an answer of the kernel's recv tells.
    fn of(received: Result<usize>) -> End {
        match received {
            Ok(0) => End::Of(0),
            Ok(_) | Err(Errno(libc::EAGAIN)) => End::None,
            Err(Errno(error)) => End::Of(error),
        }
    }
}

/// Most doorbells that one call takes off, many times what an honest peer rings before they are taken off: it says
/// how many it promised, and may send bytes for ever.
const MOST_TAKEN: u64 = 1 << 20;
/// Bytes asked of the kernel at once.
const AT_ONCE: usize = 64;
/// How often what the peer promised may change under a look at an anchor without a doorbell.
const MOST_LOOKS: u32 = 64;

/// Takes the doorbells off `anchor`, which is the socket's, before it is the kernel's.
pub(in crate::switch) fn take_off(socket: &Socket, stream: &Stream, anchor: Fd) {
    let _ = take_off_within(socket, stream, anchor, SLEEPERS_TIMEOUT_AT_END, || false);
}

/// As [`take_off`], but waits `timeout` (ns) until threads that a doorbell was to wake are awake; not once `ready`. How
/// many there were.
pub(in crate::switch) fn take_off_within(
    socket: &Socket,
    stream: &Stream,
    anchor: Fd,
    timeout: u64,
    ready: impl FnMut() -> bool,
) -> u64 {
    let e = stream.endpoint;
    if !may_have_doorbells(stream, anchor) {
        return 0;
    }
    let forced = match let_sleepers_leave(stream, anchor, timeout, ready) {
        Departure::Done => false,
        Departure::Never => true,
        Departure::Awaited => return 0,
    };
    let _hold = Hold::of(stream);
    let Some((drained, end)) = take_unheard(stream, anchor, forced) else { return 0 };
    if forced || (drained > 0 && e.holders.load(Relaxed) > 1) {
        // Sleepers that are stopped, and other processes' epoll sets, hear the next event.
        for event in [Event::Read, Event::Write] {
            let _ = counters::raise(stream, event);
        }
    }
    match end {
        End::None => {}
        End::Of(0) => ends::note_end(socket, stream),
        End::Of(error) => ends::note_error(socket, stream, error),
        End::Flood => ends::fail(socket, stream, Broken::Doorbells),
    }
    if drained > 0 {
        socket.statistics().wakeups_received.add(drained);
        watchers::doorbell_drained(socket);
    }
    drained
}

/// False if what is on the anchor is the stream's, or may be.
fn may_have_doorbells(stream: &Stream, anchor: Fd) -> bool {
    let e = stream.endpoint;
    // Over a fabric it is not known before how many there are.
    let is_known = || stream.peer().sending.0.doorbells.state().is_final();
    if e.has(flag::NO_MORE_DOORBELLS) || (stream.fabric.is_some() && !is_known()) {
        return false;
    }
    if !e.has(flag::RECEIVES_TCP) {
        return true;
    }
    if switchover::is_without_doorbells(stream) && e.anchor.lock().is_ok() {
        all_are_off(stream, anchor);
        e.anchor.unlock();
    }
    false
}

/// Takes off, under the anchor lock, what no sleeper is to hear any more: `forced`, or because none is there. How many,
/// and what was met behind them.
fn take_unheard(stream: &Stream, anchor: Fd, forced: bool) -> Option<(u64, End)> {
    let e = stream.endpoint;
    let how = e.anchor.lock().ok()?;
    if e.has(flag::NO_MORE_DOORBELLS) {
        // Meanwhile: what is there is the stream's.
        e.anchor.unlock();
        return None;
    }
    take_off_urgent(stream, anchor);
    if !forced && e.sleepers.any() {
        // Somebody went to sleep meanwhile: the byte, if there is one, is that thread's to hear.
        e.anchor.unlock();
        return None;
    }
    if how == Acquired::FromTheDead {
        recount_heard(stream, anchor);
    }
    let taken = take_promised(stream, anchor);
    if forced {
        e.sleepers.clear();
    }
    e.anchor.unlock();
    Some(taken)
}

/// Takes all doorbells off the anchor of a connection that stayed on the SAN to its end; false if the anchor has not
/// ended.
pub(in crate::switch) fn take_all(stream: &Stream, anchor: Fd) -> bool {
    let e = stream.endpoint;
    let Ok(_) = e.anchor.lock() else { return false };
    count_urgent(stream, anchor);
    let (mut bytes, mut looks) = ([0u8; AT_ONCE], 0);
    let ended = loop {
        match net::recv(anchor, &mut bytes, libc::MSG_DONTWAIT) {
            Ok(0) => break true,
            Ok(n) => {
                e.doorbells_taken.fetch_add(n as u64, Relaxed);
            }
            // At an urgent byte a signal that waits ends a look before its time.
            Err(Errno(libc::EAGAIN)) if looks < 2 => looks += 1,
            Err(Errno(error)) => break error != libc::EAGAIN,
        };
    };
    e.anchor.unlock();
    ended
}

/// Takes off what the peer promised and not a byte more. Anchor lock.
fn take_promised(stream: &Stream, anchor: Fd) -> (u64, End) {
    let heard = &stream.endpoint.doorbells_taken;
    let sending = &stream.peer().sending.0;
    let mut bytes = [0u8; AT_ONCE];
    let (mut drained, mut looks, mut counts_urgent) = (0u64, 0, false);
    loop {
        if drained >= MOST_TAKEN {
            return (drained, End::Flood);
        }
        let word = sending.doorbells.state();
        // An urgent byte is marked before it is promised.
        let urgent = sending.urgent.load(Acquire) != 0;
        if urgent && !counts_urgent {
            count_urgent(stream, anchor);
            counts_urgent = true;
        }
        let promised = word.bells.saturating_sub(heard.load(Relaxed));
        if promised == 0 && (drained > 0 || word.is_final()) {
            if word.is_final() {
                all_are_off(stream, anchor);
            }
            return (drained, End::None);
        }
        if promised == 0 {
            let there = net::recv(anchor, &mut bytes, libc::MSG_DONTWAIT | libc::MSG_PEEK);
            looks += 1;
            if sending.doorbells.state() != word && looks < MOST_LOOKS {
                continue;
            }
            return (0, without_doorbell(anchor, there));
        }
        let most = promised.min(bytes.len() as u64) as usize;
        let end = match net::recv(anchor, &mut bytes[..most], libc::MSG_DONTWAIT) {
            Err(Errno(libc::EAGAIN)) => return (drained, End::None),
            Ok(n @ 1..) => {
                heard.store(heard.load(Relaxed) + n as u64, Relaxed);
                drained += n as u64;
                // The kernel stops at an urgent byte.
                if n < most && !urgent {
                    return (drained, End::None);
                }
                continue;
            }
            ended => End::of(ended),
        };
        if word.is_final() {
            // Promised by somebody who died before it was sent.
            all_are_off(stream, anchor);
            return (drained, End::None);
        }
        return (drained, end);
    }
}

/// What it means that this is `there` on the anchor, on which no doorbell is promised. Anchor lock.
fn without_doorbell(anchor: Fd, there: Result<usize>) -> End {
    if let Ok(n @ 1..) = there {
        // Nobody's: written past the shim.
        let _ = net::recv(anchor, &mut [0; 64][..n], libc::MSG_DONTWAIT);
    }
    End::of(there)
}

/// From now on the anchor shows what is TCP's, urgent bytes as the program wants them. Anchor lock.
fn all_are_off(stream: &Stream, anchor: Fd) {
    options::give_back_urgent(stream, anchor);
    stream.endpoint.set(flag::NO_MORE_DOORBELLS);
}

/// After the anchor lock came from a dead holder: the kernel knows what it took off. Anchor lock.
fn recount_heard(stream: &Stream, anchor: Fd) {
    if let Some(taken) = net::bytes_taken(anchor) {
        stream.endpoint.doorbells_taken.store(taken, Relaxed);
    }
}

/// From now on the kernel has urgent bytes in their places among the doorbells, where they are taken off with them. One
/// that a newer one replaced before that it may have passed over. Anchor lock.
fn count_urgent(stream: &Stream, anchor: Fd) {
    let sending = &stream.peer().sending.0;
    if sending.urgent.load(Acquire) != 0 {
        let _ = net::set_option(anchor, libc::SOL_SOCKET, libc::SO_OOBINLINE, &1i32);
        recount_heard(stream, anchor);
    }
}

/// What became of the threads that sleep on an anchor.
pub(in crate::switch) enum Departure {
    /// All came out of the kernel, or there was no byte to wake them.
    Done,
    /// Some are still there, and who waits for them has something better to do.
    Awaited,
    /// Some never came: stopped.
    Never,
}

/// How long (ns) sleepers may take to come out of the kernel once the byte is there. One that is
/// given up too early falls asleep again without having seen what it was woken for.
pub(in crate::switch) const SLEEPERS_TIMEOUT: u64 = 2_000_000_000;
pub(in crate::switch) const SLEEPERS_TIMEOUT_AT_END: u64 = 3_000_000;
/// After so long (ns) it is asked whether they live.
const LOOK_FOR_DEAD: u64 = 1_000_000;

/// As long as the byte is there, every sleeper comes out of the kernel; waits for that.
pub(in crate::switch) fn let_sleepers_leave(
    stream: &Stream,
    anchor: Fd,
    timeout: u64,
    mut ready: impl FnMut() -> bool,
) -> Departure {
    let mut started = 0;
    let mut pause = 10_000;
    loop {
        let sleepers = &stream.endpoint.sleepers;
        if sleepers.any() && !jump::is_asleep() {
            sleepers.forget_own();
        }
        if !sleepers.any() || poll::poll_one(anchor, libc::POLLIN) == Ok(0) {
            return Departure::Done;
        }
        if ready() {
            return Departure::Awaited;
        }
        let now = time::now();
        if started == 0 {
            started = now;
        } else if now - started > timeout {
            return Departure::Never;
        } else if now - started > LOOK_FOR_DEAD {
            sleepers.forget_the_dead();
        }
        process::yield_now();
        time::sleep(pause);
        pause = (pause + pause / 8).min(1_000_000);
    }
}

/// Takes the urgent byte off the anchor where the kernel has it out of line: the segment knows of it, and left there it
/// would wake who waits for the next. (As a doorbell it still has its place.) Anchor lock.
pub(in crate::switch) fn take_off_urgent(stream: &Stream, anchor: Fd) {
    let sending = &stream.peer().sending.0;
    let word = sending.doorbells.state();
    // Over a fabric the stream may follow before it is known that the peer left.
    let is_streams = word.left || (stream.fabric.is_some() && word.recalled);
    if sending.urgent.load(Acquire) != 0 && !is_streams {
        let _ = net::recv(anchor, &mut [0], libc::MSG_OOB);
    }
}
