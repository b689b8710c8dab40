//! Says which of the processes that share a link controls it, and so has its queue pair (D2). This lies in memory that
//! these processes share and the peer cannot reach. The next controller finds here all that it needs to go on.

use crate::fabric::mailbox::MailboxAddress;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// See the module. Zeroed memory is a valid start.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Controller {
    /// The mailbox of the controlling process's helper.
    mailbox: AtomicU64,
    /// The mailboxes of processes that had control before; zero: none. The first process lives longest, as a rule: it
    /// made the connection.
    before: [AtomicU64; REMEMBERED],
    /// The mailbox of the process that wants control; without [`WISHED`], of the one that will get it. Zero: none.
    heir: AtomicU64,
    pid: AtomicU32,
    /// Not zero while it is about to exit.
    leaving: AtomicU32,
    /// 1: a relative goes back to TCP unless the peer has entered.
    withdraws: AtomicU32,
    /// 1: a relative wants to know whether the peer is still there.
    suspects: AtomicU32,
    /// 1: the peer has heard that this end turned.
    turn_known: AtomicU32,
    next_out: AtomicU32,
    next_in: AtomicU32,
    bytes_out: AtomicU64,
    bytes_in: AtomicU64,
}

/// How many former controllers are known.
const REMEMBERED: usize = 4;

/// A bit that every mailbox's address has.
const WISHED: u64 = 1;

/// How far both directions had come when control was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric) struct ControlProgress {
    /// Next message to be sent.
    pub(in crate::fabric) next_out: u32,
    /// Bytes of the send buffer that were sent.
    pub(in crate::fabric) bytes_out: u64,
    /// Next message to come.
    pub(in crate::fabric) next_in: u32,
    /// Bytes that came for the peer's send buffer.
    pub(in crate::fabric) bytes_in: u64,
}

impl Controller {
    /// The process that makes the link controls it.
    pub(in crate::fabric) fn begin(&self, mailbox: MailboxAddress, pid: u32) {
        self.pid.store(pid, Relaxed);
        self.mailbox.store(mailbox, SeqCst);
    }

    /// By the controlling process, which sends and takes nothing any more. Release.
    pub(in crate::fabric) fn give(&self, to: MailboxAddress, pid: u32, progress: ControlProgress) {
        self.next_out.store(progress.next_out, Relaxed);
        self.bytes_out.store(progress.bytes_out, Relaxed);
        self.next_in.store(progress.next_in, Relaxed);
        self.bytes_in.store(progress.bytes_in, Relaxed);
        self.leaving.store(0, Relaxed);
        self.pid.store(pid, Relaxed);
        self.remember(self.mailbox.load(Relaxed));
        self.mailbox.store(to, SeqCst);
        self.heir.store(0, SeqCst);
    }

    /// The process that has that mailbox wants control. False: control was promised to another one.
    pub(in crate::fabric) fn wish(&self, own: MailboxAddress) -> bool {
        let wish = |heir| (heir & WISHED != 0 || heir == 0).then_some(own);
        self.heir.fetch_update(SeqCst, SeqCst, wish).is_ok()
    }

    /// It does not any more; without effect on a promise.
    pub(in crate::fabric) fn withdraw(&self, own: MailboxAddress) {
        let _ = self.heir.compare_exchange(own, 0, SeqCst, SeqCst);
    }

    /// By the controlling process, which begins to move: false if that process wants control no more.
    pub(in crate::fabric) fn promise(&self, to: MailboxAddress) -> bool {
        self.heir.compare_exchange(to, to & !WISHED, SeqCst, SeqCst).is_ok()
    }

    /// By the controlling process, which does not move after all.
    pub(in crate::fabric) fn renege(&self) {
        let wish = |heir| (heir != 0).then_some(heir | WISHED);
        let _ = self.heir.fetch_update(SeqCst, SeqCst, wish);
    }

    /// True once control was promised to the process that has that mailbox, or given to it.
    pub(in crate::fabric) fn is_bound_for(&self, own: MailboxAddress) -> bool {
        // In the order in which they are changed.
        self.heir.load(SeqCst) == own & !WISHED || self.mailbox.load(SeqCst) == own
    }

    fn remember(&self, mailbox: MailboxAddress) {
        let is_known = self.before().any(|one| one == mailbox);
        if !is_known {
            let free = self.before.iter().find(|one| one.load(Relaxed) == 0);
            free.unwrap_or(&self.before[REMEMBERED - 1]).store(mailbox, Relaxed);
        }
    }

    /// The mailboxes of former controllers.
    pub(in crate::fabric) fn before(&self) -> impl Iterator<Item = MailboxAddress> + '_ {
        self.before.iter().map(|one| one.load(Relaxed)).filter(|one| *one != 0)
    }

    /// That one is gone.
    pub(in crate::fabric) fn forget(&self, mailbox: MailboxAddress) {
        for one in &self.before {
            let _ = one.compare_exchange(mailbox, 0, Relaxed, Relaxed);
        }
    }

    /// The mailbox of the process that has control. Acquire.
    pub(in crate::fabric) fn mailbox(&self) -> MailboxAddress {
        self.mailbox.load(Acquire)
    }

    pub(in crate::fabric) fn pid(&self) -> u32 {
        self.pid.load(Acquire)
    }

    /// How far both directions had come. Called by the process that got control.
    pub(in crate::fabric) fn progress(&self) -> ControlProgress {
        ControlProgress {
            next_out: self.next_out.load(Relaxed),
            bytes_out: self.bytes_out.load(Relaxed),
            next_in: self.next_in.load(Relaxed),
            bytes_in: self.bytes_in.load(Relaxed),
        }
    }

    /// By a relative: the link is not to be used unless the peer has entered.
    pub(in crate::fabric) fn ask_to_withdraw(&self) {
        self.withdraws.store(1, SeqCst);
    }

    /// By the controlling process: true, once, if that is so.
    pub(in crate::fabric) fn take_withdrawal(&self) -> bool {
        self.withdraws.load(Relaxed) != 0 && self.withdraws.swap(0, SeqCst) != 0
    }

    /// By a relative: the link may have ended.
    pub(in crate::fabric) fn suspect_end(&self) {
        self.suspects.store(1, SeqCst);
    }

    /// By the controlling process: true, once, if that is so.
    pub(in crate::fabric) fn take_suspicion(&self) -> bool {
        self.suspects.load(Relaxed) != 0 && self.suspects.swap(0, SeqCst) != 0
    }

    /// By the controlling process: the peer has heard that this end turned.
    pub(in crate::fabric) fn note_turn_known(&self) {
        self.turn_known.store(1, SeqCst);
    }

    pub(in crate::fabric) fn is_turn_known(&self) -> bool {
        self.turn_known.load(Acquire) != 0
    }

    /// The controlling process is about to exit. A process that wants to go on is to take control.
    pub(in crate::fabric) fn announce_exit(&self) {
        self.leaving.store(1, SeqCst);
    }

    pub(in crate::fabric) fn is_leaving(&self) -> bool {
        self.leaving.load(Relaxed) != 0
    }
}
