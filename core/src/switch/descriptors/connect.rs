//! connect: TCP's own, and nothing else.

use crate::config::SocketRole;
use crate::provider::shm::Role;
use crate::reason::Reason;
use crate::switch::descriptors::lifecycle;
use crate::switch::endpoint::flag;
use crate::switch::outcome::Outcome;
use crate::switch::policy;
use crate::switch::setup::first_segment;
use crate::switch::socket::table;
use crate::switch::socket::{phase, Socket};
use crate::sys::net::Target;
use crate::sys::{time, Errno, Fd, Result};
use std::net::SocketAddr;

/// connect on `fd`. `real` is the kernel's, on the program's own arguments.
pub fn connect(fd: Fd, target: Target, mut real: impl FnMut() -> Result<()>) -> Outcome {
    let Some(socket) = table::socket(fd) else { return Outcome::Pass };
    match socket.phase() {
        phase::FRESH | phase::NATIVE | phase::TCP => {}
        phase::SAN if target == Target::Nothing => return disconnect(fd, socket.get(), real),
        _ => return Outcome::Pass,
    }
    match target {
        Target::Nothing => {
            let result = real();
            if result.is_ok() {
                lifecycle::begins_anew(fd);
            }
            Outcome::Done(result.map(|()| 0))
        }
        Target::Address(address) => {
            Outcome::Done(connect_over_tcp(&socket, &address, &mut real).map(|()| 0))
        }
        Target::Other => Outcome::Pass,
    }
}

/// All else comes when the connection has shown that it lives.
fn connect_over_tcp(
    socket: &Socket,
    peer: &SocketAddr,
    real: &mut impl FnMut() -> Result<()>,
) -> Result<()> {
    let began = first_segment::has_stamp().then(time::now);
    let result = real();
    let is_under_way = matches!(result, Ok(()) | Err(Errno(libc::EINPROGRESS | libc::EINTR)));
    if is_under_way && socket.phase() == phase::FRESH {
        socket.begin_on_tcp(Role::Connector);
        if policy::forbids(SocketRole::Connect, peer) {
            // However slow it is, `sanctl` says so from its first transfer on.
            socket.set_reason(Reason::Policy);
            socket.traffic.look_after(1);
        }
        first_segment::note_connecting(socket, peer, began);
    }
    result
}

/// connect to AF_UNSPEC: the peer sees a reset, and the descriptor is as good as new.
fn disconnect(fd: Fd, socket: &'static Socket, real: impl FnOnce() -> Result<()>) -> Outcome {
    let result = real();
    if result.is_ok() {
        if let Some(stream) = socket.stream() {
            // The anchor's error (ECONNRESET) is the program's to read.
            stream.endpoint.set(flag::RESET | flag::ANCHOR_ENDED);
        }
        lifecycle::begins_anew(fd);
    }
    Outcome::Done(result.map(|()| 0))
}
