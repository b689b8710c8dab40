//! A link moves to another process (D4, D8). That process makes a new queue pair, and the peer connects to it.
//!
//! 1. The process that wants control waits at a listener of its own, and sends an *invitation* there to the process
//!    that has control.
//! 2. The process that has control sends *Move* behind all it has sent, and nothing more: the session is suspended.
//! 3. The peer answers *Moved* behind all it has sent, and sends nothing more. Both ends keep what they publish
//!    meanwhile in their segments (D5). The peer connects to that listener.
//! 4. With *Moved* everything is there. The old controller gives control, notes how far it has come, and ends its queue
//!    pair.
//! 5. The new controller carries on from there.
//!
//! If both ends move at once, the acceptor gives way and asks again. The suspended session does the same.
//!
//! The helpers do all of this, but the thread that takes completions takes the frames in.
//! [`sharing`](crate::fabric::sharing) decides which process asks for control, and why.

use super::controller::ControlProgress;
use super::course;
use super::ended;
use super::former_links;
use super::sender::LinkSender;
use super::state::{stage, Link, LinkPort, NOBODY};
use super::wire::Wire;
use crate::fabric::frame::FrameKind;
use crate::fabric::helper;
use crate::fabric::mailbox::{self, Invitation};
use crate::provider::interface::client::*;
use crate::sys::process;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

impl Link {
    pub(super) fn course(&self) -> u32 {
        // With what another thread is told before it, as that looks here before it tells.
        self.moving.course.load(SeqCst)
    }

    pub(super) fn change_course(&self, from: u32, to: u32) -> bool {
        self.moving.course.compare_exchange(from, to, SeqCst, SeqCst).is_ok()
    }

    /// The queue pair in use ended; true if that is no concern, because another one follows.
    pub(super) fn ends_on_its_way(&self) -> bool {
        let follows = matches!(self.course(), course::ANSWERED | course::FOLLOWS);
        if follows {
            self.moving.broken.store(true, Relaxed);
        }
        follows
    }

    /// True while either end moves: what was published may not have reached the peer, or a process is about to get
    /// control.
    pub(crate) fn is_moving(&self) -> bool {
        self.course() != course::REST
    }

    /// Begins to move the link to the process that sent an invitation. False if that cannot be now. Called by the
    /// helper.
    pub(in crate::fabric) fn move_to(&self, invitation: &Invitation) -> bool {
        if self.stage() != stage::OPEN || !self.is_ours() || self.has_failed() {
            return false;
        }
        if helper::own_mailbox() == Some(invitation.mailbox) {
            // This process asked for control before the invitation came. No thread waits there any more.
            self.take_wish_back();
            return false;
        }
        if self.controller().is_some_and(|controller| !controller.promise(invitation.mailbox)) {
            return false;
        }
        if !self.change_course(course::REST, course::ASKED) {
            self.renege();
            return false;
        }
        self.moving.heir.store(invitation.mailbox, Relaxed);
        self.moving.heir_pid.store(invitation.pid, Relaxed);
        self.moving.ours.set(invitation.number, invitation.cookie);
        self.note(FrameKind::Move);
        true
    }

    /// This process does not give control to the one to which it was promised.
    pub(in crate::fabric) fn renege(&self) {
        if let Some(controller) = self.controller() {
            controller.renege();
        }
    }

    /// What a Move says.
    pub(super) fn destination(&self) -> [u8; 18] {
        let (number, [a, b]) = self.moving.ours.get();
        let mut payload = [0; 18];
        payload[..2].copy_from_slice(&number.to_le_bytes());
        payload[2..10].copy_from_slice(&a.to_le_bytes());
        payload[10..].copy_from_slice(&b.to_le_bytes());
        payload
    }

    /// Move, or Moved, was sent: nothing more goes out. False: a Move that gave way meanwhile. `pushing` is held.
    pub(super) fn seal(&self, kind: FrameKind) -> bool {
        self.moving.sealed.store(true, SeqCst);
        if kind == FrameKind::Move && self.course() == course::FOLLOWS {
            self.moving.sealed.store(false, SeqCst);
            return false;
        }
        true
    }

    /// Heeds a Moved that came. False if this end did not ask for it. Called by the thread that takes the port's
    /// completions.
    pub(super) fn heed_moved(&self) -> bool {
        let asked = self.change_course(course::ASKED, course::ANSWERED);
        helper::wake();
        asked
    }

    /// The helper's work for a move.
    pub(in crate::fabric) fn progress(&self) {
        match self.course() {
            course::ANSWERED => self.hand_over(),
            course::FOLLOWS => self.follow(),
            course::ARRIVES => self.arrive(),
            _ => {}
        }
    }

    /// Runs `f` while no thread sends. Called by the helper, which then sends what was missed.
    pub(super) fn while_nobody_sends<T>(&self, f: impl FnOnce(&mut LinkSender) -> T) -> T {
        while self.pushing.swap(true, SeqCst) {
            process::yield_now();
        }
        // SAFETY: `pushing` is held.
        let result = f(unsafe { &mut *self.out.get() });
        self.pushing.store(false, SeqCst);
        result
    }

    /// Puts another queue pair, or none, in the place of the one in use. `pushing` is held.
    pub(super) fn replace(&self, port: &LinkPort, wire: Option<Wire>) -> Option<Wire> {
        // SAFETY: nobody sends, and nobody takes completions of that port.
        port.while_nobody_polls(|| unsafe { std::mem::replace(&mut *self.wire.get(), wire) })
    }

    /// Ends a queue pair that another one replaced. The caller holds `pushing`.
    pub(super) fn discard(&self, out: &mut LinkSender, old: Wire) {
        helper::forget(old.connector.descriptor());
        let entered = self.port().remove_link(old.number());
        old.end();
        if let Some(own) = entered.or_else(|| self.own.upgrade()) {
            ended::keep(own, Some(old));
        }
        self.release(out);
        self.completed.store(self.posted.load(Relaxed), SeqCst);
    }

    /// Gives control to the process that asked for it.
    fn hand_over(&self) {
        let port = self.port();
        let Some(controller) = self.controller() else { return };
        self.while_nobody_sends(|out| {
            // Everything that came is published. To take it in waits for nobody.
            port.catch_up();
            let old = self.replace(port, None);
            // SAFETY: without a queue pair nothing comes.
            let into = unsafe { &*self.into.get() };
            let progress = ControlProgress {
                next_out: self.next_out.load(Relaxed),
                bytes_out: self.bytes_out.load(Relaxed),
                next_in: into.message,
                bytes_in: into.tail,
            };
            self.owner.store(NOBODY, SeqCst);
            self.moving.course.store(course::REST, SeqCst);
            self.wishes.begin_anew();
            let heir = self.moving.heir.load(Relaxed);
            controller.give(heir, self.moving.heir_pid.load(Relaxed), progress);
            log::info!("link {:x}: control goes to process {}", self.id, controller.pid());
            // Nothing of ours is under way: the peer answered.
            self.release(out);
            if let (Some(old), Some(own)) = (old, self.own.upgrade()) {
                drop(port.remove_link(old.number()));
                // The peer may not know yet that its answer arrived.
                former_links::gave(&own);
                former_links::end_later(old, own);
            }
        });
        // The process that goes on keeps TCP's end back as long as it must.
        self.let_anchor_go();
        let _ = mailbox::kick(self.mail(), controller.mailbox());
    }

    pub(in crate::fabric) fn take_wish_back(&self) {
        if let (Some(controller), Some(own)) = (self.controller(), helper::own_mailbox()) {
            controller.withdraw(own);
        }
    }
}
