//! The end of a connection whose peer is on another host: the library keeps TCP's end back until the peer has
//! everything (D11).

use crate::switch::anchor::link;
use crate::switch::back_to_tcp::detach;
use crate::switch::endpoint::flag;
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::Stream;
use crate::sys::time;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The last descriptor of the connection is going: the peer gets what was sent, then TCP's end.
pub(in crate::switch) fn close(socket: &Socket, stream: &Stream) {
    stream.say_closed();
    if link::flush(stream) || stream.endpoint.has(flag::ANCHOR_ENDED) {
        return;
    }
    // The process that sends the rest, or will, may have no descriptor with which to keep TCP's end back.
    if !link::is_controlled_here(stream) || link::is_moving(stream) {
        return link::wait_for(stream);
    }
    link::hold_anchor(socket, stream);
}

/// A process of several closes its last descriptor of the connection.
pub(in crate::switch) fn leave_to_relatives(socket: &Socket, stream: &Stream) {
    if link::is_controlled_here(stream) && !link::flush(stream) {
        link::hold_anchor(socket, stream);
    }
}

/// The process exits with the connection open.
pub(in crate::switch) fn exiting(socket: &Socket, stream: &Stream) {
    static COMES_UNTIL: AtomicU64 = AtomicU64::new(0);
    static GONE_UNTIL: AtomicU64 = AtomicU64::new(0);
    // It lasts to the end of this function: the process that has the link carries the last word.
    let departure = (socket.phase() == phase::SAN).then(|| socket.stop_holding(stream.endpoint));
    let shared = departure.as_ref().is_some_and(|departure| departure.is_shared);
    let is_over = match socket.phase() {
        phase::SAN if shared => detach::look_after(socket, stream),
        phase::SAN => detach::finish(socket, stream),
        phase::NATIVE | phase::TCP => true,
        _ => return,
    };
    if is_over {
        link::wait_until(stream, first_and(&GONE_UNTIL, link::LINGER));
        return;
    }
    link::settle_control(stream, || first_and(&COMES_UNTIL, link::LINGER));
    if shared && link::is_controlled_here(stream) {
        return leave_control_to_relatives(stream);
    }
    if !shared {
        stream.say_closed();
    }
    if !stream.endpoint.has(flag::ANCHOR_ENDED) {
        link::wait_for(stream);
    }
}

/// The time (clock, ns) that far after the first process that asked.
fn first_and(first: &AtomicU64, then: u64) -> u64 {
    let until = time::now() + then;
    first.compare_exchange(0, until, Relaxed, Relaxed).err().unwrap_or(until)
}

/// Relatives go on with the connection: one of them takes control of its link. (D12: otherwise it ends.)
fn leave_control_to_relatives(stream: &Stream) {
    static GOES_UNTIL: AtomicU64 = AtomicU64::new(0);
    link::leave_control(stream, first_and(&GOES_UNTIL, link::LEAVING));
    link::abandon(stream);
}
