//! Closes what somebody else sent where the program does not wait for it.
//!
//! The last close of a file may take as long as the sender wants: a connection with SO_LINGER waits for its peer, a
//! file of a FUSE file system for the process that serves it. A thread that ends with the last of them closes them.
//! There is no such thread unless a peer that may share memory with this process sends what no library does, or lends a
//! socket whose close may wait.

use super::process::{self, SignalsHeld};
use super::{file, hidden, net, thread, Fd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Most threads at a time.
const MOST: usize = 16;

static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// True while nothing more that may have to be closed here should be accepted.
pub(crate) fn is_overrun() -> bool {
    UNDER_WAY.load(Relaxed) >= MOST
}

/// Closes them, in this order. They keep their numbers until then: to close one of two would be to wait as well.
pub(crate) fn elsewhere(all: Vec<Fd>) {
    // The program closes none of them, as far as it calls libc.
    all.iter().for_each(|fd| hidden::note(*fd));
    UNDER_WAY.fetch_add(1, Relaxed);
    // The thread inherits the mask: no signal of the program is ever delivered to it.
    let held = SignalsHeld::new();
    let started = thread::builder().spawn(move || {
        all.into_iter().for_each(hidden::close);
        UNDER_WAY.fetch_sub(1, Relaxed);
    });
    drop(held);
    static SAID: AtomicBool = AtomicBool::new(false);
    if let Some(why) = started.err().filter(|_| !SAID.swap(true, Relaxed)) {
        log::warn!("what a peer sent stays open, since there is no thread to close it: {why}");
    }
}

/// Closes what another process lent by its number, which may be any file by then. If it is a socket whose last close waits
/// (SO_LINGER), or none, the program does not wait for that.
pub(crate) fn lent(fd: Fd) {
    let may_wait = net::lingers(fd) || !file::is_socket(fd);
    // A thread of a vfork child's would be its parent's.
    if may_wait && !process::is_borrowed() {
        elsewhere(vec![fd]);
    } else {
        file::close(fd);
    }
}

/// In a fork child, which has no such thread.
pub(crate) fn after_fork_in_child() {
    UNDER_WAY.store(0, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, IntoRawFd};

    #[test]
    fn a_lent_sockets_last_close_is_not_waited_for() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        // It reads nothing.
        let (_other, _) = listener.accept().unwrap();
        assert!(!net::lingers(one.as_raw_fd()));
        let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
        let set =
            |linger| net::set_option(one.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, linger);
        set(&at_once).unwrap();
        assert!(!net::lingers(one.as_raw_fd()), "it resets");
        set(&libc::linger { l_onoff: 1, l_linger: 86_400 }).unwrap();
        while net::send(one.as_raw_fd(), &[0; 65536], libc::MSG_DONTWAIT).is_ok() {}
        let lent_to_us = one.try_clone().unwrap().into_raw_fd();
        lent(lent_to_us);
        // The lender's own is not the last one, or the thread has closed its own.
        let last = one.into_raw_fd();
        lent(last);
    }
}
