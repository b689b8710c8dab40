//! Ends one direction of a connection, or both, as the program asks. The end of a half-close goes through the stream.
//! `anchor::ends` says what the peer's end means.

use crate::provider::shm::{FINISHED, READ_SHUT};
use crate::registry;
use crate::session::WayOut;
use crate::switch::anchor::ends;
use crate::switch::anchor::link;
use crate::switch::anchor::refusal;
use crate::switch::anchor::returning;
use crate::switch::anchor::switchover;
use crate::switch::back_to_tcp::detach;
use crate::switch::endpoint::flag;
use crate::switch::outcome::Outcome;
use crate::switch::socket::lane::Lane;
use crate::switch::socket::Socket;
use crate::switch::stream::carrier::News;
use crate::switch::stream::Stream;
use crate::switch::waiting::ring;
use crate::sys::{net, Errno};
use std::sync::atomic::Ordering::SeqCst;

/// Ends directions of a connection (shutdown). As in TCP, each shutdown wakes the threads that wait at this end.
pub fn shutdown(socket: &Socket, how: i32) -> Outcome {
    if socket.await_lane() == Lane::Tcp {
        return Outcome::Pass;
    }
    let Some(stream) = socket.stream() else { return Outcome::Pass };
    if !(libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how) {
        return Outcome::Done(Err(Errno(libc::EINVAL)));
    }
    if socket.lane() == Lane::Tcp || switchover::complete_or_retreat(socket, &stream) {
        return Outcome::Pass;
    }
    if ends::look_for_close(socket, &stream) {
        // As in TCP, also a shutdown that fails because the connection is over makes an edge.
        stream.make_edge();
        return Outcome::Done(Err(Errno(libc::ENOTCONN)));
    }
    stream.tell_actions();
    let ends_sending = how != libc::SHUT_RD && stream.endpoint.set(flag::SEND_SHUT);
    if how != libc::SHUT_WR {
        stream.endpoint.set(flag::RECEIVE_SHUT);
        stream.own().sending.0.finished.fetch_or(READ_SHUT, SeqCst);
        stream.carrier().send(&stream, News::ReadShut);
        registry::set_state(socket.statistics(), registry::State::Closing);
    }
    if stream.endpoint.has(flag::RECEIVE_SHUT) {
        // The end of a half-close goes through the stream.
        let _ = net::shutdown(socket.anchor(), libc::SHUT_RD);
        if stream.endpoint.has(flag::SEND_SHUT) {
            // The peer may answer as soon as it hears that this end sends nothing more.
            refusal::begin(&stream);
        }
    }
    if ends_sending {
        finish_sending(socket, &stream);
    }
    if stream.endpoint.has(flag::RECEIVE_SHUT) {
        let held = stream.lock_send();
        // An end that is leaving for TCP sends the end there behind the bytes that go first.
        if stream.endpoint.has(flag::SEND_SHUT) && !returning::is_leaving(&stream) {
            link::shut_anchor(socket, &stream);
        }
        drop(held);
    }
    stream.make_edge();
    Outcome::Done(Ok(0))
}

/// Tells the peer that nothing follows.
fn finish_sending(socket: &Socket, stream: &Stream) {
    let own = stream.own();
    // This takes the lock so that another thread's send that is under way comes before the end.
    let held = stream.lock_send();
    let has_left = stream.endpoint.way_out() == WayOut::Left;
    if !has_left && !returning::is_half_left(stream) {
        // Of one that is half left, the call that goes on with the return ends the direction.
        own.sending.0.finished.fetch_or(FINISHED, SeqCst);
    }
    // The signal comes before the lock is given back: a thread that takes the lock from a dead holder signals in its
    // place.
    let ring = stream.signal_read();
    drop(held);
    if ring {
        ring::ring(socket);
    }
    ring::recover_if_needed(socket, stream);
    if has_left {
        link::wait_for_word(stream);
        let _ = net::shutdown(socket.anchor(), libc::SHUT_WR);
    }
    // This may be the last call for a long time.
    detach::look_after_to_the_end(socket, stream);
    ends::show_ends(socket, stream);
}
