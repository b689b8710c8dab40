//! The last close of an end that has left for TCP and still has to send there what its peer recalled, and other calls
//! that may be its last. TCP's own close never waits: the kernel goes on sending. So a process apart goes on here. It
//! holds the segment and the TCP connection until all is in the kernel's hands (D11).

use super::detach::return_anchor;
use crate::reason::Reason;
use crate::switch::anchor::returning;
use crate::switch::endpoint::memory;
use crate::switch::socket::Socket;
use crate::switch::stream::Stream;
use crate::sys::{apart, poll, time};

/// How long (ns) the process apart bears with a peer that reads nothing: as long as the kernel does where a window
/// stays closed.
const LONGEST: u64 = 120_000_000_000;
/// How long (ns) the process apart leaves the sending to a peer that says it sends in this end's stead. Such a peer
/// tries for a fraction of this time.
const LONGEST_STAND_IN: u64 = 1_000_000_000;
/// How long (ns) the process apart waits for room at a time.
const NAP: u64 = 200_000_000;

/// Sees to it, in what may be the last call, that the bytes still to be sent go. This waits for no room.
pub(super) fn send_rest_apart(socket: &Socket, stream: &Stream) {
    if !returning::is_half_left(stream) {
        return;
    }
    let anchor = socket.anchor();
    // The other process goes on with this end's state.
    memory::note_fork();
    let started = apart::run(anchor, || {
        let started = time::now();
        let most = || match returning::is_stood_in_for(stream) {
            true => LONGEST_STAND_IN,
            false => LONGEST,
        };
        while returning::is_half_left(stream) && time::now() < started + most() {
            let events = returning::room_events(stream);
            let mut room = [libc::pollfd { fd: anchor, events, revents: 0 }];
            let _ = poll::poll(&mut room, Some(NAP), None);
            if room[0].revents & (libc::POLLERR | libc::POLLHUP) != 0 {
                return;
            }
            return_anchor(socket, stream, anchor, Reason::PeerReturned);
        }
    });
    if let Err(e) = started {
        log::warn!(
            "fd {anchor}: what the peer wants again is lost, there is no process for it: {e}"
        );
    }
}
