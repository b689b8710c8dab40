//! What `sanctl` does for a process that does not hear what it is asked, because it sleeps or is elsewhere: the first
//! step of the way back to TCP ([`detach`]), as a fork relative of that process would take it, with that
//! process's own descriptors. The rest is the process's: the doorbell of the peer, which follows, wakes it for that. Between hosts
//! the process's helper does it, which is called here.
//!
//! Only for processes of the caller's user: the memory of an end is believed.

use crate::fabric;
use crate::provider::shm::{Segment, State};
use crate::reason::Reason;
use crate::registry::{self, OnSan, Requests};
use crate::switch::back_to_tcp::detach;
use crate::switch::endpoint::flag;
use crate::switch::endpoint::memory::{self, Memory};
use crate::switch::stream::Stream;
use crate::sys::{file, process, time, Errno, Fd, Result};

/// Has the helper of that process, if there is one, do the same with what the process is asked for between hosts.
///
/// # Errors
/// ECONNREFUSED where it cannot be reached: it is gone, or in another network namespace.
pub fn call_helper(requests: &Requests) -> Result<()> {
    requests.helper().map_or(Ok(()), fabric::call)
}

/// Has one end of a connection leave the SAN in its process's stead; false if that is not to be done, or not now: the
/// connection has no descriptors to spare, it was not accepted yet, it stays on the SAN, or a transfer is under way.
///
/// # Errors
/// EPERM where the kernel does not lend descriptors (`kernel.yama.ptrace_scope`, another user), ENOSYS where it cannot
/// (before Linux 5.6), ESRCH or EBADF if process or descriptor is gone.
pub fn leave(requests: &Requests, connection: &OnSan) -> Result<bool> {
    let Some([memory, segment]) = connection.within_reach else { return Ok(false) };
    let lent =
        [connection.fd, memory, segment].map(|fd| process::descriptor_of(requests.pid(), fd));
    let left = match lent {
        [Ok(anchor), Ok(memory), Ok(segment)] => {
            let is_there = || requests.again(connection).as_ref() == Some(connection);
            leave_over(anchor, [memory, segment], is_there)
        }
        [anchor, memory, segment] => anchor.and(memory).and(segment).map(|_| false),
    };
    lent.into_iter().flatten().for_each(file::close);
    left
}

/// `anchor` and `given` are those of a connection if it `is_there`.
fn leave_over(anchor: Fd, given: [Fd; 2], is_there: impl Fn() -> bool) -> Result<bool> {
    if !memory::is_made_by_us(given[0]) {
        return Err(Errno(libc::EPERM));
    }
    let (Ok(segment), Some(memory)) =
        (Segment::attach(given[1]), Memory::of_other_image(given[0], -1))
    else {
        return Ok(false);
    };
    process::note_owner();
    // SAFETY: mapped until it is released below.
    let endpoint = unsafe { &*memory.at };
    let stream = Stream::new(endpoint, &segment, registry::spare(), None);
    // Before the last look: from then on its process uses that memory for no other connection.
    Memory::share(endpoint);
    let left = is_there()
        && segment.state() == State::Settled
        && !endpoint.has(flag::SENDS_TCP)
        && is_free(&stream)
        && detach::leave(&stream, anchor, Reason::Detached);
    // Not discarded: it may have been used again before the look.
    // SAFETY: nothing of it is used any more; the descriptors are the caller's.
    unsafe {
        Memory { fd: -1, ..memory }.release();
        segment.unmap();
    }
    Ok(left)
}

/// How long (ns) what a thread of that process is about to do is waited for, and between two looks.
const TURN: u64 = 20_000_000;
const NAP: u64 = 1_000_000;

/// Waits until nobody is in the middle of sending there; false if that does not end: it may be stopped.
fn is_free(stream: &Stream) -> bool {
    let until = time::now() + TURN;
    while stream.endpoint.send.lock.is_held() || stream.endpoint.doorbell_lock.holder() != 0 {
        if time::now() > until {
            return false;
        }
        time::sleep(NAP);
    }
    true
}
