//! Epoll sets in epoll sets, and others that wait for a set's own descriptor: what the kernel shows of a set is brought up to
//! date before they look.

use super::wait;
use crate::switch::socket::set::Set;
use crate::switch::socket::structure::Structure;
use std::sync::atomic::Ordering;

impl Set {
    /// Notes a set that became, or is no longer, a member of this one.
    pub(super) fn note_member(&self, operation: i32, member: &'static Set) {
        let _structure = Structure::lock();
        self.with(|inner| {
            inner.members.retain(|m| !std::ptr::eq(*m, member));
            if operation != libc::EPOLL_CTL_DEL {
                inner.members.push(member);
            }
            self.has_members.store(!inner.members.is_empty(), Ordering::Relaxed);
        });
        if operation != libc::EPOLL_CTL_DEL {
            member.watched();
        }
    }

    /// Has the sets in this one show the kernel what their sockets have.
    pub(super) fn settle_members(&self) {
        if !self.has_members.load(Ordering::Relaxed) {
            return;
        }
        let members: Vec<_> = self.with(|inner| inner.members.clone()).unwrap_or_default();
        for member in members {
            member.watched();
        }
    }

    /// Notes that the set's own descriptor is being watched (an outer set, poll, select).
    pub fn watched(&'static self) {
        self.nested.store(true, Ordering::SeqCst);
        self.settle_members();
        if self.san.load(Ordering::Relaxed) != 0 {
            wait::settle(self);
        }
    }
}
