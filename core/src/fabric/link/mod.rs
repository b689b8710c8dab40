//! One connection over a queue pair: plays the peer's part in this end's segment.
//!
//! Going out ([`outgoing`]) one thread is at it at a time, and who finds another leaves it a note.
//! Coming in ([`incoming`]) it is whoever takes the port's completions. Nobody waits for anybody.
//!
//! The queue pair is that of one process, which controls the link; fork relatives use it through that one's
//! helper, or ask for control ([`wishes`]) and take it ([`moving`]).

mod closing;
mod controller;
mod direct;
mod incoming;
mod moving;
mod outgoing;
mod returning;
mod wire;
mod wishes;

pub use controller::Controller;
pub(super) use outgoing::Tell;
pub(super) use wire::Wire;

use super::frame::{Kind, State, HEADER, LARGEST};
use super::mailbox;
#[cfg(test)]
use super::mailbox::Address;
use super::memory::Buffer;
use super::port::Port;
use super::{generation, helper};
use crate::provider::interface::client::*;
use crate::provider::interface::Error;
use crate::provider::shm::{self, Role, Segment, FAILED};
use crate::sys::handlers::Undisturbed;
use crate::sys::process;
use crate::sys::{file, hidden, time, Errno, Fd};
use moving::Moving;
use returning::Returning;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock, Weak};
use wishes::Wishes;

/// Requests outstanding on a queue pair.
const DEPTH: u32 = 32;
/// Every so many inline sends one tells of its completion.
const SILENT: u32 = 8;
/// No process's [`generation`].
const NOBODY: u32 = u32::MAX;
/// How often, with a pause, a fork relative looks whether the owner took what had arrived.
const CATCH_UP: u32 = 1000;
/// Bytes of a send buffer that one frame carries at most.
const CHUNK: usize = LARGEST - HEADER;

/// How far a link has come.
pub(super) mod stage {
    /// Acceptor: it arrived and is nobody's yet. Connector: it is offered.
    pub(crate) const OFFERED: u32 = 0;
    /// Acceptor: the connector said which TCP connection it is for.
    pub(crate) const BOUND: u32 = 1;
    /// Both ends use it.
    pub(crate) const OPEN: u32 = 2;
    /// Nobody will.
    pub(crate) const REFUSED: u32 = 3;
}

/// The part of a segment that is only known once a link is in use.
struct Body {
    segment: Segment,
    role: Role,
    /// Null once the end's memory is gone.
    controller: AtomicPtr<Controller>,
}

/// Private to who sends.
#[derive(Default)]
struct Out {
    /// Sends that were posted and were seen to complete.
    reclaimed: u64,
    /// Sends in a row that do not tell.
    silent: u32,
    /// Every send is to tell.
    certain: bool,
    /// Buffers in use, with the number of their send.
    held: VecDeque<(u64, Buffer)>,
    /// What the peer knows of us.
    told: State,
}

impl Out {
    /// Room for all that can be held at a time: sending does not allocate.
    fn prepare(&mut self) {
        self.held.reserve(DEPTH as usize + 1);
    }
}

/// Private to who takes completions.
struct In {
    /// Number of the message that comes next.
    message: u32,
    /// Bytes that came for the send buffer.
    tail: u64,
}

/// See the module.
pub struct Link {
    own: Weak<Link>,
    /// What all its processes know it by.
    id: u64,
    port: AtomicPtr<Port>,
    /// The process that controls it, if that is this one ([`generation`]).
    owner: AtomicU32,
    /// The process whose objects are here.
    made_in: AtomicU32,
    /// A socket to write to helpers from.
    mail: Fd,
    event: Fd,
    moving: Moving,
    wishes: Wishes,
    returning: Returning,
    /// See [`Link::keep_open`].
    anchor: AtomicI32,
    stage: AtomicU32,
    /// The addresses that the connector gave (acceptor), or is to give.
    pub(super) binding: OnceLock<Vec<u8>>,
    /// Kinds of frames without data that are due, as bits.
    due: AtomicU32,
    pushing: AtomicBool,
    /// What a push that came too late asked for, above zero.
    again: AtomicU32,
    /// Something could not be sent for want of room.
    starved: AtomicBool,
    failed: AtomicBool,
    /// Why, as an errno; zero: not known here.
    error: AtomicI32,
    /// Clock (ns) when a program first looked after that; zero: it has not.
    failure_seen: AtomicU64,
    /// This end was closed: every send tells, and the helper ends it when all is done.
    closing: AtomicBool,
    /// Next of our messages that was not sent.
    next_out: AtomicU32,
    /// Bytes of our send buffer that were sent.
    bytes_out: AtomicU64,
    told_head: AtomicU64,
    told_total: AtomicU64,
    told_finished: AtomicU32,
    posted: AtomicU64,
    completed: AtomicU64,
    into: UnsafeCell<In>,
    out: UnsafeCell<Out>,
    /// Changed by the helper, with `pushing` and the port's completions held. Before the memory.
    wire: UnsafeCell<Option<Wire>>,
    body: OnceLock<Body>,
}

// SAFETY: `out` is only reached while `pushing` is held, `into` while the port's completions are; for `wire` see
// `Link::wire`.
unsafe impl Sync for Link {}
// SAFETY: as above.
unsafe impl Send for Link {}

/// Nothing more can be sent at the moment, or ever.
struct Full;

impl Link {
    /// A link whose queue pair is not connected yet, for `connector` to connect.
    pub(super) fn new(port: &'static Port, connector: Connector) -> Result<Arc<Self>, Error> {
        let (mail, _) = helper::mailbox().ok_or(Error::InsufficientResources)?;
        let wire = Wire::new(port, connector)?;
        let number = wire.number;
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
            returning: Returning::default(),
            anchor: AtomicI32::new(-1),
            stage: AtomicU32::new(stage::OFFERED),
            binding: OnceLock::new(),
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
            into: UnsafeCell::new(In { message: 1, tail: 0 }),
            out: UnsafeCell::default(),
            wire: UnsafeCell::new(Some(wire)),
            body: OnceLock::new(),
        });
        // SAFETY: nobody else knows it.
        unsafe { (*link.out.get()).prepare() };
        port.enter(number, &link);
        Ok(link)
    }

    /// What it is known by.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// The queue pair in use; `None` where this process has no control. By who holds `pushing`, or takes the
    /// port's completions, or is the helper, which alone replaces it and with both held; or while nobody else has the link.
    fn wire(&self) -> Option<&Wire> {
        // SAFETY: as above.
        unsafe { (*self.wire.get()).as_ref() }
    }

    /// What the connection is made by. Only for the helper, and for who makes the link.
    pub(super) fn connector(&self) -> &Connector {
        &self.wire().expect("it has a queue pair while it is made").connector
    }

    /// The queue pair, alike.
    pub(super) fn pair(&self) -> &QueuePair {
        &self.wire().expect("it has a queue pair while it is made").pair
    }

    /// What it runs over.
    #[inline]
    pub(super) fn port(&self) -> &'static Port {
        // SAFETY: ports live for ever.
        unsafe { &*self.port.load(Relaxed) }
    }

    /// Readable when a sleeper's event came: what a doorbell is on an anchor.
    pub fn event(&self) -> Fd {
        self.event
    }

    /// True in the process that controls it.
    #[inline]
    fn is_ours(&self) -> bool {
        self.owner.load(Acquire) == generation()
    }

    /// As the copy of it that a fork child has.
    #[cfg(test)]
    pub(super) fn is_relatives(&self) {
        self.owner.store(NOBODY, SeqCst);
    }

    /// True in a process whose copy of the link, from a fork, holds what is another's.
    pub fn is_inherited(&self) -> bool {
        self.made_in.load(Acquire) != generation()
    }

    /// As a relative with that mailbox that asks for control.
    #[cfg(test)]
    pub(super) fn wish(&self, own: Address) -> bool {
        self.controller().is_some_and(|controller| controller.wish(own))
    }

    /// In a relative: has the process that controls it look what this end published.
    fn kick_owner(&self) {
        let _ = mailbox::kick(self.mail, self.controlling_mailbox());
    }

    /// How far it has come.
    pub(super) fn stage(&self) -> u32 {
        self.stage.load(Acquire)
    }

    /// True if it can carry nothing any more.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Acquire)
    }

    /// What a program is to be told of a broken link: what TCP tells of a peer that does not answer, or
    /// that its connection is gone.
    pub fn error(&self) -> Errno {
        match self.error.load(Relaxed) {
            e @ (libc::ETIMEDOUT | libc::EHOSTUNREACH) => Errno(e),
            _ => Errno(libc::ECONNRESET),
        }
    }

    /// The end's segment, which the link unmaps when it ends, its role, and where its processes find out who
    /// controls it. Once.
    ///
    /// # Safety
    /// `controller` is in memory that fork relatives share, and valid until the link lets go of the [`Users`](super::Users)
    /// it was closed with.
    pub unsafe fn attach(&self, segment: Segment, role: Role, controller: &Controller) {
        if let Some((_, mailbox)) = helper::mailbox() {
            controller.begin(mailbox, process::pid());
        }
        // Whatever this end publishes concerns its peer: the link, which is always asleep.
        let counters = &segment.side(role.peer()).counters.0;
        let _ = counters.read.raise();
        let _ = counters.write.raise();
        if role == Role::Acceptor {
            // Before anything that is published from now on.
            self.due.fetch_or(1 << Kind::Taken as u32, SeqCst);
        }
        let controller = AtomicPtr::new(std::ptr::from_ref(controller).cast_mut());
        let _ = self.body.set(Body { segment, role, controller });
        if self.has_failed() {
            self.tell_failed();
        }
    }

    /// Acceptor: its connector was sent here, by the addresses of a connection that this process accepted.
    pub(super) fn is_bound(&self) {
        self.stage.store(stage::BOUND, SeqCst);
    }

    /// Acceptor: takes a link whose TCP connection was accepted; false if it was refused meanwhile.
    pub(super) fn take(&self) -> bool {
        self.stage.compare_exchange(stage::BOUND, stage::OPEN, SeqCst, SeqCst).is_ok()
    }

    /// Acceptor: tells the connector that the link is taken, once [`attach`](Self::attach)ed.
    pub fn confirm(&self) {
        self.push(Tell::Due);
    }

    /// Acceptor: nobody will take it.
    pub fn refuse(&self) {
        let refused =
            |from| self.stage.compare_exchange(from, stage::REFUSED, SeqCst, SeqCst).is_ok();
        if refused(stage::BOUND) || refused(stage::OFFERED) {
            self.note(Kind::Refused);
        }
    }

    /// Acceptor: as [`refuse`](Self::refuse), after it was taken and before it was confirmed.
    pub fn refuse_taken(&self) {
        self.stage.store(stage::REFUSED, SeqCst);
        self.note(Kind::Refused);
    }

    /// Connector: which TCP connection it is for.
    pub fn bind(&self, tuple: Vec<u8>) {
        let _ = self.binding.set(tuple);
        self.note(Kind::Bound);
    }

    /// Connector: asks for the link back, which nobody took. The answer decides the segment's state.
    pub fn withdraw(&self) {
        if let Some(controller) = self.controller().filter(|_| !self.is_ours()) {
            controller.ask_to_withdraw();
            return self.kick_owner();
        }
        self.note(Kind::Withdraw);
    }

    fn note(&self, kind: Kind) {
        self.due.fetch_or(1 << kind as u32, SeqCst);
        self.push(Tell::Due);
    }

    /// Takes what has arrived.
    #[inline]
    pub fn poll(&self) {
        if self.is_ours() {
            self.port().look();
        }
    }

    /// Takes all that has arrived by now, also what another thread is about to take.
    pub fn catch_up(&self) {
        if self.is_ours() {
            return self.port().catch_up();
        }
        let Some(body) = self.body.get().filter(|_| !self.is_closed_by_peer()) else { return };
        let looks = &body.segment.side(body.role.peer()).sending.0.delivered;
        let before = looks.load(Acquire);
        for _ in 0..CATCH_UP {
            // The second look began after this call.
            if looks.load(Acquire).wrapping_sub(before) >= 2 {
                break;
            }
            self.kick_owner();
            time::sleep(100_000);
        }
    }

    /// This end published something that its peer waits for.
    pub fn ring(&self) {
        if let Some(body) = self.body.get() {
            let counters = &body.segment.side(body.role.peer()).counters.0;
            for counter in [&counters.read, &counters.write] {
                if !counter.is_raised() {
                    let _ = counter.raise();
                }
            }
        }
        if !self.is_ours() {
            self.want();
        }
        self.push(Tell::Due);
    }

    /// After this end received: tells the peer if that is due.
    #[inline]
    pub fn received(&self) {
        if !self.is_ours() {
            return self.want();
        }
        if let Some(body) = self.body.get() {
            self.tell_if_due(body);
        }
        self.have_rest_told();
    }

    /// What the peer need not know at once the helper tells it in a moment, unless a frame does before: should this process
    /// be killed, the peer is to know what it had read.
    #[inline]
    fn have_rest_told(&self) {
        if self.has_rest() {
            helper::wake_if_dormant();
        }
    }

    /// True if the peer does not know of all that was read here, and can be told.
    #[inline]
    pub(super) fn has_rest(&self) -> bool {
        self.body.get().is_some_and(|body| {
            let total = &body.segment.side(body.role).receiving.0.total;
            total.load(Relaxed) != self.told_total.load(Relaxed)
                && self.is_ours()
                && !self.has_failed()
                && !self.is_closed_by_peer()
        })
    }

    fn tell_if_due(&self, body: &Body) {
        let head = body.segment.side(body.role).receiving.0.head.load(Relaxed);
        let taken = head.wrapping_sub(self.told_head.load(Relaxed));
        if taken >= body.eighth() || self.has_message(body) || (taken > 0 && body.is_stalled()) {
            self.push(Tell::Due);
        }
    }

    /// A thread of this end is about to sleep until the event rings; it looks once more afterwards.
    pub fn before_sleep(&self) {
        if !self.is_ours() {
            self.want_if_orphaned();
            return self.kick_owner();
        }
        let Some(body) = self.body.get() else { return };
        self.tell_if_due(body);
        self.have_rest_told();
        // A handler that finds it armed relies on the look.
        let _undisturbed = Undisturbed::begin();
        if self.port().arm() {
            // Not only a look: who is at it may have looked before the queue was armed.
            self.port().catch_up();
        }
    }

    /// True if a message of ours was published and not sent.
    #[inline]
    fn has_message(&self, body: &Body) -> bool {
        let next = self.next_out.load(Relaxed);
        body.segment.slot(body.role, next, 0).sequence() == next
    }

    /// True if the owner says that it is broken, or the owner is gone.
    pub fn is_failed_by_peer(&self) -> bool {
        let Some(body) = self.body.get() else { return false };
        let finished = &body.segment.side(body.role.peer()).sending.0.finished;
        if let Some(controller) = self.controller().filter(|_| !self.is_ours()) {
            let pid = controller.pid();
            // It may have given control away, and exited, in between.
            if !process::lives(pid) && controller.pid() == pid {
                finished.fetch_or(FAILED, SeqCst);
            }
        }
        finished.load(Acquire) & FAILED != 0
    }

    /// True in a process that has it from a fork.
    pub fn is_foreign(&self) -> bool {
        !self.is_ours()
    }

    /// [`fail`](Self::fail), if that is the queue pair in use and none is to follow. By who takes the port's
    /// completions.
    pub(super) fn fail_over(&self, number: u64, why: Error) {
        if self.wire().is_some_and(|wire| wire.number == number) && !self.ends_on_its_way() {
            self.fail(why);
        }
    }

    /// The connection broke.
    #[cold]
    pub(super) fn fail(&self, why: Error) {
        let _ = self.error.compare_exchange(0, why.errno(), SeqCst, SeqCst);
        let has_returned = self.has_returned();
        if self.failed.swap(true, SeqCst) || has_returned {
            return;
        }
        if !matches!(why, Error::Cancelled) {
            log::info!("link {:x}: {why}", self.id);
        }
        self.tell_failed();
    }

    /// To the end, or who attaches it later.
    fn tell_failed(&self) {
        if let Some(body) = self.body.get() {
            let _ = body.segment.decide(shm::State::Refused);
            let peer = body.segment.side(body.role.peer());
            peer.sending.0.finished.fetch_or(FAILED, SeqCst);
            self.wake(body, true, true);
        }
    }

    /// True if somebody sleeps on this end.
    pub(super) fn has_sleeper(&self) -> bool {
        self.body.get().is_some_and(|body| {
            let counters = &body.segment.side(body.role).counters.0;
            counters.read.is_raised() || counters.write.is_raised()
        })
    }

    /// Wakes sleepers of this end.
    fn wake(&self, body: &Body, read: bool, write: bool) {
        let counters = &body.segment.side(body.role).counters.0;
        let mut ring = read && counters.read.signal();
        ring |= write && counters.write.signal();
        if ring {
            self.port().wakes();
            let one = 1u64.to_ne_bytes();
            let _ = file::write(self.event, one.as_ptr(), one.len());
        }
    }
}

impl Body {
    /// How much is taken from the send buffer until its sender is told.
    fn eighth(&self) -> u64 {
        u64::from(self.segment.geometry().send_buffer / 8)
    }

    /// True if the peer's sender waits for room.
    fn is_stalled(&self) -> bool {
        self.segment.side(self.role.peer()).sending.0.stalled.load(Relaxed) != 0
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The last user; the queue pair's requests end with it, before its buffers are
        // anybody else's: they are given back after it was flushed.
        if let Some(wire) = self.wire.get_mut() {
            let _ = wire.pair.flush();
        }
        let mut out = std::mem::take(self.out.get_mut());
        self.release(&mut out);
        *self.out.get_mut() = out;
        hidden::close(self.event);
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        // SAFETY: whoever used the segment held the link, whose last field this is.
        unsafe { self.segment.unmap() };
    }
}
