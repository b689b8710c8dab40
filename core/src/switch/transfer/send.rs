//! Sends by send in all its forms, with TCP's rules for flags, waiting and errors.

use crate::provider::shm::Span;
use crate::session::WayOut;
use crate::switch::anchor::broken;
use crate::switch::anchor::ends;
use crate::switch::anchor::link;
use crate::switch::anchor::ready;
use crate::switch::anchor::returning;
use crate::switch::anchor::switchover;
use crate::switch::anchor::user_timeout;
use crate::switch::back_to_tcp::detach;
use crate::switch::buffers::Buffers;
use crate::switch::endpoint::flag;
use crate::switch::outcome::Outcome;
use crate::switch::setup;
use crate::switch::socket::lane::Lane;
use crate::switch::socket::Socket;
use crate::switch::stream::counters::CountedEvent;
use crate::switch::stream::{Broken, Moved, Stream};
use crate::switch::transfer::rdma;
use crate::switch::transfer::send_queue::{self, waits};
use crate::switch::transfer::suspending;
use crate::switch::transfer::told::unable;
use crate::switch::transfer::urgent;
use crate::switch::waiting::ring;
use crate::switch::waiting::wait::{self, Limit, Wait};
use crate::sys::{net, process, time, Errno};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;

/// Sends for the program. `Pass`: the socket is on plain TCP.
#[inline]
pub fn send(socket: &Socket, mut from: Buffers, flags: i32) -> Outcome {
    if setup::advance(socket, from.remaining()) == Lane::Tcp {
        if flags & libc::MSG_OOB != 0 {
            urgent::stay_on_tcp(socket);
        }
        return Outcome::Pass;
    }
    let Some(stream) = socket.stream() else { return Outcome::Pass };
    if flags & libc::MSG_OOB != 0 && from.remaining() > 0 {
        return urgent::send(socket, &stream, from, flags);
    }
    let (wanted, began) = (from.remaining(), time::ticks());
    from.know_time(began);
    wait::look_if_stale(socket, &stream, began);
    if socket.lane() == Lane::San {
        if let Some(ring) = stream.send_at_once(&from) {
            if ring {
                ring::ring(socket);
            }
            return Outcome::Done(Ok(wanted));
        }
    }
    send_in_steps(socket, &stream, from, flags, began)
}

/// Serves writev. For zero bytes it returns at once, while send for zero bytes tells an error of the connection.
pub fn write_vector(socket: &Socket, from: Buffers, flags: i32) -> Outcome {
    if from.remaining() == 0 {
        return Outcome::Done(Ok(0));
    }
    send(socket, from, flags)
}

/// As [`send`], with all steps that a send may need. `began`: when the call began, in ticks.
#[inline(never)]
fn send_in_steps(
    socket: &Socket,
    stream: &Stream,
    mut from: Buffers,
    flags: i32,
    began: u64,
) -> Outcome {
    let (wanted, limit) = (from.remaining(), Limit::default());
    let sent = transmit(
        socket,
        stream,
        flags,
        &limit,
        |stream| {
            let stream = &stream.over(socket.anchor());
            if !switchover::turn(stream) {
                return Ok((switchover::send(stream, &mut from), from.remaining() == 0));
            }
            if ends::loses(stream) {
                let moved =
                    stream.lose(from.remaining(), |to| from.copy_out(to).map(|()| to.length()))?;
                return Ok((moved, from.remaining() == 0));
            }
            if from.remaining() == wanted && waits(stream, flags) {
                link::look_for_room(stream, wanted);
            }
            // The rest of a large send goes here too: its waits are a part of what the send costs.
            let moved = if wanted < stream.endpoint.threshold() as usize {
                stream.send(&mut from)
            } else {
                let limit = waits(stream, flags).then_some(&limit);
                rdma::send(socket, stream, &mut from, limit, began)
            };
            moved.map(|moved| (moved, from.remaining() == 0))
        },
        wanted == 0,
    );
    match sent {
        // A blocking send ends early only for an error, or when the socket went back to TCP.
        Outcome::Done(Ok(n)) if n < wanted && goes_over_tcp(socket, stream) => {
            rest_to_kernel(socket, &from, n, flags)
        }
        other => other,
    }
}

/// Goes on with a send that has sent `sent` bytes, on a socket that returned to TCP.
#[cold]
fn rest_to_kernel(socket: &Socket, from: &Buffers, sent: usize, flags: i32) -> Outcome {
    let rest =
        from.with_pieces(usize::MAX, |pieces| net::send_from(socket.anchor(), pieces, flags));
    Outcome::Done(Ok(sent + rest.unwrap_or(0)))
}

/// Sends bytes that `fill` provides, up to `length`, straight into the send buffer (sendfile, splice). `fill` gets the
/// place for the bytes. It ends the transfer when it provides fewer than the place holds.
pub(super) fn send_from(
    socket: &Socket,
    length: usize,
    flags: i32,
    mut fill: impl FnMut(Span) -> Result<usize, Errno>,
) -> Outcome {
    if setup::advance(socket, length) == Lane::Tcp {
        return Outcome::Pass;
    }
    let Some(stream) = socket.stream() else { return Outcome::Pass };
    if switchover::complete_or_retreat(socket, &stream) {
        return Outcome::Pass;
    }
    wait::look_if_stale(socket, &stream, time::ticks());
    let mut left = length;
    let mut dry = false;
    transmit(
        socket,
        &stream,
        flags,
        &Limit::default(),
        |stream| {
            if !switchover::turn(stream) {
                // The receiver is not ready for the turn at this moment.
                return Ok((Moved::default(), false));
            }
            let fill = |to: Span| {
                let filled = fill(to)?;
                dry |= filled < to.length();
                Ok(filled)
            };
            let moved = match ends::loses(stream) {
                true => stream.lose(left, fill),
                false => stream.buffer(left, fill),
            }?;
            left -= moved.bytes;
            Ok((moved, left == 0 || dry))
        },
        length == 0,
    )
}

/// Moves bytes with `step` until `step` says that it is done. Waits for space as the flags and the socket demand.
/// `step` runs under the send lock. It returns what it moved, with an error of its source, and whether it is done. The
/// caller has looked at the anchor if that was due.
#[inline(always)]
fn transmit(
    socket: &Socket,
    stream: &Stream,
    flags: i32,
    limit: &Limit,
    mut step: impl FnMut(&Stream) -> Result<(Moved, bool), Broken>,
    empty: bool,
) -> Outcome {
    let mut sending = Sending { socket, stream, flags, limit, sent: 0 };
    loop {
        if let ControlFlow::Break(outcome) = sending.go_on(&mut step, empty) {
            return outcome;
        }
    }
}

/// A call that sends, and how much it has sent.
struct Sending<'a> {
    socket: &'a Socket,
    stream: &'a Stream<'a>,
    flags: i32,
    limit: &'a Limit,
    sent: usize,
}

impl Sending<'_> {
    /// Sends the bytes that go now. Waits if they are not all and the call may wait.
    #[inline(always)]
    fn go_on(
        &mut self,
        step: &mut impl FnMut(&Stream) -> Result<(Moved, bool), Broken>,
        empty: bool,
    ) -> ControlFlow<Outcome> {
        let (socket, stream) = (self.socket, self.stream);
        self.look_at_way();
        let waits = waits(stream, self.flags);
        let held = match send_queue::lock(socket, stream, self.flags, self.sent > 0, self.limit) {
            Ok(held) => held,
            Err(e) => return self.end(e),
        };
        suspending::after(socket, stream, &held, &stream.endpoint.receive.lock);
        if returning::is_half_left(stream) {
            drop(held);
            return self.wait_for_what_goes_first(waits);
        }
        self.check()?;
        if empty {
            return ControlFlow::Break(Outcome::Done(Ok(0)));
        }
        stream.tell_actions();
        let stepped = step(stream);
        drop(held);
        let (moved, done) = match stepped {
            Ok(stepped) => stepped,
            Err(why) => {
                ends::fail(socket, stream, why);
                return ControlFlow::Continue(());
            }
        };
        self.sent += moved.bytes;
        user_timeout::after_send(socket, stream);
        self.tell_peer(moved);
        if done || (self.sent > 0 && is_broken(stream)) {
            return ControlFlow::Break(Outcome::Done(Ok(self.sent)));
        }
        match moved.fault {
            Some(e) => self.fail(e),
            None if waits => match wait_for_room(socket, stream, self.sent > 0, self.limit) {
                Ok(()) => ControlFlow::Continue(()),
                Err(e) => self.end(e),
            },
            None => self.do_without_room(),
        }
    }

    /// Goes on with a return to TCP that has begun. Goes back to TCP if this end has not turned to the SAN and never
    /// will.
    #[inline(always)]
    fn look_at_way(&self) {
        if returning::is_due(self.stream) {
            detach::look_after(self.socket, self.stream);
        }
        if switchover::is_given_up(self.stream) {
            switchover::retreat(self.socket, self.stream);
        }
    }

    /// Waits, after this end left for TCP, until the bytes that go there first have gone.
    #[cold]
    fn wait_for_what_goes_first(&self, waits: bool) -> ControlFlow<Outcome> {
        let (socket, stream) = (self.socket, self.stream);
        if detach::look_after(socket, stream) {
            // The socket is on TCP. A hostile peer may have made it go there without the bytes that go first.
            return self.over_tcp();
        }
        if !returning::is_half_left(stream) {
            return ControlFlow::Continue(());
        }
        // TCP has no room for the bytes that go first.
        let waited = match unable(stream) {
            Some(e) => Err(e),
            None if !waits => Err(Errno(libc::EAGAIN)),
            None => {
                let how = Wait::new(CountedEvent::Write, self.sent > 0, self.limit);
                wait::wait(socket, stream, &how, || !returning::is_half_left(stream)).map(drop)
            }
        };
        match waited {
            Ok(()) => ControlFlow::Continue(()),
            Err(e) => self.end(e),
        }
    }

    /// Ends the call if its bytes go over TCP, or if nothing can be sent any more. The caller has the send lock.
    #[inline(always)]
    fn check(&self) -> ControlFlow<Outcome> {
        let (stream, sent) = (self.stream, self.sent);
        if goes_over_tcp(self.socket, stream) {
            if let Some(e) = (sent == 0).then(|| self.reset_behind_end()).flatten() {
                return self.end(e);
            }
            // The kernel may find no room, and then an EPOLLOUT edge becomes due.
            stream.endpoint.send.stalls.fetch_add(1, Relaxed);
            return self.over_tcp();
        }
        if stream.endpoint.has(flag::SEND_SHUT) {
            // The call tells a reset that came since before it tells of this end's own shutdown. The kernel alone may
            // know of that reset.
            ends::look(self.socket, stream);
        } else {
            ends::look_here(self.socket, stream);
        }
        if sent > 0 && is_broken(stream) {
            // This call tells how much it sent, and the next call tells the error. Nothing goes behind the end.
            return ControlFlow::Break(Outcome::Done(Ok(sent)));
        }
        match if sent == 0 { unable(stream) } else { None } {
            Some(e) => self.end(e),
            None => ControlFlow::Continue(()),
        }
    }

    /// Gives the error of a reset behind the end of the peer's stream, where that end went through the segment. The kernel
    /// does not know of such an end, and would tell ECONNRESET.
    #[cold]
    fn reset_behind_end(&self) -> Option<Errno> {
        let (socket, stream) = (self.socket, self.stream);
        if socket.lane() == Lane::Tcp || !ends::has_finished(stream) {
            return None;
        }
        ends::look(socket, stream);
        unable(stream)
    }

    /// Ends the call so that the rest goes over TCP.
    fn over_tcp(&self) -> ControlFlow<Outcome> {
        ControlFlow::Break(match self.sent {
            0 => Outcome::Pass,
            sent => Outcome::Done(Ok(sent)),
        })
    }

    /// Rings the bell if a thread of the peer may sleep there. Breaks the pipe after a send to a peer that receives
    /// nothing more.
    #[inline(always)]
    fn tell_peer(&self, moved: Moved) {
        let is_answered = ends::answers_with_reset(self.stream);
        if moved.ring {
            ring::ring(self.socket);
        }
        if is_answered && (moved.bytes > 0 || moved.fault.is_none()) {
            broken::break_pipe(self.stream);
            ends::reset_anchor(self.socket, self.stream);
        }
    }

    /// Ends the call where its bytes could not be sent. If the kernel still carries the direction, it has told the
    /// error, and tells it only once. So this end notes the error.
    #[cold]
    fn fail(&self, e: Errno) -> ControlFlow<Outcome> {
        let (socket, stream) = (self.socket, self.stream);
        let state = stream.endpoint.state();
        let is_kernels = state.way_out() == WayOut::Tcp && !state.has(flag::SEND_SHUT);
        if is_kernels && !ends::is_local(e.0) {
            ends::note_error(socket, stream, e.0);
            if self.sent == 0 {
                stream.endpoint.set(flag::ERROR_REPORTED);
            }
        }
        self.end(e)
    }

    /// Ends the call where there is no room and the call does not wait for room.
    #[inline]
    fn do_without_room(&self) -> ControlFlow<Outcome> {
        let (socket, stream) = (self.socket, self.stream);
        ring::recover_if_needed(socket, stream);
        self.end(Errno(libc::EAGAIN))
    }

    /// Ends the call with the number of bytes that it has sent, or with this error if it has sent none.
    fn end(&self, e: Errno) -> ControlFlow<Outcome> {
        if e == Errno(libc::EAGAIN) {
            self.stream.endpoint.send.stalls.fetch_add(1, Relaxed);
        }
        if self.sent > 0 {
            return ControlFlow::Break(Outcome::Done(Ok(self.sent)));
        }
        if e == Errno(libc::EPIPE) && self.flags & libc::MSG_NOSIGNAL == 0 {
            process::raise_sigpipe();
        }
        ControlFlow::Break(Outcome::Done(Err(e)))
    }
}

/// Waits until there is room to send. `partial`: the call has sent bytes.
#[inline]
pub(super) fn wait_for_room(
    socket: &Socket,
    stream: &Stream,
    partial: bool,
    limit: &Limit,
) -> Result<(), Errno> {
    let how = Wait::new(CountedEvent::Write, partial, limit);
    let ready = || {
        stream.look_for_request();
        ready::poll_writable(stream)
    };
    wait::wait(socket, stream, &how, ready).map(drop)
}

/// True if the kernel takes what this end sends from now on.
#[inline(always)]
fn goes_over_tcp(socket: &Socket, stream: &Stream) -> bool {
    stream.endpoint.way_out() == WayOut::Left || socket.lane() == Lane::Tcp
}

fn is_broken(stream: &Stream) -> bool {
    stream.endpoint.has(flag::RESET | flag::BROKEN_PIPE | flag::SEND_SHUT)
}
