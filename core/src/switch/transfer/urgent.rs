//! Urgent data (S8) goes over TCP. An end that is about to send some leaves the SAN first, and stays on TCP. So the
//! urgent byte has its place in the kernel's stream. The kernel raises SIGURG, reports POLLPRI, and gives the byte out
//! of its place.

use crate::reason::Reason;
use crate::session::WayOut;
use crate::switch::anchor::ends;
use crate::switch::anchor::returning;
use crate::switch::back_to_tcp::detach;
use crate::switch::buffers::Buffers;
use crate::switch::endpoint::flag;
use crate::switch::outcome::Outcome;
use crate::switch::setup;
use crate::switch::socket::Socket;
use crate::switch::stream::counters::CountedEvent;
use crate::switch::stream::Stream;
use crate::switch::transfer::send as sending;
use crate::switch::transfer::send_queue;
use crate::switch::waiting::wait::{self, Limit, Wait};
use crate::sys::Errno;

/// Keeps the connection on TCP, before the kernel sends urgent data there. A direction turns to the SAN by the kernel's
/// counts of bytes, and these counts end at an unread urgent byte.
#[cold]
pub(super) fn stay_on_tcp(socket: &Socket) {
    setup::stay_on_tcp(socket, Reason::TcpOnly);
}

/// Serves send with MSG_OOB. `Pass`: the kernel sends the data.
pub(in crate::switch) fn send(
    socket: &Socket,
    stream: &Stream,
    from: Buffers,
    flags: i32,
) -> Outcome {
    stay_on_tcp(socket);
    let limit = Limit::default();
    ends::look(socket, stream);
    loop {
        let is_back = detach::advance(socket, stream, Reason::TcpOnly);
        if is_back || stream.endpoint.way_out() == WayOut::Left {
            return Outcome::Pass;
        }
        if stream.endpoint.has(returning::OVER | flag::SEND_SHUT) {
            // No one receives the data: the send fails or the data is lost, as with any other data.
            return sending::send(socket, from, flags & !libc::MSG_OOB);
        }
        // TCP has no room for the bytes that go before the urgent byte.
        if !send_queue::waits(stream, flags) {
            return Outcome::Done(Err(Errno(libc::EAGAIN)));
        }
        let how = Wait::new(CountedEvent::Write, false, &limit);
        if let Err(e) = wait::wait(socket, stream, &how, || !returning::is_half_left(stream)) {
            return Outcome::Done(Err(e));
        }
    }
}
