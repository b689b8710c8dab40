//! All that a link knows, and which thread may touch which part of it.

use super::body::Body;
use super::controller::Controller;
use super::course::Moving;
use super::sender::LinkSender;
use super::wire::Wire;
use crate::fabric::fork_gate::generation;
use crate::fabric::mailbox::{self, MailboxAddress};
use crate::fabric::{helper, port};
use crate::proof::{Answered, Conclusion};
use crate::provider::interface::client::*;
use crate::provider::interface::Error;
use crate::sys::{file, hidden, process, Fd};
use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock, Weak};

/// An adapter with the links over it.
pub(in crate::fabric) type LinkPort = port::Port<Link>;

/// No process's [`generation`].
pub(super) const NOBODY: u32 = u32::MAX;

/// How far a link has come.
pub(in crate::fabric) mod stage {
    /// This end does not use it yet.
    pub(in crate::fabric) const MADE: u32 = 0;
    /// The connector's end does, and has not heard that the acceptor's does.
    pub(in crate::fabric) const ENTERED: u32 = 1;
    /// Both ends use it.
    pub(in crate::fabric) const OPEN: u32 = 2;
    /// This end does not, or the other, and never will.
    pub(in crate::fabric) const REFUSED: u32 = 3;
}

/// Only the thread that takes completions touches this.
pub(super) struct CompletionTaker {
    /// Number of the message that comes next.
    pub(super) message: u32,
    /// Bytes that came for the send buffer.
    pub(super) tail: u64,
}

/// Part of a link, of the way to the SAN and back to TCP: what this process told the peer of it.
#[derive(Default)]
pub(super) struct Returning {
    /// How many requests were posted when it was told that this end turned; zero: it was not.
    pub(super) turned: AtomicU64,

    /// How many requests were posted when it was told that this end left; zero: it was not.
    pub(super) left: AtomicU64,
    /// The same of the answer that this end sends again what the peer did not read.
    pub(super) granted: AtomicU64,
    /// It was told that this end asks, and that it pulled.
    pub(super) asked: AtomicBool,
    pub(super) pulled: AtomicBool,
    /// This process has nothing to do for it any more.
    pub(super) is_seen_to: AtomicBool,
}

impl Returning {
    /// Over another queue pair all is told once more, which does no harm.
    pub(super) fn begin_anew(&self) {
        self.turned.store(0, SeqCst);
        self.left.store(0, SeqCst);
        self.granted.store(0, SeqCst);
        self.asked.store(false, SeqCst);
        self.pulled.store(false, SeqCst);
        self.is_seen_to.store(false, Relaxed);
    }
}

/// Part of a link: memory of programs that either end uses by RDMA. Changed with `pushing` held.
#[derive(Default)]
pub(super) struct Lending {
    /// The rights with which this end lends memory at this moment, as bits.
    pub(super) rights: AtomicU32,
    /// How many accesses to the peer's memory are under way.
    pub(super) accesses: AtomicU32,
    /// The peer has said that it was asked for memory, and that an access to it is under way.
    pub(super) is_heard: AtomicBool,
    /// Accesses of this end that were done, and their bytes: reads, then writes.
    pub(super) done: [(AtomicU64, AtomicU64); 2],
    /// The peer has not answered in time to a request for memory: nothing more is lent to it before it does.
    pub(super) is_unanswered: AtomicBool,
}

impl Lending {
    /// Another queue pair is in use, over which nothing is lent. What a fork copied is the parent's.
    pub(super) fn begin_anew(&self) {
        self.rights.store(0, SeqCst);
        self.accesses.store(0, SeqCst);
        self.is_unanswered.store(false, SeqCst);
    }
}

/// Part of a link: how this process asks for control ([`wishes`](crate::fabric::sharing)).
#[derive(Default)]
pub(in crate::fabric) struct Wishes {
    /// A relative's uses, and clock (ns) of its last request.
    pub(in crate::fabric) uses: AtomicU32,
    pub(in crate::fabric) asked_at: AtomicU64,
    /// This process closed it, or exits.
    pub(in crate::fabric) asks_no_more: AtomicBool,
}

impl Wishes {
    /// Control went to another process, or came.
    pub(super) fn begin_anew(&self) {
        self.uses.store(0, Relaxed);
    }
}

/// What a link knows of the proof that both ends have one connection. One that was made without a proof needs none.
#[derive(Default)]
pub(super) struct Proving {
    /// What this end says to conclude.
    pub(super) conclusion: OnceLock<Conclusion>,
    /// By what this end knows what the peer says.
    pub(super) answered: OnceLock<Answered>,
    pub(super) is_proven: AtomicBool,
}

/// See the module.
pub(crate) struct Link {
    pub(super) own: Weak<Link>,
    /// The number by which all its processes know it.
    pub(super) id: u64,
    pub(super) port: AtomicPtr<LinkPort>,
    /// The process that controls it, if that is this one ([`generation`]).
    pub(super) owner: AtomicU32,
    /// The process to which the objects here belong.
    pub(super) made_in: AtomicU32,
    /// A socket to write to helpers from.
    pub(super) mail: Fd,
    pub(super) event: Fd,
    pub(super) moving: Moving,
    pub(in crate::fabric) wishes: Wishes,
    pub(super) proving: Proving,
    pub(super) returning: Returning,
    pub(super) lending: Lending,
    /// See [`Link::keep_open`].
    pub(super) anchor: AtomicI32,
    pub(super) stage: AtomicU32,
    /// Kinds of frames without data that are due, as bits.
    pub(super) due: AtomicU32,
    pub(super) pushing: AtomicBool,
    /// What a push asked for that came too late, above zero.
    pub(super) again: AtomicU32,
    /// Something could not be sent for want of room.
    pub(super) starved: AtomicBool,
    pub(super) failed: AtomicBool,
    /// Why, as an errno; zero: not known here.
    pub(super) error: AtomicI32,
    /// Clock (ns) when a program first looked after that; zero: it has not.
    pub(super) failure_seen: AtomicU64,
    /// This end was closed: every send tells, and the helper ends it when all is done.
    pub(super) closing: AtomicBool,
    /// Next of our messages that was not sent.
    pub(super) next_out: AtomicU32,
    /// Bytes of our send buffer that were sent.
    pub(super) bytes_out: AtomicU64,
    pub(super) told_head: AtomicU64,
    pub(super) told_total: AtomicU64,
    pub(super) told_finished: AtomicU32,
    pub(super) posted: AtomicU64,
    pub(super) completed: AtomicU64,
    pub(super) into: UnsafeCell<CompletionTaker>,
    pub(super) out: UnsafeCell<LinkSender>,
    /// Changed by the helper, with `pushing` and the port's completions held. Before the memory.
    pub(super) wire: UnsafeCell<Option<Wire>>,
    pub(super) body: OnceLock<Body>,
}

// SAFETY: `out` is only reached while `pushing` is held, `into` while the port's completions are; for `wire` see
// `Link::wire`.
unsafe impl Sync for Link {}
// SAFETY: as above.
unsafe impl Send for Link {}

impl Link {
    /// A link whose queue pair is not connected yet. `connector` connects it.
    pub(in crate::fabric) fn new(
        port: &'static LinkPort,
        connector: Connector,
    ) -> Result<Arc<Self>, Error> {
        let (mail, _) = helper::mailbox().ok_or(Error::InsufficientResources)?;
        let wire = Wire::new(port, connector)?;
        let number = wire.number();
        let event = file::eventfd(0).map_err(|_| Error::InsufficientResources)?;
        let link = Arc::new_cyclic(|own| Link {
            own: own.clone(),
            id: process::random()[0],
            port: AtomicPtr::new(std::ptr::from_ref(port).cast_mut()),
            owner: AtomicU32::new(generation()),
            made_in: AtomicU32::new(generation()),
            mail,
            event: hidden::keep(event),
            moving: Moving::default(),
            wishes: Wishes::default(),
            proving: Proving::default(),
            returning: Returning::default(),
            lending: Lending::default(),
            anchor: AtomicI32::new(-1),
            stage: AtomicU32::new(stage::MADE),
            due: AtomicU32::new(0),
            pushing: AtomicBool::new(false),
            again: AtomicU32::new(0),
            starved: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            error: AtomicI32::new(0),
            failure_seen: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            next_out: AtomicU32::new(1),
            bytes_out: AtomicU64::new(0),
            told_head: AtomicU64::new(0),
            told_total: AtomicU64::new(0),
            told_finished: AtomicU32::new(0),
            posted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            into: UnsafeCell::new(CompletionTaker { message: 1, tail: 0 }),
            out: UnsafeCell::default(),
            wire: UnsafeCell::new(Some(wire)),
            body: OnceLock::new(),
        });
        // SAFETY: nobody else knows it.
        unsafe { (*link.out.get()).prepare() };
        port.add_link(number, &link);
        Ok(link)
    }

    /// The number by which all its processes know it.
    pub(in crate::fabric) fn id(&self) -> u64 {
        self.id
    }

    /// This link, to be kept.
    pub(in crate::fabric) fn own(&self) -> Option<Arc<Self>> {
        self.own.upgrade()
    }

    /// A socket to write to helpers from.
    pub(in crate::fabric) fn mail(&self) -> Fd {
        hidden::kept(self.mail)
    }

    /// The queue pair in use. `None` where this process has no control. The caller holds `pushing`, takes the port's
    /// completions, or is the helper, which alone replaces the queue pair, with both held. Or no other thread has the
    /// link.
    pub(super) fn wire(&self) -> Option<&Wire> {
        // SAFETY: as above.
        unsafe { (*self.wire.get()).as_ref() }
    }

    /// The connector of the connection. Only the helper calls this, and the thread that makes the link.
    pub(in crate::fabric) fn connector(&self) -> &Connector {
        &self.wire().expect("it has a queue pair while it is made").connector
    }

    /// The queue pair, alike.
    pub(in crate::fabric) fn pair(&self) -> &QueuePair {
        &self.wire().expect("it has a queue pair while it is made").pair
    }

    /// The port that it runs over.
    #[inline]
    pub(in crate::fabric) fn port(&self) -> &'static LinkPort {
        // SAFETY: ports live for ever.
        unsafe { &*self.port.load(Relaxed) }
    }

    /// The bell of this end between hosts: readable when a sleeper's event came.
    pub(crate) fn event(&self) -> Fd {
        hidden::kept(self.event)
    }

    /// True in the process that controls it.
    #[inline]
    pub(in crate::fabric) fn is_ours(&self) -> bool {
        self.owner.load(Acquire) == generation()
    }

    /// What completions know it by.
    #[cfg(test)]
    pub(in crate::fabric) fn number(&self) -> u64 {
        self.wire().expect("it has a queue pair").number()
    }

    /// As the copy of it that a fork child has.
    #[cfg(test)]
    pub(in crate::fabric) fn leave_to_relatives(&self) {
        self.owner.store(NOBODY, SeqCst);
    }

    /// True in a process whose copy of the link is from a fork, and holds what belongs to another process.
    pub(crate) fn is_inherited(&self) -> bool {
        self.made_in.load(Acquire) != generation()
    }

    /// In a relative: has the process that controls it look what this end published.
    pub(in crate::fabric) fn kick_owner(&self) {
        let _ = mailbox::kick(self.mail(), self.controlling_mailbox());
    }

    /// How far it has come.
    pub(in crate::fabric) fn stage(&self) -> u32 {
        self.stage.load(Acquire)
    }

    /// True if it can carry nothing any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Acquire)
    }

    /// True in a process that has it from a fork.
    pub(crate) fn is_foreign(&self) -> bool {
        !self.is_ours()
    }

    pub(in crate::fabric) fn controller(&self) -> Option<&Controller> {
        // SAFETY: the promise of `attach`; null afterwards.
        unsafe { self.body.get()?.controller.load(Acquire).as_ref() }
    }

    /// Looks for the controlling process's messages by its number.
    pub(super) fn controlling_mailbox(&self) -> MailboxAddress {
        self.controller().map_or(0, Controller::mailbox)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The last user goes. The queue pair's requests end with it, before anybody else gets its buffers: the link
        // gives these back after it has flushed the queue pair.
        if let Some(wire) = self.wire.get_mut() {
            let _ = wire.pair.flush();
        }
        let mut out = std::mem::take(self.out.get_mut());
        self.release(&mut out);
        *self.out.get_mut() = out;
        hidden::close(self.event);
    }
}
