//! Processes that ask for control of a link: relatives that use it often, or that go on where the process that has
//! control exits. The link does the move itself ([`Link::move_to`]).

use super::invitations;
use crate::fabric::fork_gate::no_fork;
use crate::fabric::helper;
use crate::fabric::link::{stage, Controller, Link};
#[cfg(test)]
use crate::fabric::mailbox::MailboxAddress;
use crate::fabric::mailbox::{self, HelperMessage, Invitation};
use crate::sys::process::SignalsHeld;
use crate::sys::time;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// How often a relative uses a link through the process that controls it, before it takes control itself. A queue pair
/// and its adapter cost more than a few kicks.
const OFTEN: u32 = 32;
/// How soon (ns) control is asked for again.
const AGAIN: u64 = 50_000_000;

impl Link {
    /// Called in a relative that uses the link. It takes control if it does so often, or if no other process will have
    /// it.
    #[cold]
    pub(super) fn want(&self) {
        let Some(controller) = self.controller() else { return };
        let wishes = &self.wishes;
        if wishes.uses.fetch_add(1, Relaxed) < OFTEN && !controller.is_leaving() {
            return;
        }
        let (now, before) = (time::now(), wishes.asked_at.load(Relaxed));
        if now.saturating_sub(before) < AGAIN
            || wishes.asked_at.compare_exchange(before, now, SeqCst, Relaxed).is_err()
            || wishes.asks_no_more.load(SeqCst)
            || !self.is_taken()
        {
            return;
        }
        let Some(own) = self.own() else { return };
        let invitation = invitations::invite(&own, self.port().device.local);
        let is_open = invitation.is_some();
        self.ask(controller, invitation);
        if !is_open {
            log::info!("link {:x}: process {} keeps control", self.id(), controller.pid());
            wishes.asked_at.store(u64::MAX, Relaxed);
        }
    }

    /// A relative that is about to wait: takes control if the one that has it is about to exit.
    pub(super) fn want_if_orphaned(&self) {
        if self.controller().is_some_and(Controller::is_leaving) {
            self.want();
        }
    }

    /// The process is about to exit: has relatives take control. True while one may still: as long as the process waits for
    /// that, and as long as control is on its way.
    pub(crate) fn offer_control(&self, waits: bool) -> bool {
        let Some(controller) = self.controller() else { return false };
        if !self.is_ours() || self.has_failed() || self.stage() != stage::OPEN {
            return false;
        }
        if !controller.is_leaving() {
            controller.announce_exit();
            // All threads that sleep, of all processes.
            self.wake_all();
        }
        let (now, asked) = (time::now(), self.wishes.asked_at.load(Relaxed));
        if now.saturating_sub(asked) > AGAIN {
            // Their helpers do it where their programs are elsewhere.
            self.wishes.asked_at.store(now, Relaxed);
            let take = HelperMessage::Take { link: self.id() };
            let own = controller.mailbox();
            for relative in controller.before().filter(|relative| *relative != own) {
                if !mailbox::send(self.mail(), relative, &take) {
                    controller.forget(relative);
                }
            }
        }
        waits || self.is_moving()
    }

    /// The process that has control is about to exit: this one, which had it before, takes it. By the helper.
    pub(in crate::fabric) fn take_back(&self) {
        let (Some(controller), Some(own)) = (self.controller(), self.own()) else { return };
        let asks_no_more = self.wishes.asks_no_more.load(SeqCst);
        if self.is_ours() || !controller.is_leaving() || asks_no_more {
            return;
        }
        self.wishes.asked_at.store(time::now(), SeqCst);
        self.ask(controller, invitations::invite_within(&own, self.port().device.local));
    }

    /// Asks the process that has control for it.
    fn ask(&self, controller: &Controller, invitation: Option<Invitation>) {
        if let Some(invitation) =
            invitation.filter(|invitation| controller.wish(invitation.mailbox))
        {
            if self.wishes.asks_no_more.load(SeqCst) {
                return self.take_wish_back();
            }
            let want = HelperMessage::Want { link: self.id(), invitation };
            mailbox::send(self.mail(), controller.mailbox(), &want);
        }
    }

    /// This process asks for control no more. True if control was promised to it, or given, and so comes: the peer is
    /// to find somebody here.
    pub(crate) fn withdraw_wish(&self) -> bool {
        self.wishes.asks_no_more.store(true, SeqCst);
        let _held = SignalsHeld::new();
        let _gate = no_fork();
        self.withdraw_within()
    }

    /// [`withdraw_wish`](Self::withdraw_wish), called by a thread that keeps the process from forking.
    pub(in crate::fabric) fn withdraw_within(&self) -> bool {
        if self.wishes.asked_at.load(SeqCst) == 0 {
            return false;
        }
        self.take_wish_back();
        let is_bound = |own| self.controller().is_some_and(|one| one.is_bound_for(own));
        let comes = !self.is_ours() && helper::own_mailbox().is_some_and(is_bound);
        if !comes {
            invitations::revoke_of(self);
        }
        comes
    }

    /// As a relative with that mailbox that asks for control.
    #[cfg(test)]
    pub(in crate::fabric) fn wish(&self, own: MailboxAddress) -> bool {
        self.controller().is_some_and(|controller| controller.wish(own))
    }
}
