//! A set that others watch from outside: other threads asleep on the set, an outer set, poll or select on the set's own
//! descriptor. The library brings the kernel's view of the set up to date before the watchers look, and before this
//! thread stops looking.

use super::hot::{self, ArmedSet};
use super::kernel_events::note_rings;
use crate::fabric;
use crate::switch::anchor::link;
use crate::switch::socket::set::Set;
use crate::switch::socket::structure::Structure;
use crate::switch::stream::Stream;
use std::sync::atomic::Ordering;

/// Brings the kernel's view up to date before a call returns to the program. Other waiters on this set must hear of
/// what this thread will not look at until it comes back.
#[inline]
pub(super) fn before_return(set: &'static Set) {
    if set.has_other_waiters() {
        settle(set);
    }
}

/// Has the kernel show the truth of the set: raises all counters, and nudges the set if something is due.
fn settle(set: &'static Set) {
    if set.is_watched.load(Ordering::Relaxed) && fabric::may_exist() {
        catch_up(set);
    }
    note_rings(set);
    if matches!(hot::arm(set), ArmedSet::Due) || set.look_for_held_up() {
        set.wake();
    } else {
        set.withdraw_nudge();
    }
}

/// Takes what a fabric brought, and waits for a thread that is about to do so. That thread rings afterwards, and might
/// ring for bytes that were read meanwhile.
fn catch_up(set: &Set) {
    let takes = |stream: Stream| stream.is_between_hosts() && link::is_controlled_here(&stream);
    for socket in hot::pin_hot(set, |r| r.socket.stream().is_some_and(takes)) {
        if let Some(stream) = socket.stream() {
            stream.carrier().receive_all();
        }
    }
}

impl Set {
    /// Notes a set that became, or is no longer, a member of this one.
    pub(super) fn note_member(&self, operation: i32, member: &'static Set) {
        let structure = Structure::lock();
        self.with(|inner| {
            inner.members.retain(|m| !std::ptr::eq(*m, member));
            if operation != libc::EPOLL_CTL_DEL {
                inner.members.push(member);
            }
            self.has_members.store(!inner.members.is_empty(), Ordering::Relaxed);
        });
        // The member may wait for other threads, or take the structure lock itself.
        drop(structure);
        if operation != libc::EPOLL_CTL_DEL {
            member.note_watched();
        }
    }

    /// Has the sets in this one show the kernel what their sockets have.
    #[inline]
    pub(super) fn settle_members(&self) {
        if self.has_members.load(Ordering::Relaxed) {
            self.settle_each_member();
        }
    }

    #[cold]
    fn settle_each_member(&self) {
        let members: Vec<_> = self.with(|inner| inner.members.clone()).unwrap_or_default();
        for member in members {
            member.note_watched();
        }
    }

    /// Notes that the set's own descriptor is being watched (an outer set, poll, select).
    pub fn note_watched(&'static self) {
        self.is_watched.store(true, Ordering::SeqCst);
        self.settle_members();
        if self.san.load(Ordering::Relaxed) != 0 {
            settle(self);
        }
    }
}
