//! The turn of a connection's directions from TCP to the SAN, each at a byte of the stream that both ends know.
//!
//! An end that has [entered](crate::switch::setup) the SAN sends over TCP until its peer has entered too. Then it notes
//! how many bytes that were, and [turns](turn). The peer reads as many from the kernel, and after them from the
//! segment. This module does not decide whether a connection goes there. It brings none back
//! ([`detach`](crate::switch::back_to_tcp::detach)), except for an end whose peer never came.

use crate::provider::shm::AgreementState;
use crate::reason::Reason;
use crate::registry::{self, Event, Provider};
use crate::session::{self, InEvent, Inbound, Misplaced, OutEvent, Outbound, WayIn, WayOut};
use crate::switch::anchor::returning;
use crate::switch::anchor::watchers;
use crate::switch::buffers::Buffers;
use crate::switch::endpoint::flag;
use crate::switch::socket::structure::Structure;
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::carrier::News;
use crate::switch::stream::{Broken, Moved, Stream, Take};
use crate::sys::{net, poll, process, time, Errno};

/// How often a turn is tried while the receiver takes bytes off at this very moment: it does not wait there.
const ATTEMPTS: u32 = 200;
/// Between hosts: how long (ns), with naps, the peer's link may take to say whether its end has entered, where that cannot
/// be put off.
const ANSWER: u64 = 1_000_000_000;
const NAP: u64 = 50_000;

/// Sends over the SAN from now on, if it did not and the receiver is ready; true if it does. Send lock.
pub(in crate::switch) fn turn(stream: &Stream) -> bool {
    let (e, sending) = (stream.endpoint, &stream.own().sending.0);
    match e.way_out() {
        WayOut::San => return true,
        WayOut::Tcp => {}
        WayOut::Leaving | WayOut::Left => return false,
    }
    let written = || net::bytes_written(stream.anchor);
    let again = |attempts| {
        if attempts > ATTEMPTS / 2 {
            process::yield_now();
        }
        attempts < ATTEMPTS
    };
    match session::turn(&sending.direction, &sending.turned_at, written, again) {
        Outbound::Tcp => return false,
        Outbound::Turned(position) => {
            registry::note(stream.statistics, Event::SendingTurned(position));
        }
        Outbound::San => {}
    }
    e.step_out(OutEvent::Turned);
    true
}

/// [`turn`], where the caller holds no lock and waits for none.
pub(in crate::switch) fn try_turn(stream: &Stream) -> bool {
    stream.endpoint.way_out() == WayOut::San
        || stream.borrow(&stream.endpoint.send.lock).is_some_and(|_held| turn(stream))
}

/// Sends over TCP what the kernel takes at once. Send lock; the direction has not turned.
pub(in crate::switch) fn send(stream: &Stream, from: &mut Buffers) -> Moved {
    let mut moved = Moved::default();
    while from.remaining() > 0 {
        // All pieces go in one call: a peer that is gone answers the first with a reset.
        let send = |pieces: &[_]| net::send_from(stream.anchor, pieces, libc::MSG_DONTWAIT);
        match from.with_pieces(usize::MAX, send) {
            Ok(0) | Err(Errno(libc::EAGAIN)) => break,
            Ok(sent) => {
                from.skip(sent);
                moved.bytes += sent;
                stream.statistics.sent.bytes.add(sent as u64);
            }
            Err(e) => return Moved { fault: Some(e), ..moved },
        }
    }
    moved
}

/// Where the next bytes of the stream are. Receive lock.
fn inbound(stream: &Stream) -> Result<Inbound, Broken> {
    let (e, sending) = (stream.endpoint, &stream.peer().sending.0);
    if e.way_in() == WayIn::Back {
        return Ok(Inbound::Tcp);
    }
    // Once the peer left it may send urgent data, at which the kernel's count of unread bytes ends.
    let counts = || !sending.direction.state().left;
    let taken = || counts().then(|| net::bytes_taken(stream.anchor)).flatten();
    let next = e.receive.over_tcp.next(&sending.direction, &sending.turned_at, taken);
    let next = next.map_err(|Misplaced| Broken::Position)?;
    if let Inbound::San(at) = next {
        if e.step_in(InEvent::Turned).is_some() {
            registry::note(stream.statistics, Event::ReceivingTurned(at));
        }
    }
    Ok(next)
}

/// Whether a read would not wait, as the kernel says. `None`: the segment says it. For an end that [receives over
/// TCP](WayIn::is_over_tcp).
#[cold]
pub(in crate::switch) fn poll_readable(stream: &Stream) -> Option<bool> {
    // The thread that has the lock receives right now and will know better.
    let Some(held) = stream.borrow(&stream.endpoint.receive.lock) else { return Some(true) };
    if !stream.endpoint.way_in().is_over_tcp() {
        return None;
    }
    let next = inbound(stream);
    drop(held);
    match next {
        Ok(Inbound::San(_)) => None,
        // Below SO_RCVLOWAT the kernel's poll tells nothing, and what is missing may lie in the segment.
        Ok(_) => Some(
            poll::poll_one(stream.anchor, libc::POLLIN).is_ok_and(|events| events != 0)
                || net::unread(stream.anchor).is_some_and(|bytes| bytes > 0),
        ),
        Err(_) => Some(true),
    }
}

/// Bytes that the kernel has for an end that receives over TCP. Receive lock.
pub(in crate::switch) fn unread(stream: &Stream) -> u64 {
    let there = net::unread(stream.anchor).unwrap_or(0);
    match inbound(stream) {
        Ok(Inbound::Tcp) => there,
        Ok(Inbound::Before(left)) => there.min(left),
        _ => 0,
    }
}

/// Looks whether these are all the bytes that the kernel has, and will have, for such an end: those behind them lie in the
/// segment. Receive lock.
pub(in crate::switch) fn look_for_rest(stream: &Stream, bytes: u64) -> bool {
    matches!(inbound(stream), Ok(Inbound::Before(left)) if left <= bytes)
}

/// What a look at the kernel for bytes came to.
pub(in crate::switch) enum Taken {
    /// So many were taken, or looked at.
    Bytes(usize),
    /// None are there.
    Nothing,
    /// The stream ended in the kernel, or failed with this error.
    End(i32),
    /// It failed before all was there that went over TCP, and what lies in the segment does not follow.
    Cut(i32),
    /// All that went over TCP is read.
    Over,
}

/// Bytes that the kernel has for an end over a fabric that receives over TCP, of which it is certain that they are from
/// before the turn: its peer sends nothing over TCP again before this end's link has heard that it turned. Receive lock.
fn certain(stream: &Stream) -> Result<u64, i32> {
    let there = net::unread(stream.anchor).unwrap_or(0);
    if there > 0 {
        stream.carrier().receive_all();
        return Ok(there);
    }
    // Nothing, an end, what came just now, or what is behind an urgent byte.
    let is_deaf = is_deaf(stream);
    let told = net::recv(stream.anchor, &mut [0], libc::MSG_PEEK | libc::MSG_DONTWAIT);
    stream.carrier().receive_all();
    match told {
        Ok(n @ 1..) => Ok(n as u64),
        Err(Errno(libc::EAGAIN)) => Ok(0),
        Ok(0) if is_deaf => Ok(0),
        Ok(0) => Err(0),
        Err(Errno(error)) => Err(error),
    }
}

/// Takes bytes of the stream off the anchor. Receive lock.
pub(in crate::switch) fn take(
    stream: &Stream,
    to: &mut Buffers,
    take: Take,
) -> Result<Taken, Broken> {
    let direction = &stream.peer().sending.0.direction;
    if stream.endpoint.way_in() == WayIn::Back {
        return Ok(receive(stream, to, take, u64::MAX));
    }
    // Before the look at the turn.
    let certain = stream.is_between_hosts().then(|| certain(stream));
    match (inbound(stream)?, certain) {
        (Inbound::San(_), _) => Ok(Taken::Over),
        (Inbound::Before(left), _) => Ok(match receive(stream, to, take, left) {
            Taken::End(error @ (libc::EFAULT | libc::EINTR)) => Taken::End(error),
            Taken::End(error) => Taken::Cut(if error == 0 { libc::ECONNRESET } else { error }),
            taken => taken,
        }),
        (Inbound::Tcp, Some(Ok(0))) => Ok(Taken::Nothing),
        (Inbound::Tcp, Some(Ok(there))) => Ok(receive(stream, to, take, there)),
        (Inbound::Tcp, Some(Err(error))) => Ok(Taken::End(error)),
        (Inbound::Tcp, None) => {
            match direction.while_taking(|| receive(stream, to, take, u64::MAX)) {
                Some(taken) => Ok(taken),
                // It turned at this moment.
                None if direction.state().turned => Ok(Taken::Bytes(0)),
                // No other thread takes any under this lock.
                None => Err(Broken::Position),
            }
        }
    }
}

/// Takes, or looks at, what the kernel has behind bytes of the segment: how many bytes. None where an urgent byte comes next, at
/// which a read ends. An error that is behind them the kernel keeps: it would tell it once.
pub(in crate::switch) fn take_behind(stream: &Stream, to: &mut Buffers, take: Take) -> usize {
    let mut taken = 0;
    while net::unread(stream.anchor) > Some(0) && !net::is_at_mark(stream.anchor) {
        let Taken::Bytes(n @ 1..) = receive(stream, to, take, u64::MAX) else { break };
        taken += n;
        if take == Take::Peek || to.remaining() == 0 {
            break;
        }
    }
    taken
}

/// True if the kernel says that the stream ended only because this end shut its receiving direction down: more may come. To
/// be asked before the kernel is.
fn is_deaf(stream: &Stream) -> bool {
    stream.endpoint.has(flag::RECEIVE_SHUT) && !net::is_ended_by_peer(stream.anchor)
}

/// Receives at most so many bytes from the kernel. Receive lock.
fn receive(stream: &Stream, to: &mut Buffers, take: Take, most: u64) -> Taken {
    let is_deaf = is_deaf(stream);
    let most_here = usize::try_from(most).unwrap_or(usize::MAX);
    let received = match take {
        Take::Discard => net::discard(stream.anchor, to.remaining().min(most_here)),
        how => {
            let flags = if how == Take::Peek { libc::MSG_PEEK } else { 0 };
            to.with_pieces(most_here, |pieces| net::receive_into(stream.anchor, pieces, flags))
        }
    };
    // A call that wants no byte gets none where bytes are, too, and the kernel does not count bytes behind an urgent one.
    let has_none = || net::unread(stream.anchor) == Some(0) && !net::is_at_mark(stream.anchor);
    let is_end = || to.remaining() > 0 || has_none();
    match received {
        Ok(0) if is_end() && is_deaf => Taken::Nothing,
        Ok(0) if is_end() => Taken::End(0),
        Ok(n) => {
            to.skip(n);
            if take != Take::Peek {
                stream.endpoint.receive.over_tcp.took(n as u64);
                stream.statistics.received.bytes.add(n as u64);
            }
            Taken::Bytes(n)
        }
        Err(Errno(libc::EAGAIN)) => Taken::Nothing,
        Err(Errno(error)) => Taken::End(error),
    }
}

/// True if this end's direction turned to the SAN at some time.
pub(in crate::switch) fn has_turned(stream: &Stream) -> bool {
    match stream.endpoint.way_out() {
        WayOut::San => true,
        WayOut::Tcp => false,
        WayOut::Leaving | WayOut::Left => stream.own().sending.0.direction.state().turned,
    }
}

/// Takes an end that entered back to plain TCP, if its peer has not entered, and from then on cannot; true if it is
/// there now. No lock is held.
pub(in crate::switch) fn retreat(socket: &Socket, stream: &Stream) -> bool {
    // An error that was found here the kernel does not tell again.
    let state = stream.endpoint.state();
    let has_error = state.has(returning::ENDED) && !state.has(flag::ERROR_REPORTED);
    if has_turned(stream) || has_error {
        return false;
    }
    if !withdraw(stream) {
        return false;
    }
    let mut structure = Structure::lock();
    if socket.phase() == phase::SAN {
        socket.set_phase(phase::TCP);
        watchers::to_kernel(&mut structure, socket);
        socket.set_reason(Reason::Quiet);
        socket.statistics().set_provider(Provider::Tcp);
    }
    true
}

/// Goes back before both ends have entered: true if the connection stays on TCP. Between hosts this waits for the peer's
/// link to say, which does so whatever its program does.
fn withdraw(stream: &Stream) -> bool {
    let start = time::now();
    let is_heard = stream.carrier().send(stream, News::Withdraws);
    loop {
        stream.poll();
        match stream.segment.agreement().state() {
            AgreementState::Withdrawn | AgreementState::Refused => return true,
            AgreementState::Settled => return false,
            _ if is_heard => return false,
            _ if time::now() - start < ANSWER => time::sleep(NAP),
            _ => break,
        }
    }
    stream.carrier().close();
    stream.segment.agreement().state() != AgreementState::Settled
}

/// Before what cannot go half over TCP: brings both directions to the SAN, or the socket back to TCP. True: it is on
/// TCP.
pub(in crate::switch) fn complete_or_retreat(socket: &Socket, stream: &Stream) -> bool {
    if has_turned(stream) || (stream.is_between_hosts() && try_turn(stream)) {
        return false;
    }
    if retreat(socket, stream) {
        return true;
    }
    if stream.endpoint.way_out() != WayOut::Tcp {
        // It goes back, and never turns.
        return false;
    }
    // The peer has entered: it stands in the way only while it takes bytes.
    for _ in 0..ATTEMPTS {
        if try_turn(stream) {
            return false;
        }
        process::yield_now();
    }
    false
}

/// True if the peer never came, and does not come any more.
#[inline]
pub(in crate::switch) fn is_given_up(stream: &Stream) -> bool {
    stream.endpoint.way_out() == WayOut::Tcp
        && stream.segment.agreement().state() == AgreementState::Withdrawn
}
