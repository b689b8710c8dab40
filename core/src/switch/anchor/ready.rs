//! Finds out whether a read, or a write, on a connection would wait. For that it takes in what has come: messages, and
//! what the fabric brought.

use crate::session::WayOut;
use crate::switch::anchor::ends;
use crate::switch::anchor::link;
use crate::switch::anchor::refusal;
use crate::switch::anchor::returning;
use crate::switch::anchor::switchover;
use crate::switch::endpoint::flag;
use crate::switch::stream::Stream;
use crate::sys::{net, poll};

/// Looks whether a read would not wait: data, end, or error. `None`: a message has to be taken in to know.
#[inline]
fn poll_known(stream: &Stream) -> Option<bool> {
    stream.poll();
    if stream.endpoint.way_in().is_over_tcp() {
        if let Some(on_tcp) = switchover::poll_readable(stream) {
            return Some(on_tcp || stream.endpoint.has(flag::RESET));
        }
    }
    let state = stream.endpoint.state();
    let is_read_out = state.way_in().is_read_out();
    if is_read_out || state.has(flag::RECEIVE_SHUT) || ends::ended(stream) {
        return Some(!is_read_out || ends::ended(stream));
    }
    stream.peek_readable()
}

/// As [`poll_readable`], and true also of a message that says that it has data: the read takes it in.
#[inline]
pub(in crate::switch) fn poll_announced(stream: &Stream) -> bool {
    poll_known(stream).unwrap_or_else(|| stream.next_announces_data() || poll_readable(stream))
}

/// Looks whether a read would not wait: data, end, or error.
#[inline]
pub(in crate::switch) fn poll_readable(stream: &Stream) -> bool {
    match poll_known(stream) {
        Some(readable) => readable,
        None => {
            // If not, another thread receives right now and will know better.
            let Some(held) = stream.borrow(&stream.endpoint.receive.lock) else { return true };
            let absorbed = stream.absorb();
            drop(held);
            stream.try_answer_suspension();
            absorbed.is_err() || stream.peek_readable() != Some(false)
        }
    }
}

/// Looks whether a write would not wait: space, or error.
#[inline]
pub(in crate::switch) fn poll_writable(stream: &Stream) -> bool {
    const FAILS: u32 = flag::RESET | flag::SEND_SHUT | flag::BROKEN_PIPE;
    let state = stream.endpoint.state();
    match state.way_out() {
        // The kernel knows: see `readiness::of_socket`.
        WayOut::Left => false,
        _ if state.has(FAILS) => true,
        // There is no room for what goes first.
        WayOut::Leaving => false,
        WayOut::Tcp => poll::poll_one(stream.anchor, libc::POLLOUT).is_ok_and(|events| events != 0),
        WayOut::San => {
            stream.has_space()
                || link::poll_for_space(stream)
                // A peer that shut both directions down before it closed is heard once, at the first send.
                || ends::answers_with_reset(stream)
        }
    }
}

/// Bytes to read (FIONREAD).
pub(in crate::switch) fn available(stream: &Stream) -> u64 {
    let count = |stream: &Stream| stream.available();
    match stream.lock_receive() {
        Ok(_held) if stream.endpoint.way_in().is_over_tcp() => {
            let before = switchover::unread(stream);
            match stream.endpoint.way_in().is_over_tcp() {
                true if !switchover::look_for_rest(stream, before) => before,
                true => before + count(stream).unwrap_or(0),
                false => count(stream).unwrap_or(0),
            }
        }
        Ok(_held) => {
            let continues = returning::continues_over_tcp(stream);
            let allowed = refusal::allowed(stream).unwrap_or(u64::MAX);
            let bytes = count(stream).unwrap_or(0).min(allowed);
            stream.note_seen(bytes);
            match continues {
                true if !net::is_at_mark(stream.anchor) => {
                    bytes + net::unread(stream.anchor).unwrap_or(0)
                }
                _ => bytes,
            }
        }
        Err(_) => 0,
    }
}
