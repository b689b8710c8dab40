//! Links that the program closed. The helper ends each when its peer has everything and no relative uses the link.

use crate::fabric::adapters;
use crate::fabric::fork_gate::no_fork;
use crate::fabric::helper;
use crate::fabric::link::{ClosedLink, Link, Tell, CLOSED_LINKS};
use crate::fabric::sharing::invitations;
use crate::sys::process::SignalsHeld;
use crate::sys::time;

/// How long (ns) the helper keeps a closed link whose peer takes nothing: as long as TCP retransmits.
const LINGER: u64 = 900_000_000_000;
/// How long (ns) a closed link waits for control that was promised to this process.
const ON_ITS_WAY: u64 = 60_000_000_000;
/// How long (ns) the exit of the process waits until relatives have taken control of what they use.
const LEAVING: u64 = 1_000_000_000;

impl ClosedLink {
    /// True while fork relatives use it.
    fn is_used(&self) -> bool {
        self.users.as_ref().is_some_and(|users| users.are_there())
    }

    /// Withdraws the wish for control. True while a relative sends control to this process: the peer is to find
    /// somebody here.
    fn look_for_control(&self) -> bool {
        self.link.withdraw_within()
            && !self.link.look_for_failure()
            && !self.link.is_closed_by_peer()
            && time::now() - self.since < ON_ITS_WAY
    }

    /// Nothing of this process uses it any more. By the helper.
    fn dismiss(self) {
        if self.link.is_foreign() {
            invitations::revoke_of(&self.link);
        } else {
            self.link.renege();
            self.link.end();
        }
        self.link.forget_end();
        drop(self.users);
        if self.link.is_inherited() {
            self.link.leave_to_parent();
        }
    }

    /// Looks after it; true if it is over.
    fn look_after(&mut self) -> bool {
        if self.link.is_foreign() {
            return !self.look_for_control();
        }
        let used = self.is_used();
        self.link.tick(Tell::Certain);
        if used && !self.link.is_refused() && !self.link.has_returned() {
            self.since = time::now();
            return false;
        }
        self.link.close_now();
        let is_over = self.link.is_drained() || time::now() - self.since > LINGER;
        if is_over {
            self.link.note_delivered();
        }
        is_over
    }
}

/// Ends the closed links whose peers have everything. True if there are others.
pub(super) fn end_closed() -> bool {
    let mut closed = CLOSED_LINKS.lock();
    let mut over = Vec::new();
    let mut at = 0;
    while at < closed.len() {
        if closed[at].look_after() {
            over.push(closed.swap_remove(at));
        } else {
            at += 1;
        }
    }
    let left = !closed.is_empty();
    drop(closed);
    over.into_iter().for_each(ClosedLink::dismiss);
    left
}

/// Waits until every closed link has ended, and no TCP connection's end is kept back any more, as long as something
/// goes on; before the process exits.
pub(in crate::fabric) fn finish(patience: u64) {
    if !helper::is_there() {
        return;
    }
    let since = time::now();
    let is_done = || {
        let _held = SignalsHeld::new();
        let _gate = no_fork();
        let leaving = time::now() - since < LEAVING;
        // Relatives that use one are to take control of it.
        CLOSED_LINKS.lock().iter().all(|one| match one.link.is_foreign() {
            true => !one.look_for_control(),
            false => one.is_used() && !one.link.offer_control(leaving),
        }) && !adapters::any_port(|port| port.any_link(Link::keeps_anchor))
    };
    while !is_done() && time::now() - since < patience {
        time::sleep(100_000);
    }
}
