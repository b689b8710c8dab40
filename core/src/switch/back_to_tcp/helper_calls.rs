//! The way back to TCP of connections over a fabric at which the program does not look. The fabric's helper does what
//! the program's next call would do.

use crate::fabric::{HelperCalls, Link};
use crate::provider::software::inherited::Descriptor;
use crate::reason::Reason;
use crate::registry;
use crate::switch::anchor::returning;
use crate::switch::back_to_tcp::detach;
use crate::switch::socket::structure::Structure;
use crate::switch::socket::table::{self, Pinned};
use crate::switch::socket::{phase, Socket};
use crate::switch::stream::Stream;
use crate::sys::{file, Result};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The functions that the helper calls.
pub(in crate::switch) const CALLS: HelperCalls =
    HelperCalls { come_to, serve_requests, reachable: registry::publish_helper };

/// Goes on with a return that the peer of this link began. True: the helper calls this once more in a moment.
fn come_to(link: &Link) -> bool {
    let is_it = |socket: &Socket| {
        let own = socket.stream().and_then(|stream| stream.link());
        own.is_some_and(|one| std::ptr::eq(one, link))
    };
    go_on_with_each(is_it, |one| one.go_on(Reason::PeerReturned, returning::may_go_on))
}

/// The requests that the helper has served. Threads of the program count for themselves
/// ([`request`](crate::switch::back_to_tcp::request)).
static SERVED: AtomicU32 = AtomicU32::new(0);

/// Serves a request of `sanctl` that the program does not come to. True: the helper calls this once more in a moment.
fn serve_requests() -> bool {
    let made = registry::requests();
    if made == SERVED.load(Relaxed) {
        return false;
    }
    let is_asked = |socket: &Socket| {
        socket.phase() == phase::SAN
            && socket.statistics().is_asked_to_detach()
            && socket.stream().is_some_and(|stream| stream.is_between_hosts())
    };
    let again =
        go_on_with_each(is_asked, |one| one.go_on(Reason::Detached, returning::may_begin_later));
    if !again {
        SERVED.store(made, Relaxed);
    }
    again
}

/// Goes on with the connections that `is_one` names. True if the helper has to try one of them again.
fn go_on_with_each(
    is_one: impl Fn(&Socket) -> bool,
    mut goes_on: impl FnMut(&Found) -> bool,
) -> bool {
    let structure = Structure::lock();
    let mut found: SmallVec<[(Pinned, Result<Descriptor>); 4]> = SmallVec::new();
    table::each_socket(&mut |fd, socket| {
        if socket.anchor() == fd && is_one(&socket) {
            // The program may close its own descriptor meanwhile.
            found.push((socket, file::duplicate_high(fd).map(Descriptor::new)));
        }
    });
    drop(structure);
    let mut again = false;
    for (socket, anchor) in found {
        let Ok(anchor) = anchor else {
            again = true;
            continue;
        };
        let one = Found { socket, anchor };
        again |= goes_on(&one);
        // No fork comes while the descriptor is closed. The pin goes after the lock: it may be the last, and then takes
        // the lock.
        let structure = Structure::lock();
        drop(one.anchor);
        drop(structure);
    }
    again
}

struct Found {
    socket: Pinned,
    anchor: Descriptor,
}

impl Found {
    /// True if the helper has to try again, because the connection is not back, but may be.
    fn go_on(&self, why: Reason, may_be: fn(&Stream) -> bool) -> bool {
        let socket = &self.socket;
        let Some(stream) = socket.stream().filter(|_| socket.phase() == phase::SAN) else {
            return false;
        };
        // Anything may have interrupted the thread that has the locks, so the helper does not wait for it.
        let is_free = !stream.is_locked();
        let is_back = is_free && detach::return_anchor(socket, &stream, self.anchor.get(), why);
        if is_back {
            detach::leave_to_kernel(socket, &stream);
        }
        !is_back && may_be(&stream)
    }
}
