//! The peer's end moves to another process. This end follows it there, and goes on over a new queue pair.

use super::course;
use super::outgoing::Tell;
use super::state::Link;
use super::wire::Wire;
use crate::fabric::frame::FrameKind;
use crate::fabric::{helper, request};
use crate::provider::interface::client::*;
use crate::provider::interface::{Error, Started};
use crate::provider::shm::{Geometry, Role};
use crate::sys::time;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

/// How long (ns) a peer that follows tries.
const PATIENCE: u64 = 60_000_000_000;
/// Numbers of the pending operations.
const CONNECT: u64 = 1;
const COMPLETE: u64 = 2;

impl Link {
    /// Heeds a Move that came. False if it makes no sense. Called by the thread that takes the port's completions.
    pub(super) fn heed_move(&self, payload: &[u8]) -> bool {
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
        self.due.fetch_and(!(1 << FrameKind::Move as u32), SeqCst);
        self.moving.sealed.store(false, SeqCst);
        self.note(FrameKind::Moved);
        helper::wake();
        true
    }

    fn is_connectors(&self) -> bool {
        self.body.get().is_some_and(|body| body.role == Role::Connector)
    }

    /// The geometry that both ends have.
    fn geometry(&self) -> Option<Geometry> {
        self.body.get().map(|body| body.segment.geometry())
    }

    /// Connects to where the peer is now.
    pub(super) fn follow(&self) {
        if time::now() - self.moving.since.load(Relaxed) > PATIENCE {
            return self.give_up(Error::ConnectionReset);
        }
        // SAFETY: the helper's.
        let following = unsafe { &mut *self.moving.following.get() };
        let Some(wire) = following else {
            // Moved is to arrive before its queue pair ends.
            let is_broken = self.moving.broken.load(Relaxed);
            let told = self.moving.sealed.load(Acquire)
                && (is_broken || self.completed.load(Acquire) == self.posted.load(Relaxed));
            match (told, is_broken) {
                (true, _) => {}
                (false, true) => return self.give_up(Error::ConnectionReset),
                (false, false) => return self.push(Tell::Certain),
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
                    Ok(Started::Done) => self.resume(&connector),
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
        drop(self.port().remove_link(wire.number()));
    }

    pub(super) fn enter(&self, number: u64) {
        if let Some(own) = self.own.upgrade() {
            self.port().add_link(number, &own);
        }
    }

    fn begin_to_follow(&self) -> Result<Wire, Error> {
        let geometry = self.geometry().ok_or(Error::NotConnected)?;
        let (number, cookie) = self.moving.theirs.get();
        let host = self.wire().ok_or(Error::NotConnected)?.connector.peer_address()?.ip();
        let wire =
            Wire::new(self.port(), self.port().device.objects()?.adapter.create_connector()?)?;
        let data = request::encode_invited(&geometry, cookie);
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
        let number = wire.number();
        self.while_nobody_sends(|out| {
            if let Some(old) = self.replace(self.port(), Some(wire)) {
                self.discard(out, old);
            }
            self.moving.broken.store(false, Relaxed);
            self.returning.begin_anew();
            self.lending.begin_anew();
            // A Move may have been noted just when this end gave way, and a Ring for the old queue pair. Over the new one
            // each is told once.
            let told_once = 1 << FrameKind::Move as u32 | 1 << FrameKind::Ring as u32;
            self.due.fetch_and(!told_once, SeqCst);
            self.moving.course.store(course::ARRIVES, SeqCst);
        });
        self.enter(number);
    }

    /// The new queue pair is connected: the link goes on.
    pub(super) fn resume(&self, connector: &Connector) {
        helper::forget(connector.descriptor());
        self.moving.sealed.store(false, SeqCst);
        self.moving.course.store(course::REST, SeqCst);
        log::info!("link {:x}: goes on over another queue pair", self.id);
        if !self.heed_early() {
            self.fail(Error::ConnectionReset);
        }
        self.push(Tell::Certain);
    }

    /// Waits until the new queue pair is connected.
    pub(super) fn arrive(&self) {
        let Some(connector) = self.wire().map(|wire| wire.connector.clone()) else { return };
        match connector.next_result().map(|reported| reported.result) {
            None => {}
            Some(Ok(())) => self.resume(&connector),
            Some(Err(why)) => self.fail(why),
        }
    }
}

fn is_ours(connector: &Connector) -> bool {
    connector.private_data().is_ok_and(|data| data.starts_with(&request::MAGIC))
}
