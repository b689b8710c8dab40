//! The second step of the way back to TCP ([`detach`](super::detach)): this end reads nothing more from the segment.
//! Sends nothing.

use crate::session::Rung;
use crate::switch::anchor::ends;
use crate::switch::anchor::link;
use crate::switch::endpoint::flag;
use crate::switch::socket::Socket;
use crate::switch::stream::counters::{self, Event};
use crate::switch::stream::Stream;

/// Ends reading from the segment if all was read, or `recalls_unread`: the rest comes again over TCP. True once it has
/// ended.
pub(super) fn read_out(socket: &Socket, stream: &Stream, recalls_unread: bool) -> bool {
    let doorbells = &stream.peer().sending.0.doorbells;
    let Ok(_held) = stream.lock_receive() else { return false };
    loop {
        // Before the look: what was sent before the peer left, or closed, is seen by it.
        let Rung { left, closed, .. } = doorbells.state();
        if !left && link::is_closed_by_peer(stream) {
            // Its end is TCP's to tell, in a moment.
            return false;
        }
        let unread = match stream.available() {
            Ok(unread) => unread,
            Err(why) => {
                ends::fail(socket, stream, why);
                return false;
            }
        };
        if unread > 0 && (left || closed || !recalls_unread) {
            return false;
        }
        if !left {
            stream.stop_reading();
            // Whatever the peer still puts there, it rings for, and learns that nobody reads it.
            let _ = counters::raise(stream, Event::Read);
            if let Some(link) = stream.fabric {
                stream.endpoint.set(flag::READ_OUT | flag::ASKS);
                link.ask_again();
                return true;
            }
            let before = doorbells.recall(closed);
            if before.left || before.closed != closed {
                continue;
            }
        }
        stream.endpoint.set(flag::READ_OUT);
        return true;
    }
}

/// True if it is certain that this end reads nothing more here, once it does not. Over a fabric the peer's link says
/// so, or that reading is to go on.
pub(super) fn is_answered(stream: &Stream) -> bool {
    let e = stream.endpoint;
    let Some(link) = stream.fabric.filter(|_| e.has(flag::ASKS)) else {
        return e.has(flag::READ_OUT);
    };
    stream.poll();
    let Ok(_held) = stream.lock_receive() else { return false };
    match link.answer().filter(|_| e.has(flag::ASKS)) {
        Some(true) => {
            e.clear(flag::ASKS);
        }
        Some(false) => {
            e.clear(flag::READ_OUT | flag::ASKS);
        }
        None if link::is_closed_by_peer(stream) => {
            e.clear(flag::READ_OUT | flag::ASKS);
        }
        None if e.has(flag::ASKS) => link.ask_again(),
        None => {}
    }
    e.flags() & (flag::READ_OUT | flag::ASKS) == flag::READ_OUT
}
