//! Memory of this end's program that the peer may read or write by RDMA, for one transfer (M2, M3, M5).
//!
//! The memory is registered, and a window of it is bound for the peer's queue pair alone. A frame tells the peer
//! ([`FrameKind::Lend`]). To take it back, this end asks the peer how much it used and has it use no more
//! ([`FrameKind::Recall`]). The peer's link answers by itself. Then this end invalidates the window and ends the
//! registration. From then on the device refuses the peer.
//!
//! A peer that is stopped does not answer. This end waits for the answer a moment only, and ends the window all the same,
//! without a request, which would wait for the peer. If the peer was stopped just before an access, that access breaks
//! its queue pair later, and the connection ends. No byte is wrong: neither end takes an access for valid that the other
//! one does not know of.

use super::body::Body;
use super::course;
use super::outgoing::Tell;
use super::sender::{Full, LinkSender};
use super::state::{stage, Link};
use crate::fabric::frame::FrameKind;
use crate::provider::interface::client::MemoryRegion;
use crate::provider::interface::{Error, Flags, Limits, RemoteAccess};
use crate::provider::shm::{MemoryRegistration, Right};
use crate::sys::handlers::Undisturbed;
use crate::sys::{process, time};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

/// Most bytes that one transfer may use: they stay pinned as long.
const MOST: u32 = 8 << 20;
/// How long (ns) this end waits for the answer to a request for memory: longer than a device takes to send a lost packet
/// again.
const ANSWER: u64 = 6_000_000_000;
/// The same where the peer has said that an access is under way. Its device ends that, or its queue pair, before.
const ACCESS: u64 = 30_000_000_000;
/// How long (ns) the peer's word of an access before the end of a window may be on its way.
const LATE: u64 = 5_000_000;
/// How long (ns) this end waits for its own device.
pub(super) const DEVICE: u64 = 10_000_000_000;
/// How long (ns) a lend, which keeps others from sending, waits for its turn to bind. After that the bytes go in messages.
const ALONE: u64 = 100_000_000;
/// How often a thread looks before it naps between looks, and how long (ns) it naps.
const LOOKS: u32 = 500;
const NAP: u64 = 50_000;

impl Right {
    /// The place of what is lent with this right.
    pub(super) fn place(self) -> usize {
        self as usize - 1
    }

    fn bit(self) -> u32 {
        1 << self.place()
    }

    /// The right of that number.
    pub(super) fn of(number: u32) -> Option<Self> {
        [Right::Read, Right::Write].into_iter().find(|right| *right as u32 == number)
    }
}

impl Body {
    /// What this end lends.
    pub(super) fn own_lent(&self, right: Right) -> &MemoryRegistration {
        let side = self.segment.side(self.role);
        match right {
            Right::Read => &side.readable.0,
            Right::Write => &side.writable.0,
        }
    }

    /// What the peer lends.
    pub(super) fn peers_lent(&self, right: Right) -> &MemoryRegistration {
        let side = self.segment.side(self.role.peer());
        match right {
            Right::Read => &side.readable.0,
            Right::Write => &side.writable.0,
        }
    }
}

impl Link {
    /// From how many bytes on the device finds RDMA of a program's memory worth it (A2); `None`: it cannot do that.
    pub(crate) fn rdma_threshold(&self) -> Option<u32> {
        let limits = &self.port().device.limits;
        let needed = Limits::BIND | Limits::APPLICATION_MEMORY;
        let can = limits.flags & needed == needed && limits.max_transfer > 0;
        can.then_some(limits.rdma_threshold)
    }

    /// Most bytes of a program's memory that one transfer may use.
    pub(crate) fn largest_transfer(&self) -> u32 {
        MOST.min(self.port().device.limits.max_transfer)
    }

    /// True if memory of programs may be used here at the moment: this process has the queue pair, which stays.
    pub(crate) fn may_use_memory(&self) -> bool {
        self.is_ours()
            && self.stage() == stage::OPEN
            && self.course() == course::REST
            && !self.has_failed()
            && self.rdma_threshold().is_some()
    }

    /// True while memory of a program is lent or used over the queue pair, which must stay.
    pub(super) fn uses_programs_memory(&self) -> bool {
        let lending = &self.lending;
        lending.rights.load(SeqCst) != 0 || lending.accesses.load(SeqCst) != 0
    }

    /// True if a thread that has lent memory is to take it back soon: the link moves.
    pub(crate) fn wants_memory_back(&self) -> bool {
        self.lending.rights.load(SeqCst) != 0 && self.course() != course::REST
    }

    /// Lends `length` bytes at `at`, registered in the segment as number `key`, to the peer. False: they cannot be lent,
    /// and are not. The caller takes them back before they may be anything else.
    pub(crate) fn lend(&self, right: Right, key: u32, at: u64, length: u32) -> bool {
        if !self.may_use_memory() || self.lending.is_unanswered.load(SeqCst) {
            return false;
        }
        let _undisturbed = Undisturbed::begin();
        let registered = self.register(at as *mut u8, length as usize);
        let bound = registered.and_then(|region| {
            self.as_sender(|out| self.bind_for_peer(out, region, (right, key, at, length)))
        });
        let is_told = match bound {
            Ok(is_told) => is_told,
            Err(why) => {
                log::debug!("link {:x}: {length} bytes in messages: {why}", self.id());
                false
            }
        };
        if bound == Ok(false) {
            self.revoke(right, true);
        }
        self.push(Tell::Due);
        is_told
    }

    /// Binds a window for the peer, and tells the peer: false if there was no room for that.
    fn bind_for_peer(
        &self,
        out: &mut LinkSender,
        region: MemoryRegion,
        (right, key, at, length): (Right, u32, u64, u32),
    ) -> Result<bool, Error> {
        // By now no other thread begins to move the link before this one is seen to have lent something.
        let is_lent = self.lending.rights.load(SeqCst) & right.bit() != 0;
        let wire = self.wire().filter(|_| self.may_use_memory() && !is_lent);
        let wire = wire.ok_or(Error::NotConnected)?;
        let access = match right {
            Right::Read => RemoteAccess::Read,
            Right::Write => RemoteAccess::Write,
        };
        let mut may_go_on = || self.await_turn_to_bind(out).is_ok() || self.has_failed();
        if !may_go_on() && !self.wait_until(ALONE, may_go_on) {
            return Err(Error::InsufficientResources);
        }
        let number = self.begin(out).map_err(|Full| Error::InsufficientResources)?;
        let (tells, flags) = self.flags(out);
        let token = match wire.pair.bind(number, &region, at..at + u64::from(length), access, flags)
        {
            Ok(token) => token,
            Err(why) => {
                self.port().device.sent(1);
                return Err(why);
            }
        };
        self.begun(out, number, tells);
        wire.rings(out).lent[right.place()] = Some((region, token));
        self.lending.rights.fetch_or(right.bit(), SeqCst);
        let mut payload = [0; 24];
        payload[..4].copy_from_slice(&(right as u32).to_le_bytes());
        payload[4..8].copy_from_slice(&key.to_le_bytes());
        payload[8..16].copy_from_slice(&at.to_le_bytes());
        payload[16..20].copy_from_slice(&length.to_le_bytes());
        payload[20..].copy_from_slice(&token.to_le_bytes());
        Ok(self.send(out, FrameKind::Lend, &[&payload]).is_ok())
    }

    /// Takes back what is lent with this right, if anything is. Afterwards the peer neither reads nor writes it, and the
    /// segment has how much the peer used. `is_unused`: the peer uses it no more, whatever happens.
    pub(crate) fn take_memory_back(&self, right: Right, is_unused: bool) {
        let Some(body) = self.body.get() else { return };
        // What a fork copied of the parent's is not this process's.
        if !self.is_ours() || self.lending.rights.load(SeqCst) & right.bit() == 0 {
            return;
        }
        let _undisturbed = Undisturbed::begin();
        let lent = body.own_lent(right);
        // A peer that moves has ended what it did, told of it, and begins nothing.
        let is_unused = is_unused || self.course() == course::FOLLOWS;
        let answered = is_unused || lent.usage().is_over || self.ask_for(right, lent);
        self.revoke(right, answered);
        if !answered {
            self.wait_until(LATE, || false);
        }
        self.push(Tell::Due);
    }

    /// Asks the peer for what is lent. False if it does not answer.
    fn ask_for(&self, right: Right, lent: &MemoryRegistration) -> bool {
        let mut payload = [0; 8];
        payload[..4].copy_from_slice(&(right as u32).to_le_bytes());
        payload[4..].copy_from_slice(&lent.usage().key.to_le_bytes());
        self.lending.is_heard.store(false, SeqCst);
        let (began, mut arrived, mut request, mut is_given_up) = (time::now(), None, None, false);
        let is_over = self.wait_until(ACCESS, || {
            request = request.or_else(|| {
                self.as_sender(|out| {
                    self.reclaim(out);
                    let number = self.posted.load(Relaxed);
                    self.send(out, FrameKind::Recall, &[&payload]).ok().map(|()| number)
                })
            });
            if lent.usage().is_over || self.has_failed() {
                return true;
            }
            let now = time::now();
            if request.is_some_and(|number| self.completed.load(Acquire) > number) {
                arrived.get_or_insert(now);
            }
            // Where the question itself does not arrive, the fabric may be slow.
            let late = arrived.map_or(now - began >= 2 * ANSWER, |since| now - since >= ANSWER);
            is_given_up = late && !self.lending.is_heard.load(SeqCst);
            is_given_up
        });
        let answered = is_over && !is_given_up;
        if !answered {
            log::info!("link {:x}: the peer does not answer: messages", self.id());
            self.lending.is_unanswered.store(true, SeqCst);
        }
        answered
    }

    /// Ends the peer's access, and the registration. `lives`: the peer does, so the queue pair's requests end.
    fn revoke(&self, right: Right, lives: bool) {
        if !((!lives && self.end_at_once(right)) || self.end_in_order(right)) {
            // The peer reaches nothing through a queue pair that has ended. What was registered goes with it.
            return self.break_off();
        }
        let lent = self.as_sender(|out| {
            self.lending.rights.fetch_and(!right.bit(), SeqCst);
            self.wire().and_then(|wire| wire.rings(out).lent[right.place()].take())
        });
        if let Some(Err(why)) = lent.map(|(region, _)| region.deregister()) {
            log::error!("link {:x}: a program's memory stays registered: {why}", self.id());
        }
    }

    /// Ends a window by a request, and waits for its end. False: the link broke, or the device does not do it.
    fn end_in_order(&self, right: Right) -> bool {
        let mut number = None;
        let is_over = self.wait_until(DEVICE, || {
            number = number.or_else(|| self.as_sender(|out| self.invalidate(out, right)));
            number.is_some_and(|number| self.completed.load(Acquire) > number) || self.has_failed()
        });
        is_over && !self.has_failed()
    }

    /// Ends a window without a request: earlier ones may wait for a peer that takes nothing. False: not so.
    fn end_at_once(&self, right: Right) -> bool {
        let mut ended = Err(Error::NotConnected);
        self.wait_until(DEVICE, || {
            ended = self.as_sender(|out| {
                let wire = self.wire().ok_or(Error::NotConnected)?;
                let lent = wire.rings(out).lent[right.place()].as_ref();
                let (_, token) = lent.ok_or(Error::InvalidParameter)?;
                wire.pair.invalidate(0, *token, Flags::AT_ONCE)
            });
            // An access may be under way.
            ended != Err(Error::InsufficientResources)
        });
        ended.is_ok()
    }

    /// Posts the end of a window: the number of the request. `None`: there is no room.
    fn invalidate(&self, out: &mut LinkSender, right: Right) -> Option<u64> {
        self.reclaim(out);
        let wire = self.wire()?;
        let token = wire.rings(out).lent[right.place()].as_ref().map(|(_, token)| *token)?;
        let number = self.begin(out).ok()?;
        if let Err(why) = wire.pair.invalidate(number, token, Flags::NONE) {
            self.port().device.sent(1);
            self.fail(why);
            return None;
        }
        self.begun(out, number, true);
        Some(number)
    }

    /// Ends the queue pair: neither end reaches the other's memory any more.
    pub(super) fn break_off(&self) {
        self.as_sender(|_| {
            if let Some(wire) = self.wire() {
                let _ = wire.pair.flush();
            }
        });
        self.fail(Error::TimedOut);
    }

    /// Runs `f` while no thread sends, and then sends what others left to the thread that was sending.
    pub(super) fn as_sender<T>(&self, f: impl FnOnce(&mut LinkSender) -> T) -> T {
        let result = self.while_nobody_sends(f);
        if self.again.load(SeqCst) != 0 {
            self.push(Tell::Due);
        }
        result
    }

    /// Takes completions until `is_so`, for `patience` ns at most. False if it is not so by then.
    pub(super) fn wait_until(&self, patience: u64, mut is_so: impl FnMut() -> bool) -> bool {
        let (mut looks, mut since) = (0, None);
        loop {
            self.port().look();
            if is_so() {
                return true;
            }
            let now = time::now();
            if now - *since.get_or_insert(now) >= patience {
                return false;
            }
            looks += 1;
            match looks <= LOOKS {
                true => process::yield_now(),
                false => time::sleep(NAP),
            }
        }
    }
}
