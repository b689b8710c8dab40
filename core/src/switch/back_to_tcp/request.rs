//! Serves requests of `sanctl` (registry). The process looks for them when the clock says that it is time, and before
//! it sleeps.

use crate::reason::Reason;
use crate::registry;
use crate::switch::anchor::returning;
use crate::switch::back_to_tcp::detach;
use crate::switch::socket::phase;
use crate::switch::socket::table;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

static HEARD: AtomicU32 = AtomicU32::new(0);

/// Serves requests made since the last look. The caller holds no lock.
#[inline]
pub(in crate::switch) fn check() {
    let made = registry::requests();
    if made != HEARD.load(Relaxed) {
        serve(made);
    }
}

#[cold]
fn serve(made: u32) {
    HEARD.store(made, Relaxed);
    let mut unserved = false;
    table::each_socket(&mut |fd, socket| {
        let statistics = socket.statistics();
        if socket.anchor() != fd || !statistics.is_asked_to_detach() {
            return;
        }
        let served = socket.phase() != phase::SAN
            || socket.stream().is_none_or(|stream| {
                detach::advance(&socket, &stream, Reason::Detached)
                    || !returning::may_begin_later(&stream)
            });
        if served {
            statistics.detach_was_heard();
        } else {
            unserved = true;
        }
    });
    // Other ends in this process follow at once.
    table::each_socket(&mut |_, socket| {
        if let Some(stream) = socket.stream().filter(|_| socket.phase() == phase::SAN) {
            detach::look_after(&socket, &stream);
        }
    });
    if unserved {
        // The next look serves the requests once more.
        HEARD.store(made.wrapping_sub(1), Relaxed);
    }
}
