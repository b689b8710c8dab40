//! Receives by recv in all its forms, with TCP's rules for flags, waiting and errors.

use crate::session::transfer::Call;
use crate::switch::anchor::ends;
use crate::switch::anchor::ready;
use crate::switch::anchor::refusal;
use crate::switch::anchor::returning;
use crate::switch::anchor::switchover;
use crate::switch::back_to_tcp::detach;
use crate::switch::buffers::Buffers;
use crate::switch::endpoint::flag;
use crate::switch::outcome::Outcome;
use crate::switch::setup;
use crate::switch::socket::lane::Lane;
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::batching::let_sender_ahead;
use crate::switch::stream::carrier::News;
use crate::switch::stream::counters::CountedEvent;
use crate::switch::stream::{Broken, Moved, Posted, Stream, Take};
use crate::switch::transfer::from_tcp;
use crate::switch::transfer::send_queue::{reentered, waits};
use crate::switch::transfer::suspending;
use crate::switch::transfer::told::reset_error;
use crate::switch::waiting::ring;
use crate::switch::waiting::wait::{self, Limit, Wait};
use crate::sys::{net, process, time, Errno};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;

/// How long (ns) a receive looks again for bytes that the program was told of, and that are not there at this moment.
const LOOK_TIME: u64 = 100_000_000;

/// Receives for the program. `Pass`: the socket is on plain TCP.
#[inline]
pub fn receive(socket: &Socket, mut to: Buffers, flags: i32) -> Outcome {
    if setup::advance(socket, to.remaining()) == Lane::Tcp {
        return Outcome::Pass;
    }
    let Some(stream) = socket.stream() else { return Outcome::Pass };
    let began = time::ticks();
    to.know_time(began);
    if flags & (libc::MSG_ERRQUEUE | libc::MSG_OOB) != 0 {
        // The kernel has the urgent byte, because its sender went back to TCP before it sent the byte.
        return Outcome::Pass;
    }
    let (mut got, limit) = (0, Limit::default());
    let state = stream.endpoint.state();
    if state.way_in().is_over_tcp() || state.has(flag::RECEIVE_SHUT) {
        if let Some(done) = from_tcp::receive(socket, &stream, &mut to, flags, &mut got, &limit) {
            return done;
        }
        if let Some(done) = refuse(socket, &stream, &mut to, got) {
            return done;
        }
    }
    if receive_at_once(socket, &stream, &mut to, flags, &mut got)
        && (to.remaining() == 0 || !returning::continues_over_tcp(&stream))
    {
        return Outcome::Done(Ok(got));
    }
    let outcome = receive_step_by_step(socket, &stream, to, flags, got, limit);
    if returning::is_due(&stream) {
        // This call may have taken the segment's last bytes while another thread sleeps for the bytes behind them.
        detach::look_after(socket, &stream);
    }
    outcome
}

/// Keeps this call from receiving bytes that came after both directions were shut.
#[cold]
fn refuse(socket: &Socket, stream: &Stream, to: &mut Buffers, got: usize) -> Option<Outcome> {
    ends::look_behind_shutdown(socket, stream);
    let held = stream.lock_receive().ok()?;
    let allowed = refusal::apply(socket, stream)?;
    drop(held);
    to.take_at_most(allowed as usize);
    let over = || if stream.endpoint.has(flag::RESET) { reset_error(stream, Ok(0)) } else { Ok(0) };
    (allowed == 0).then(|| Outcome::Done(if got > 0 { Ok(got) } else { over() }))
}

/// As [`receive`], with all steps that a receive may need. `got`: bytes received before.
fn receive_step_by_step(
    socket: &Socket,
    stream: &Stream,
    to: Buffers,
    flags: i32,
    got: usize,
    limit: Limit,
) -> Outcome {
    if returning::comes_again(stream) && detach::look_after(socket, stream) {
        // The kernel has all bytes that come again, also those sent behind them.
        return from_tcp::rest_from_kernel(socket, to, got, flags, &limit);
    }
    let take = match flags {
        f if f & libc::MSG_PEEK != 0 => Take::Peek,
        f if f & libc::MSG_TRUNC != 0 => Take::Discard,
        _ => Take::Consume,
    };
    let wanted = got + to.remaining();
    let call = stream.call(wanted, waits(stream, flags));
    let mut receiving = Receiving {
        socket,
        stream,
        to,
        flags,
        take,
        call,
        wanted,
        got,
        limit,
        looks_since: None,
        waited_at: None,
    };
    let_sender_ahead(stream, wanted);
    loop {
        if let ControlFlow::Break(outcome) = receiving.go_on() {
            return outcome;
        }
    }
}

/// A call that receives, and how far it has come.
struct Receiving<'a, 'b> {
    socket: &'a Socket,
    stream: &'a Stream<'a>,
    to: Buffers<'b>,
    flags: i32,
    take: Take,
    call: Call,
    wanted: usize,
    got: usize,
    limit: Limit,
    /// When the call began to look again for bytes that the program was told of.
    looks_since: Option<u64>,
    /// How many bytes the call had when it last waited.
    waited_at: Option<usize>,
}

impl<'a> Receiving<'a, '_> {
    /// Takes the bytes that are there. Waits if they are not enough and the call may wait.
    #[inline(always)]
    fn go_on(&mut self) -> ControlFlow<Outcome> {
        let (socket, stream) = (self.socket, self.stream);
        if self.waited_at.is_some()
            && receive_at_once(socket, stream, &mut self.to, self.flags, &mut self.got)
        {
            return self.done();
        }
        // The call looks for the end before it takes bytes: behind an end that it sees here, nothing comes any more.
        let ended = ends::ended(stream);
        self.take_what_is_there()?;
        let enough = self.enough();
        let waits = waits(stream, self.flags);
        if self.lacks_what_was_seen(waits, ended) {
            return ControlFlow::Continue(());
        }
        if self.got >= enough && !(waits && self.will_be_written()) {
            return self.done();
        }
        if returning::is_due(stream) {
            if detach::look_after(socket, stream) {
                return self.rest_from_kernel();
            }
            self.receive_over_tcp()?;
        }
        if ended || stream.endpoint.has(flag::RECEIVE_SHUT) {
            return self.end();
        }
        let posted = self.post(waits);
        if !waits && self.look_for_change() {
            return ControlFlow::Continue(());
        }
        let woken = if waits { self.wait(posted.as_ref()) } else { Err(Errno(libc::EAGAIN)) };
        if self.takes_back(posted) && self.got >= enough {
            return self.done();
        }
        if socket.phase() != phase::SAN {
            return self.rest_from_kernel();
        }
        match woken {
            Ok(()) => ControlFlow::Continue(()),
            Err(e) => self.fail(e),
        }
    }

    /// Ends the call with the bytes that it has got.
    fn done(&self) -> ControlFlow<Outcome> {
        ControlFlow::Break(Outcome::Done(Ok(self.got)))
    }

    /// Ends the call with the bytes that it has got, or with this error if it has none.
    fn fail(&self, e: Errno) -> ControlFlow<Outcome> {
        ControlFlow::Break(Outcome::Done(if self.got > 0 { Ok(self.got) } else { Err(e) }))
    }

    /// Receives the rest from the kernel: the connection went back to TCP.
    #[cold]
    fn rest_from_kernel(&self) -> ControlFlow<Outcome> {
        let (to, limit) = (self.to.clone(), &self.limit);
        let rest = from_tcp::rest_from_kernel(self.socket, to, self.got, self.flags, limit);
        ControlFlow::Break(rest)
    }

    /// Receives over TCP if the peer's direction is back there. This end's direction may not be back yet.
    #[cold]
    fn receive_over_tcp(&mut self) -> ControlFlow<Outcome> {
        if !self.stream.endpoint.way_in().is_over_tcp() {
            return ControlFlow::Continue(());
        }
        let Receiving { socket, stream, to, flags, got, limit, .. } = self;
        match from_tcp::receive(socket, stream, to, *flags, got, limit) {
            Some(outcome) => ControlFlow::Break(outcome),
            None => ControlFlow::Continue(()),
        }
    }

    /// Takes the bytes that are there. Ends the call if it has all that it wanted, or if taking failed.
    #[inline(always)]
    fn take_what_is_there(&mut self) -> ControlFlow<Outcome> {
        let (socket, stream, take, call) = (self.socket, self.stream, self.take, self.call);
        // This asks before the look, so that the look finds all that lies in the segment.
        let continues = returning::continues_over_tcp(stream);
        let received = match take {
            Take::Peek => receive_once(socket, stream, &mut self.to.clone(), take, call),
            _ => receive_once(socket, stream, &mut self.to, take, call),
        };
        let moved = match received {
            Ok(moved) => moved,
            Err(Failure::Busy) => {
                return ControlFlow::Break(Outcome::Done(Err(reentered(stream, self.flags))));
            }
            Err(Failure::Broken(why)) => {
                // No one knows where the bytes of this attempt lie.
                ends::fail(socket, stream, why);
                let told = if self.got > 0 { Ok(self.got) } else { reset_error(stream, Ok(0)) };
                return ControlFlow::Break(Outcome::Done(told));
            }
        };
        if moved.ring {
            ring::ring(socket);
        }
        self.got = if take == Take::Peek { moved.bytes } else { self.got + moved.bytes };
        if let Some(e) = moved.fault {
            return self.fail(e);
        }
        if continues && self.got > 0 && self.got < self.wanted {
            match take {
                Take::Peek => self.look_behind(),
                _ => self.take_behind(),
            }
            if self.got < self.wanted && self.look_for_mark() {
                return self.done();
            }
        }
        if self.got == self.wanted && (self.wanted > 0 || self.may_take_none()) {
            return self.done();
        }
        ControlFlow::Continue(())
    }

    /// True if a call that wants no byte returns: bytes or the end are there. Such a call tells a reset as any other
    /// call does.
    #[cold]
    fn may_take_none(&self) -> bool {
        let stream = self.stream;
        if !stream.endpoint.has(flag::RESET) {
            return ready::poll_readable(stream);
        }
        // The next message may have no data.
        let held = stream.lock_receive();
        held.is_ok() && stream.absorb().is_ok() && stream.peek_readable() == Some(true)
    }

    /// Looks at the bytes that the kernel has behind those in the segment.
    #[cold]
    fn look_behind(&mut self) {
        let (stream, seen) = (self.stream, self.got);
        let Ok(_held) = stream.lock_receive() else { return };
        if stream.available() != Ok(seen as u64) {
            return;
        }
        let mut to = self.to.clone();
        to.skip(seen);
        self.got += switchover::take_behind(stream, &mut to, Take::Peek);
    }

    /// Takes the bytes that the kernel has behind those that lay in the segment. The program may have looked at both
    /// together.
    #[cold]
    fn take_behind(&mut self) {
        if detach::look_after(self.socket, self.stream) {
            self.got += switchover::take_behind(self.stream, &mut self.to, self.take);
        }
    }

    /// True if an urgent byte comes next, over TCP, behind all that lies in the segment. A read ends there.
    #[cold]
    fn look_for_mark(&self) -> bool {
        let (stream, looked_at) = (self.stream, if self.take == Take::Peek { self.got } else { 0 });
        let Ok(_held) = stream.lock_receive() else { return false };
        stream.available() == Ok(looked_at as u64) && net::is_at_mark(stream.anchor)
    }

    /// Gives the number of bytes with which the call may return: at least one.
    #[inline(always)]
    fn enough(&self) -> usize {
        let enough = if self.flags & libc::MSG_WAITALL != 0 {
            self.wanted
        } else {
            (self.stream.endpoint.receive.low_water.load(Relaxed) as usize).min(self.wanted)
        };
        enough.max(1)
    }

    /// True if the call is to look again at once: MSG_PEEK or FIONREAD told the program of bytes, and the call would
    /// return without them. The bytes are there as soon as their sender sends them in messages. `over`: nothing comes.
    #[inline(always)]
    fn lacks_what_was_seen(&mut self, waits: bool, over: bool) -> bool {
        let stream = self.stream;
        if self.got == self.wanted
            || (self.got == 0 && waits)
            || self.take == Take::Peek
            || over
            || stream.endpoint.has(flag::RECEIVE_SHUT)
            || !stream.owes_seen()
            || returning::is_due(stream)
        {
            return false;
        }
        let now = time::now();
        let looks = now - *self.looks_since.get_or_insert(now) < LOOK_TIME;
        if looks {
            process::yield_now();
        } else {
            stream.forget_seen();
        }
        looks
    }

    /// True if the sender will write the rest of the announced data into the buffer once this end has posted the
    /// buffer.
    #[inline(always)]
    fn will_be_written(&self) -> bool {
        self.take == Take::Consume && self.stream.will_be_written(self.wanted - self.got)
    }

    /// Ends the call where nothing comes any more.
    fn end(&self) -> ControlFlow<Outcome> {
        ends::look_behind_shutdown(self.socket, self.stream);
        if self.got == 0 && self.stream.endpoint.has(flag::RESET) {
            return ControlFlow::Break(Outcome::Done(reset_error(self.stream, Ok(0))));
        }
        ends::show_ends(self.socket, self.stream);
        self.done()
    }

    /// Posts the call's buffer for RDMA before it waits, if the sender is to know of the buffer.
    #[inline(always)]
    fn post(&self, waits: bool) -> Option<Posted<'a>> {
        if self.take != Take::Consume || !self.stream.concerns_sender(self.to.remaining()) {
            return None;
        }
        post(self.socket, self.stream, &self.to, self.call, waits)
    }

    /// Sleeps until there may be something to receive.
    #[inline(always)]
    fn wait(&mut self, posted: Option<&Posted>) -> Result<(), Errno> {
        let (socket, stream, take, got) = (self.socket, self.stream, self.take, self.got);
        let stamp = (take == Take::Peek && got > 0).then(|| stream.arrival_stamp());
        // A wait that brought nothing is not followed by another one on the peer's announcement: the peer can write
        // there what it likes.
        let hinted = posted.is_none() && self.waited_at != Some(got);
        self.waited_at = Some(got);
        let how = Wait::new(CountedEvent::Read, got > 0, &self.limit);
        let woken = wait::wait(socket, stream, &how, || match stamp {
            Some(stamp) => stream.arrival_stamp() != stamp || ends::ended(stream),
            None if hinted => ready::poll_announced(stream),
            None => posted.is_some_and(Posted::is_over) || ready::poll_readable(stream),
        });
        woken.map(drop)
    }

    /// Asks the kernel before a call that does not wait returns without enough bytes. True if the call is to look
    /// again.
    #[inline(always)]
    fn look_for_change(&self) -> bool {
        let (socket, stream) = (self.socket, self.stream);
        wait::look_if_stale(socket, stream, time::ticks());
        if ends::ended(stream) {
            return true;
        }
        ring::recover_if_needed(socket, stream);
        false
    }

    /// Takes the posted buffer back for the program alone. True if the sender wrote something to it.
    #[inline(always)]
    fn takes_back(&mut self, posted: Option<Posted>) -> bool {
        let written = posted.map_or(0, Posted::take_back);
        if written > 0 {
            self.to.skip(written);
            self.got += written;
        }
        written > 0
    }
}

/// Receives the bytes that are there, where that is simple. Adds their number to `got`.
#[inline(always)]
fn receive_at_once(
    socket: &Socket,
    stream: &Stream,
    to: &mut Buffers,
    flags: i32,
    got: &mut usize,
) -> bool {
    const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CMSG_CLOEXEC;
    flags & !FLAGS == 0 && stream.has_data() && receive_simply(socket, stream, to, got)
}

#[inline(never)]
fn receive_simply(socket: &Socket, stream: &Stream, to: &mut Buffers, got: &mut usize) -> bool {
    let Some((bytes, ring)) = stream.receive_at_once(to) else { return false };
    if ring {
        ring::ring(socket);
    }
    *got += bytes;
    true
}

enum Failure {
    /// The calling thread is already inside a call on this socket.
    Busy,
    Broken(Broken),
}

#[inline]
fn receive_once(
    socket: &Socket,
    stream: &Stream,
    to: &mut Buffers,
    take: Take,
    call: Call,
) -> Result<Moved, Failure> {
    stream.poll();
    let held = stream.lock_receive().map_err(|_| Failure::Busy)?;
    stream.tell_actions();
    suspending::after(socket, stream, &held, &stream.endpoint.send.lock);
    if stream.endpoint.way_in().is_read_out() {
        return Ok(Moved::default());
    }
    let received = stream.receive(to, take, call).map_err(Failure::Broken);
    drop(held);
    stream.carrier().send(stream, News::Read);
    received
}

/// Posts a receive's buffer for RDMA before the receive waits, if the sender is to know of the buffer.
#[inline]
fn post<'a>(
    socket: &Socket,
    stream: &'a Stream,
    to: &Buffers,
    call: Call,
    waits: bool,
) -> Option<Posted<'a>> {
    let held = stream.lock_receive().ok()?;
    let posted =
        if stream.endpoint.way_in().is_read_out() { None } else { stream.post(to, call, waits) };
    drop(held);
    if stream.try_send_due() {
        ring::ring(socket);
    }
    posted
}

/// Serves read and readv. For zero bytes they return at once, while recv for zero bytes waits until there is something.
pub fn read(socket: &Socket, to: Buffers, flags: i32) -> Outcome {
    if to.remaining() == 0 {
        return Outcome::Done(Ok(0));
    }
    receive(socket, to, flags)
}
