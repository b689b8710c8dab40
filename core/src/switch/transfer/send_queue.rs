//! A call's turn to send: how the call waits while other threads have the connection, and what it returns where it may
//! not wait.

use crate::switch::endpoint::control::Slept;
use crate::switch::endpoint::flag;
use crate::switch::socket::Socket;
use crate::switch::stream::counters::CountedEvent;
use crate::switch::stream::{Denied, Held, Stream};
use crate::switch::waiting::wait::Limit;
use crate::sys::{handlers, Errno};

/// True if a call with these flags may wait.
#[inline]
pub(in crate::switch) fn waits(stream: &Stream, flags: i32) -> bool {
    flags & libc::MSG_DONTWAIT == 0 && !stream.endpoint.has(flag::NONBLOCK)
}

/// Gives the error of a call that a signal handler makes inside its own thread's call on the socket. Such a call must
/// not wait for itself.
pub(in crate::switch) fn reentered(stream: &Stream, flags: i32) -> Errno {
    Errno(if waits(stream, flags) { libc::EINTR } else { libc::EAGAIN })
}

/// Takes the send lock for a call of the program. If another thread holds the lock and copies, the call waits, because
/// that thread is done in a moment. If that thread waits for the peer, the call waits as for room: until a signal
/// (EINTR), until the time-out (EAGAIN), or not at all if it may not wait (EAGAIN). `partial`: the call has moved
/// bytes.
#[inline(always)]
pub(in crate::switch) fn lock<'a>(
    socket: &Socket,
    stream: &'a Stream,
    flags: i32,
    partial: bool,
    limit: &Limit,
) -> Result<Held<'a>, Errno> {
    let mut signalled = false;
    let goes_on = |slept: Slept| {
        signalled |= slept.signalled;
        if !stream.is_kept_from_sending() {
            return Ok(());
        }
        if !waits(stream, flags) {
            return Err(Errno(libc::EAGAIN));
        }
        let left = limit.left(socket, CountedEvent::Write);
        // As the kernel does, this restarts a call without a time-out if the program asks for a restart.
        let restarts = || !partial && left.is_none() && handlers::restart();
        if std::mem::take(&mut signalled) && !restarts() {
            return Err(Errno(libc::EINTR));
        }
        if left == Some(0) {
            return Err(Errno(libc::EAGAIN));
        }
        Ok(())
    };
    stream.lock_send_while(goes_on).map_err(|denied| match denied {
        Denied::Reentered => reentered(stream, flags),
        Denied::GaveUp(e) => e,
    })
}
