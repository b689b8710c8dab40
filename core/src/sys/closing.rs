//! Closes what somebody else sent where the program does not wait for it.
//!
//! The last close of a file may take as long as whoever sent it wants: a connection with SO_LINGER waits for its peer, a
//! file of a FUSE file system for whoever serves that. A thread that ends with the last of them closes them. There is
//! none unless a peer that may share memory with this process sends what no library does.

use super::process::SignalsHeld;
use super::{hidden, thread, Fd};
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

/// In a fork child, which has no such thread.
pub(crate) fn after_fork_in_child() {
    UNDER_WAY.store(0, Relaxed);
}
