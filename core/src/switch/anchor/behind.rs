//! The end of a peer that TCP cannot tell of. It waits at the peer's kernel behind bytes that went over TCP before the
//! turn. There is no room for those bytes as long as this end leaves what lies here unread.
//!
//! If the peer had read everything, TCP would tell no sooner. If it had not, TCP would reset the connection past all
//! bytes. But what the peer had not read lies in the segment, of which its kernel knows nothing. So this end asks now
//! and then whether any process has the peer's socket, or between hosts it asks its link.

use super::link;
use super::returning;
use crate::registry;
use crate::switch::endpoint::flag;
use crate::switch::socket::Socket;
use crate::switch::stream::Stream;
use crate::sys::{net, poll, sock_diag, Fd};
use std::sync::atomic::Ordering::Relaxed;

/// How often (ns) a thread that waits asks.
const NAP: u64 = 20_000_000;

/// True if the peer's end may be behind what is unread here.
pub(in crate::switch) fn may_be(stream: &Stream) -> bool {
    let state = stream.endpoint.state();
    state.way_in().is_over_tcp()
        && !state.has(flag::ANCHOR_ENDED | flag::RESET)
        && net::unread(stream.anchor).is_some_and(|bytes| bytes > 0)
}

/// Longest sleep on the connection, if that is so.
#[inline]
pub(in crate::switch) fn longest_nap(stream: &Stream) -> Option<u64> {
    may_be(stream).then_some(NAP)
}

/// Does what TCP's reset would have done, if the peer is gone and had not read everything. The unread bytes stay to be
/// read.
pub(super) fn look(socket: &Socket, stream: &Stream) {
    let is_gone = || match stream.is_between_hosts() {
        true => {
            // On the way back to TCP the link may end before the connection.
            let has_ended = link::look_for_failure(stream) || link::is_closed_by_peer(stream);
            has_ended && !returning::is_due(stream)
        }
        false => is_nobodys(stream.anchor),
    };
    if may_be(stream) && !stream.peer_consumed_all() && is_gone() {
        stream.endpoint.error.store(libc::ECONNRESET as u32, Relaxed);
        stream.endpoint.set(flag::RESET);
        registry::set_state(socket.statistics(), registry::State::Failed);
    }
}

/// True if the kernel shows the end of the peer's stream, and no process has the peer's socket.
pub(in crate::switch) fn is_gone(anchor: Fd) -> bool {
    const END: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    poll::poll_one(anchor, libc::POLLRDHUP).is_ok_and(|events| events & END != 0)
        && is_nobodys(anchor)
}

/// True if no process has the other end of this connection any more. Not inlined: the kernel's answer takes a kibibyte of
/// stack.
#[inline(never)]
fn is_nobodys(anchor: Fd) -> bool {
    let (Ok(local), Ok(peer)) = (net::local_address(anchor), net::peer_address(anchor)) else {
        return false;
    };
    let owner = sock_diag::lookup(anchor, net::unmapped(peer), net::unmapped(local));
    matches!(owner, Ok(Some(owner)) if owner.is_connected() && owner.inode == 0)
}
