//! What poll and epoll say of a SAN socket.

use crate::session::WayOut;
use crate::switch::anchor::ends;
use crate::switch::anchor::ready;
use crate::switch::endpoint::flag;
use crate::switch::event_bits as bit;
use crate::switch::socket::Socket;
use crate::switch::stream::Stream;
use crate::sys::poll;
use std::sync::atomic::Ordering::Relaxed;

/// Gives what [`of`] gives for the socket, after a look at its anchor if the peer hinted that it closed.
#[inline]
pub(in crate::switch) fn of_socket(socket: &Socket, interest: u32) -> u32 {
    let Some(stream) = socket.stream() else { return 0 };
    if interest & bit::ANY_OUT == 0 && stream.has_plainly_data() {
        return interest & (bit::IN | bit::RDNORM);
    }
    if interest & bit::ANY_IN == 0 || stream.endpoint.has(flag::RECEIVE_SHUT) {
        // No look for data follows, which would take in what the fabric brought.
        stream.poll();
    }
    ends::look_here(socket, &stream);
    if ends::hinted_end(&stream) || ends::may_be_reset_by_tcp(&stream) {
        ends::look(socket, &stream);
    }
    let mut ready = of(&stream, interest);
    if ready & (bit::HUP | bit::ERR) == bit::HUP {
        ends::look_behind_shutdown(socket, &stream);
        ready = of(&stream, interest);
    }
    if stream.endpoint.way_out() == WayOut::Left {
        // The kernel's report of its connection holds, although bytes may still lie here unread.
        let told = poll::poll_one(socket.anchor(), libc::POLLOUT | libc::POLLRDHUP);
        let told = u32::from(told.unwrap_or(0) as u16);
        ready |= told & (interest & bit::RDHUP | bit::ALWAYS);
        ready |= if told & bit::OUT != 0 { interest & bit::ANY_OUT } else { 0 };
    }
    ready
}

/// Gives the events that are ready at this moment, of `interest` and of those that are always reported.
#[inline]
pub(in crate::switch) fn of(stream: &Stream, interest: u32) -> u32 {
    let e = stream.endpoint;
    let mut mask = 0;
    // This asks for the end before it looks for data, so that an end never hides data that came before it.
    let ended = ends::ended(stream) || e.has(flag::RECEIVE_SHUT);
    if ended {
        mask |= bit::RDHUP;
        // A read that goes to the kernel learns of the end there. The peer's word alone would report what no read finds.
        if e.has(flag::RECEIVE_SHUT) || !e.way_in().is_over_tcp() {
            mask |= bit::IN | bit::RDNORM;
        }
        if e.has(flag::SEND_SHUT) {
            mask |= bit::HUP;
        }
        if e.has(flag::RESET | flag::BROKEN_PIPE) {
            mask |= bit::HUP;
            if !e.has(flag::ERROR_REPORTED) {
                mask |= bit::ERR;
            }
        }
    }
    if interest & bit::ANY_IN != 0 && mask & bit::IN == 0 && enough_to_read(stream, ended) {
        mask |= bit::IN | bit::RDNORM;
    }
    if interest & bit::ANY_OUT != 0
        && ready::poll_writable(stream)
        && !stream.is_kept_from_sending()
    {
        mask |= bit::OUT | bit::WRNORM;
    }
    mask & (interest | bit::ALWAYS)
}

/// True if a read would not wait. `ended`: no more comes that SO_RCVLOWAT could wait for.
#[inline]
fn enough_to_read(stream: &Stream, ended: bool) -> bool {
    if !ready::poll_readable(stream) {
        return false;
    }
    if ended {
        return true;
    }
    let low_water = u64::from(stream.endpoint.receive.low_water.load(Relaxed));
    // A sender without space can not send what is missing.
    low_water <= 1
        || ready::available(stream) >= low_water
        || stream.peer().sending.0.stalled.load(Relaxed) != 0
}

/// Brings a socket's view of its anchor up to date with what the kernel reported.
pub(in crate::switch) fn note_kernel_events(socket: &Socket, events: u32) {
    if events & (bit::RDHUP | bit::HUP | bit::ERR) != 0 {
        if let Some(stream) = socket.stream() {
            ends::look(socket, &stream);
        }
    }
}
