//! A send that makes quiet moments, where a stream has none of its own. The proof that both ends have one connection
//! needs them ([`one_way`](crate::session::one_way)). A few bytes go ahead of the rest, and the send waits some
//! microseconds until the receiver has done something about them. All of it takes some milliseconds, once, of a stream
//! that sends all the time.
//!
//! The send waits without a lock. The caller has a pin.

use super::apart::{self, Pace, PacedSend};
use crate::provider::shm::Role;
use crate::switch::buffers::Buffers;
use crate::switch::socket::negotiation::{Agreed, Negotiation};
use crate::switch::socket::structure::Structure;
use crate::switch::socket::{phase, Socket};
use crate::sys::{net, process, time};

/// Bytes that go ahead at a time: one small segment.
const AHEAD: usize = 256;
/// How long (ns) a send may take for it.
const MOST: u64 = 20_000_000;
/// How long (ns) it waits at a time: also for a receiver that has to get the processor.
const LONG: u64 = 5_000_000;
/// For so long (ns) the send only lets others run.
const AWAKE: u64 = 100_000;
/// Then the send sleeps so long (ns).
const NAP: u64 = 20_000;

/// Runs with what is agreed so far, if the connection is still on its way.
fn with<T>(socket: &Socket, run: impl FnOnce(Role, &mut Agreed) -> T) -> Option<T> {
    let mut structure = Structure::lock();
    let role = socket.role().filter(|_| socket.phase() == phase::TCP)?;
    match socket.guarded(&mut structure).negotiation.as_deref_mut() {
        Some(Negotiation::Agreed(agreed)) => Some(run(role, agreed)),
        _ => None,
    }
}

/// Bytes of a send that went ahead. The caller sends the rest. A send that may not wait does not wait for this either.
pub(super) fn hurry(socket: &Socket, mut from: Buffers, flags: i32) -> usize {
    if flags & !libc::MSG_NOSIGNAL != 0 {
        return 0;
    }
    let (fd, all) = (socket.anchor(), from.remaining());
    let begun = with(socket, |role, agreed| apart::begin_pace(fd, role, agreed, all)).flatten();
    let Some((mut pace, gathers)) = begun else { return 0 };
    let (began, mut in_vain) = (time::now(), false);
    loop {
        if pace == Pace::Wait {
            pace = wait(socket, time::now() + LONG);
            in_vain = pace == Pace::Wait;
            if in_vain && from.remaining() == all {
                // The receiver may have looked at everything before.
                pace = Pace::Go;
            }
        }
        let is_late = time::now() > began + MOST;
        if pace != Pace::Go || is_late || from.remaining() <= AHEAD {
            break;
        }
        match from.with_pieces(AHEAD, |piece| net::send_from(fd, piece, flags | libc::MSG_DONTWAIT))
        {
            Ok(sent) if sent > 0 => from.skip(sent),
            _ => break,
        }
        pace = Pace::Wait;
    }
    let paced = PacedSend { gathers, took: time::now() - began, in_vain };
    with(socket, |role, agreed| apart::end_pace(fd, role, agreed, paced));
    all - from.remaining()
}

/// Waits until the receiver has done something in a quiet moment.
fn wait(socket: &Socket, until: u64) -> Pace {
    let began = time::now();
    loop {
        let pace = with(socket, |role, agreed| apart::pace(socket.anchor(), role, agreed));
        let now = time::now();
        match pace.unwrap_or(Pace::Over) {
            Pace::Wait if now >= until => return Pace::Wait,
            Pace::Wait if now < began + AWAKE => process::yield_now(),
            Pace::Wait => time::sleep(NAP),
            pace => return pace,
        }
    }
}
