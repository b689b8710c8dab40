//! How many processes have a connection that is on TCP. A connection that several have does not go to the SAN, because
//! each of them may be in the middle of a system call on it.
//!
//! The count lies in memory that a fork shares, from the first fork on, with the ids of the first few processes. A
//! process of these that was killed no longer counts once its parent has waited for it. Where nobody can count (a
//! program without the library, a message) the count stays above one, and the connection stays on TCP.

use crate::switch::socket::holder_count::Holders;
use crate::switch::socket::{phase, Socket};
use crate::sys::process;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// The count of a socket, where there is one.
pub(in crate::switch) fn of(socket: &Socket) -> Option<&'static Holders> {
    socket.holders.get()
}

/// A process is about to be forked, or a descriptor goes to a process of which the library will not hear again. The
/// caller has the structure lock.
pub(in crate::switch) fn add_holder(socket: &Socket) {
    if !matches!(socket.phase(), phase::FRESH | phase::TCP) {
        return;
    }
    match of(socket) {
        Some(holders) => {
            holders.count.fetch_add(1, SeqCst);
        }
        None => match socket.holders.begin_with(2) {
            Some(holders) => holders.name_own(),
            None => socket.set_phase(phase::NATIVE),
        },
    }
}

/// The process that [`add_holder`] was for does not exist. Where the socket's phase has changed since, the count stays:
/// the process that has the socket may be on TCP.
pub(in crate::switch) fn remove_added(socket: &Socket) {
    if let Some(holders) =
        of(socket).filter(|_| matches!(socket.phase(), phase::FRESH | phase::TCP))
    {
        take_one(&holders.count);
    }
}

/// One less, but not none: it may have been made since.
pub(in crate::switch) fn take_one(count: &AtomicU32) {
    let _ = count.fetch_update(SeqCst, SeqCst, |count| (count > 1).then(|| count - 1));
}

/// True if processes that have it are counted: there are, or were, several.
pub(in crate::switch) fn is_counted(socket: &Socket) -> bool {
    socket.holders.is_there()
}

/// This process has it no longer.
pub(in crate::switch) fn remove_holder(socket: &Socket) {
    if !is_counted(socket) {
        return;
    }
    if let Some(holders) = socket.holders.take() {
        holders.unname(process::owner());
        holders.count.fetch_sub(1, SeqCst);
    }
}

/// Forgets holders that died; true if other processes have it, or may have.
pub(in crate::switch) fn look_for_others(socket: &Socket) -> bool {
    of(socket).is_some_and(|holders| {
        if holders.count.load(SeqCst) > 1 {
            holders.forget_the_dead();
        }
        holders.count.load(SeqCst) > 1
    })
}

/// This process is a fork child, which has it too.
pub(in crate::switch) fn name_child(socket: &Socket) {
    if let Some(holders) = of(socket) {
        holders.name_own();
    }
}

impl Holders {
    /// This process can be found dead, as far as there is room. Only where no program without the library gets the socket from it.
    pub(in crate::switch) fn name_own(&self) {
        let pid = process::owner();
        let _ = self.named.iter().any(|name| name.compare_exchange(0, pid, SeqCst, SeqCst).is_ok());
    }

    /// True if it was named.
    pub(in crate::switch) fn unname(&self, pid: u32) -> bool {
        self.named.iter().any(|name| name.compare_exchange(pid, 0, SeqCst, SeqCst).is_ok())
    }

    fn forget_the_dead(&self) {
        for name in &self.named {
            let pid = name.load(SeqCst);
            // A process for which nobody has waited counts on, and so does one whose id belongs to another process by
            // now.
            if pid != 0 && !process::exists(pid) && self.unname(pid) {
                take_one(&self.count);
            }
        }
    }
}
