//! A link moves to another process (D4, D8): that makes a new queue pair, to which the peer connects.
//!
//! 1. The process that wants control waits at its *berth*, a listener of its own, and tells the one that has it.
//! 2. That one sends *Move* behind all it has sent, and nothing more: the session is suspended.
//! 3. The peer answers *Moved* behind all it has sent, and nothing more. What both publish meanwhile stays in
//!    their segments (D5). It connects to the berth.
//! 4. With *Moved* everything is there: control is given, with how far it has come, and the old queue pair ends.
//! 5. The new one carries on from there.
//!
//! Where both ends move at once the acceptor gives way, as the suspended session does, and asks again. An offer
//! that nobody accepted yet moves alike, from the process that has the listener to the one that accepts.
//!
//! All of it is done by the helpers, except that frames come to whoever looks. Who asks for control, and why, is the business
//! of [`wishes`](super::wishes).

use super::super::mailbox::{self, Address, Berth};
use super::super::port::Port;
use super::super::request::{self, Cookie};
use super::super::{generation, helper};
use super::controller::{Controller, Progress};
use super::wire::Wire;
use super::{stage, Kind, Link, Out, Tell};
use crate::provider::interface::client::*;
use crate::provider::interface::{Error, Started};
use crate::provider::shm::{Geometry, Role};
use crate::sys::process;
use crate::sys::time;
use std::cell::UnsafeCell;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// How long (ns) a peer that follows tries.
const PATIENCE: u64 = 60_000_000_000;
/// Numbers of the pending operations.
const CONNECT: u64 = 1;
const COMPLETE: u64 = 2;
const ARRIVE: u64 = 3;

/// Where a move stands, at this end.
pub(super) mod course {
    /// There is none.
    pub(crate) const REST: u32 = 0;
    /// Move is due, or was sent.
    pub(crate) const ASKED: u32 = 1;
    /// Moved came: all that the peer has sent is here.
    pub(crate) const ANSWERED: u32 = 2;
    /// The peer moves: Moved is due, or was sent, or the new queue pair is being connected.
    pub(crate) const FOLLOWS: u32 = 3;
    /// The new queue pair is here and is being connected.
    pub(crate) const ARRIVES: u32 = 4;
}

/// A number and a cookie, changed and read by different threads.
#[derive(Default)]
struct Target {
    number: AtomicU32,
    cookie: [AtomicU64; 2],
}

impl Target {
    fn set(&self, number: u16, cookie: Cookie) {
        self.cookie[0].store(cookie[0], Relaxed);
        self.cookie[1].store(cookie[1], Relaxed);
        self.number.store(number.into(), SeqCst);
    }

    fn get(&self) -> (u16, Cookie) {
        let number = self.number.load(Acquire) as u16;
        (number, [self.cookie[0].load(Relaxed), self.cookie[1].load(Relaxed)])
    }
}

/// Part of a link.
#[derive(Default)]
pub(super) struct Moving {
    course: AtomicU32,
    /// Move or Moved was sent, or the new queue pair is not connected: nothing may be sent.
    pub(super) sealed: AtomicBool,
    /// Where the peer is to come to; and whom to give control.
    ours: Target,
    heir: AtomicU64,
    heir_pid: AtomicU32,
    /// Where the peer is.
    theirs: Target,
    /// The queue pair in use ended meanwhile.
    broken: AtomicBool,
    /// Clock (ns) when that was told.
    since: AtomicU64,
    /// It was, before the new queue pair is known to be connected.
    is_early: AtomicBool,
    /// The queue pair that is being connected to it. The helper's.
    following: UnsafeCell<Option<Wire>>,
}

impl Link {
    fn course(&self) -> u32 {
        // With what another thread is told before it, as that looks here before it tells.
        self.moving.course.load(SeqCst)
    }

    fn change_course(&self, from: u32, to: u32) -> bool {
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

    /// True while either end moves: what was published may not have reached the peer, or somebody is to get control.
    pub fn is_moving(&self) -> bool {
        self.course() != course::REST
    }

    pub(super) fn controller(&self) -> Option<&Controller> {
        // SAFETY: the promise of `attach`; null afterwards.
        unsafe { self.body.get()?.controller.load(Acquire).as_ref() }
    }

    /// The end's memory goes: nothing of this process asks any more who has control. By the helper.
    pub(in super::super) fn forget_end(&self) {
        if let Some(body) = self.body.get() {
            body.controller.store(std::ptr::null_mut(), SeqCst);
        }
    }

    /// Begins to move the link to a berth; false if that cannot be now. By the helper.
    pub(in super::super) fn move_to(&self, berth: &Berth) -> bool {
        let settled = match self.stage() {
            stage::OPEN => self.body.get().is_some(),
            stage::BOUND => true,
            _ => false,
        };
        if !settled || !self.is_ours() || self.has_failed() {
            return false;
        }
        if helper::own_mailbox() == Some(berth.mailbox) {
            // Asked for before it came: nobody waits at that berth any more.
            self.take_wish_back();
            return false;
        }
        if self.controller().is_some_and(|controller| !controller.promise(berth.mailbox)) {
            return false;
        }
        if !self.change_course(course::REST, course::ASKED) {
            self.renege();
            return false;
        }
        self.moving.heir.store(berth.mailbox, Relaxed);
        self.moving.heir_pid.store(berth.pid, Relaxed);
        self.moving.ours.set(berth.number, berth.cookie);
        self.note(Kind::Move);
        true
    }

    /// This process does not give control to whom it was promised.
    pub(in super::super) fn renege(&self) {
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
    pub(super) fn seal(&self, kind: Kind) -> bool {
        self.moving.sealed.store(true, SeqCst);
        if kind == Kind::Move && self.course() == course::FOLLOWS {
            self.moving.sealed.store(false, SeqCst);
            return false;
        }
        true
    }

    /// Move came; false if it makes no sense. By who takes the port's completions.
    pub(super) fn is_to_follow(&self, payload: &[u8]) -> bool {
        let Some((number, cookie)) = payload.split_first_chunk() else { return false };
        let Some((a, b)) = cookie.split_first_chunk() else { return false };
        let Ok(b) = b.try_into() else { return false };
        if self.body.get().is_none() || matches!(self.course(), course::ANSWERED | course::FOLLOWS)
        {
            return false;
        }
        self.moving
            .theirs
            .set(u16::from_le_bytes(*number), [u64::from_le_bytes(*a), u64::from_le_bytes(b)]);
        self.moving.since.store(time::now(), Relaxed);
        if self.course() == course::ARRIVES {
            // The queue pair brought it before it is known here to be connected.
            self.moving.is_early.store(true, SeqCst);
            return self.course() == course::ARRIVES || self.heed_early();
        }
        self.turn_to_follow()
    }

    /// The link is there: goes on with a Move that came before that was known. False if that makes no sense.
    fn heed_early(&self) -> bool {
        !self.moving.is_early.swap(false, SeqCst) || self.turn_to_follow()
    }

    /// The peer moves: nothing but Moved goes out from now on. False if it may not.
    fn turn_to_follow(&self) -> bool {
        loop {
            let from = match self.course() {
                // Both move: the connector's goes first.
                course::ASKED if self.is_connectors() => return true,
                from @ (course::REST | course::ASKED) => from,
                _ => return false,
            };
            if self.change_course(from, course::FOLLOWS) {
                if from == course::ASKED {
                    self.renege();
                }
                break;
            }
        }
        self.due.fetch_and(!(1 << Kind::Move as u32), SeqCst);
        self.moving.sealed.store(false, SeqCst);
        self.note(Kind::Moved);
        helper::wake();
        true
    }

    fn is_connectors(&self) -> bool {
        self.body.get().is_some_and(|body| body.role == Role::Connector)
    }

    /// Moved came; false if it was not asked for. By who takes the port's completions.
    pub(super) fn was_followed(&self) -> bool {
        let asked = self.change_course(course::ASKED, course::ANSWERED);
        helper::wake();
        asked
    }

    /// What the helper does for a move.
    pub(in super::super) fn progress(&self) {
        match self.course() {
            course::ANSWERED => self.hand_over(),
            course::FOLLOWS => self.follow(),
            course::ARRIVES => self.arrive(),
            _ => {}
        }
    }

    /// Runs `f` while nobody sends. By the helper, which afterwards has sent what was missed.
    pub(super) fn while_nobody_sends<T>(&self, f: impl FnOnce(&mut Out) -> T) -> T {
        while self.pushing.swap(true, SeqCst) {
            process::yield_now();
        }
        // SAFETY: `pushing` is held.
        let result = f(unsafe { &mut *self.out.get() });
        self.pushing.store(false, SeqCst);
        result
    }

    /// Puts another queue pair, or none, in the place of the one in use. `pushing` is held.
    pub(super) fn replace(&self, port: &Port, wire: Option<Wire>) -> Option<Wire> {
        // SAFETY: nobody sends, and nobody takes completions of that port.
        port.while_nobody_polls(|| unsafe { std::mem::replace(&mut *self.wire.get(), wire) })
    }

    /// Ends a queue pair whose place was taken. `pushing` is held.
    pub(super) fn discard(&self, out: &mut Out, old: Wire) {
        helper::forget(old.connector.descriptor());
        drop(self.port().leave(old.number));
        old.end();
        self.release(out);
        self.completed.store(self.posted.load(Relaxed), SeqCst);
    }

    /// Gives control to who asked for it.
    fn hand_over(&self) {
        let port = self.port();
        let Some(controller) = self.controller() else {
            // An offer, which goes on elsewhere.
            return self.moving.course.store(course::REST, SeqCst);
        };
        self.while_nobody_sends(|out| {
            // Everything that came is published; taking it waits for nobody.
            port.catch_up();
            let old = self.replace(port, None);
            // SAFETY: without a queue pair nothing comes.
            let into = unsafe { &*self.into.get() };
            let progress = Progress {
                next_out: self.next_out.load(Relaxed),
                bytes_out: self.bytes_out.load(Relaxed),
                next_in: into.message,
                bytes_in: into.tail,
            };
            self.owner.store(super::NOBODY, SeqCst);
            self.moving.course.store(course::REST, SeqCst);
            self.wishes.begin_anew();
            let heir = self.moving.heir.load(Relaxed);
            controller.give(heir, self.moving.heir_pid.load(Relaxed), progress);
            log::info!("link {:x}: control goes to process {}", self.id, controller.pid());
            // Nothing of ours is under way: the peer answered.
            self.release(out);
            if let (Some(old), Some(own)) = (old, self.own.upgrade()) {
                drop(port.leave(old.number));
                // The peer may not know yet that its answer arrived.
                helper::gave(&own);
                helper::end_later(old, own);
            }
        });
        // Who goes on keeps TCP's end back as long as it must.
        self.let_anchor_go();
        let _ = mailbox::kick(self.mail, controller.mailbox());
    }

    /// The geometry that both ends have.
    fn geometry(&self) -> Option<Geometry> {
        self.body.get().map(|body| body.segment.geometry())
    }

    /// Connects to where the peer is now.
    fn follow(&self) {
        if time::now() - self.moving.since.load(Relaxed) > PATIENCE {
            return self.give_up(Error::ConnectionReset);
        }
        // SAFETY: the helper's.
        let following = unsafe { &mut *self.moving.following.get() };
        let Some(wire) = following else {
            // Moved is to arrive before its queue pair ends; an offer's need not.
            let is_broken = self.moving.broken.load(Relaxed);
            let told = self.moving.sealed.load(Acquire)
                && (self.stage() != stage::OPEN
                    || is_broken
                    || self.completed.load(Acquire) == self.posted.load(Relaxed));
            match (told, is_broken, self.stage()) {
                (true, ..) => {}
                (false, true, stage::OPEN) => return self.give_up(Error::ConnectionReset),
                (false, true, _) => {
                    self.moving.sealed.store(true, SeqCst);
                    self.due.fetch_and(!(1 << Kind::Moved as u32), SeqCst);
                }
                (false, false, _) => return self.push(Tell::Certain),
            }
            match self.begin_to_follow() {
                Ok(wire) => *following = Some(wire),
                Err(why) => self.give_up(why),
            }
            return;
        };
        let connector = wire.connector.clone();
        match connector.next_result().map(|reported| reported.result) {
            None => {}
            Some(Err(why)) => self.give_up(why),
            Some(Ok(())) if !is_ours(&connector) => self.give_up(Error::ConnectionRefused),
            Some(Ok(())) => {
                // Before anything can come over it.
                if let Some(wire) = following.take() {
                    self.go_on_over(wire);
                }
                match connector.complete_connect(COMPLETE) {
                    Ok(Started::Done) => self.is_there(&connector),
                    Ok(Started::Pending) => {}
                    Err(why) => self.fail(why),
                }
            }
        }
    }

    /// The peer cannot be followed.
    pub(super) fn give_up(&self, why: Error) {
        // SAFETY: the helper's.
        if let Some(wire) = unsafe { &mut *self.moving.following.get() }.take() {
            self.forget_wire(&wire);
        }
        self.fail(why);
    }

    fn forget_wire(&self, wire: &Wire) {
        helper::forget(wire.connector.descriptor());
        drop(self.port().leave(wire.number));
    }

    fn enter(&self, number: u64) {
        if let Some(own) = self.own.upgrade() {
            self.port().enter(number, &own);
        }
    }

    fn begin_to_follow(&self) -> Result<Wire, Error> {
        let geometry = self.geometry().ok_or(Error::NotConnected)?;
        let (number, cookie) = self.moving.theirs.get();
        let host = self.wire().ok_or(Error::NotConnected)?.connector.peer_address()?.ip();
        let wire = Wire::new(self.port(), self.port().device()?.adapter.create_connector()?)?;
        let data = request::encode(&geometry, cookie);
        let target = SocketAddr::new(host, number);
        helper::watch(wire.connector.descriptor());
        let started = wire.connector.connect(&wire.pair, target, &data, CONNECT);
        match started {
            Ok(Started::Pending) => Ok(wire),
            Ok(Started::Done) | Err(_) => {
                self.forget_wire(&wire);
                Err(started.err().unwrap_or(Error::Internal))
            }
        }
    }

    /// Puts the new queue pair in the place of the old one.
    fn go_on_over(&self, wire: Wire) {
        let number = wire.number;
        self.while_nobody_sends(|out| {
            if let Some(old) = self.replace(self.port(), Some(wire)) {
                self.discard(out, old);
            }
            self.moving.broken.store(false, Relaxed);
            self.returning.begin_anew();
            // It may have been noted just when this end gave way.
            self.due.fetch_and(!(1 << Kind::Move as u32), SeqCst);
            self.moving.course.store(course::ARRIVES, SeqCst);
        });
        self.enter(number);
    }

    /// The new queue pair is connected: the link goes on.
    fn is_there(&self, connector: &Connector) {
        helper::forget(connector.descriptor());
        self.moving.sealed.store(false, SeqCst);
        self.moving.course.store(course::REST, SeqCst);
        log::info!("link {:x}: goes on over another queue pair", self.id);
        if !self.heed_early() {
            self.fail(Error::ConnectionReset);
        }
        self.push(Tell::Certain);
    }

    /// Looks for the controlling process's messages by its number.
    pub(super) fn controlling_mailbox(&self) -> Address {
        self.controller().map_or(0, Controller::mailbox)
    }

    /// The peer came to this process's berth: takes control if that was given; gives the connector back if it
    /// was not (yet). By the helper.
    pub(in super::super) fn take_control(
        &self,
        port: &'static Port,
        mailbox: Address,
        connector: Connector,
    ) -> Result<(), (Error, Option<Connector>)> {
        let controller = self.controller().ok_or((Error::NotConnected, None))?;
        if controller.mailbox() != mailbox {
            return Err((Error::ConnectionRefused, Some(connector)));
        }
        let wire = Wire::new(port, connector).map_err(|why| {
            self.fail(why);
            (why, None)
        })?;
        let (number, pair, connector) = (wire.number, wire.pair.clone(), wire.connector.clone());
        self.adopt(port, wire, controller.progress());
        self.enter(number);
        helper::watch(connector.descriptor());
        log::info!("link {:x}: this process has control", self.id);
        match connector.accept(&pair, &request::MAGIC, ARRIVE) {
            Ok(Started::Done) => self.is_there(&connector),
            Ok(Started::Pending) => {}
            Err(why) => {
                self.fail(why);
                return Err((why, None));
            }
        }
        Ok(())
    }

    /// Makes the link this process's.
    fn adopt(&self, port: &'static Port, wire: Wire, progress: Progress) {
        // What is here was copied by a fork, from the midst of whatever its threads did; or it is what was left
        // when control was given away.
        let inherited = self.is_inherited();
        self.pushing.store(true, SeqCst);
        // SAFETY: this process had no control, so nobody sends here, and nothing comes.
        unsafe {
            let out = std::mem::take(&mut *self.out.get());
            let old = (*self.wire.get()).replace(wire);
            let following = (*self.moving.following.get()).take();
            if inherited {
                // The parent's.
                std::mem::forget((out, old, following));
            }
            (*self.out.get()).prepare();
            *self.into.get() = super::In { message: progress.next_in, tail: progress.bytes_in };
        }
        self.next_out.store(progress.next_out, Relaxed);
        self.bytes_out.store(progress.bytes_out, Relaxed);
        self.told_head.store(0, Relaxed);
        self.told_total.store(0, Relaxed);
        self.told_finished.store(0, SeqCst);
        self.posted.store(0, Relaxed);
        self.completed.store(0, SeqCst);
        self.due.store(0, SeqCst);
        self.again.store(0, SeqCst);
        self.starved.store(false, SeqCst);
        self.closing.store(false, SeqCst);
        if inherited {
            self.anchor.store(-1, SeqCst);
        }
        self.stage.store(stage::OPEN, SeqCst);
        self.wishes.begin_anew();
        self.returning.begin_anew();
        self.moving.broken.store(false, Relaxed);
        self.moving.is_early.store(false, SeqCst);
        self.moving.sealed.store(true, SeqCst);
        self.moving.course.store(course::ARRIVES, SeqCst);
        self.port.store(std::ptr::from_ref(port).cast_mut(), SeqCst);
        self.made_in.store(generation(), SeqCst);
        self.pushing.store(false, SeqCst);
        self.owner.store(generation(), SeqCst);
    }

    /// Waits until the new queue pair is connected.
    fn arrive(&self) {
        let Some(connector) = self.wire().map(|wire| wire.connector.clone()) else { return };
        match connector.next_result().map(|reported| reported.result) {
            None => {}
            Some(Ok(())) => self.is_there(&connector),
            Some(Err(why)) => self.fail(why),
        }
    }
}

fn is_ours(connector: &Connector) -> bool {
    connector.private_data().is_ok_and(|data| data.starts_with(&request::MAGIC))
}
