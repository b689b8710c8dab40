//! Connectors on other hosts are served by who waits on a listener, or accepts from it (D10).

use crate::fabric;
use crate::switch::socket::table;
use crate::switch::socket::{phase, Socket};
use crate::sys::Fd;

/// Before the program waits on, or accepts from, a listener: connectors on other hosts are served
/// from now on. Not earlier: the process that listens need not be the one that accepts.
pub fn serving(fd: Fd) {
    if !fabric::may_exist() {
        return;
    }
    if let Some(socket) = table::socket(fd).filter(|socket| socket.phase() == phase::LISTENER) {
        serve(&socket);
    }
}

/// As [`serving`], of a socket that is a listener.
pub(in crate::switch) fn serve(socket: &Socket) {
    if let Some(listener) = socket.listener() {
        listener.serve();
    }
}
