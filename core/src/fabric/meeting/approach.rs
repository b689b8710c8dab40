//! The acceptor's end connects to the connector's own number, until somebody is there or it has tried often enough. The
//! process that accepted does this, whichever process of the listener that is (D10).

use super::appointment::Appointment;
use crate::fabric::helper;
use crate::fabric::link::{Link, LinkPort};
use crate::fabric::request::{self, Approaching};
use crate::proof::{self, Conclusion, Opened};
use crate::provider::interface::client::*;
use crate::provider::interface::{Error, Started};
use crate::provider::shm::Role;
use crate::reason::Reason;
use crate::sys::{process, time};
use std::sync::Arc;

/// Pause (ns) until the second attempt, doubled each time, and how many there are. The connector's end is as far a
/// moment sooner or later, if it is busy at all.
const FIRST_PAUSE: u64 = 500_000;
const ATTEMPTS: u32 = 10;
/// Longest wait (ns) for an answer. A host without RDMA gives none.
const ANSWER: u64 = 2_000_000_000;
/// FirstNumbers of the pending operations.
const CONNECT: u64 = 1;
const COMPLETE: u64 = 2;

/// An end that looks for the other.
pub(super) struct Approach {
    pub(super) appointment: Arc<Appointment>,
    pub(super) port: &'static LinkPort,
    attempts: u32,
    /// Clock (ns) of the next attempt, or when this one has taken too long.
    due: u64,
    under_way: Option<(Arc<Link>, Stage)>,
    /// The proof, until the other end answers; and what then concludes it.
    opened: Option<Opened>,
    conclusion: Option<Conclusion>,
}

/// How far an attempt has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The other end has to answer.
    Asks,
    /// It agreed.
    Completes,
}

/// What became of an attempt.
enum Step {
    Waits,
    Stands(Arc<Link>),
    ProvedNothing,
    Failed(Error),
}

impl Approach {
    pub(super) fn new(appointment: Arc<Appointment>, port: &'static LinkPort) -> Self {
        Approach {
            appointment,
            port,
            attempts: 0,
            due: 0,
            under_way: None,
            opened: None,
            conclusion: None,
        }
    }

    /// When (clock, ns) the helper is to look at it although nothing happened.
    pub(super) fn due(&self) -> u64 {
        self.due
    }

    /// Goes on; false once it is over.
    pub(super) fn go_on(&mut self) -> bool {
        if !self.appointment.is_wanted() {
            self.dismiss(Reason::Quiet);
            return false;
        }
        let step = match self.under_way.clone() {
            Some((link, stage)) => self.advance(&link, stage).unwrap_or_else(Step::Failed),
            None if time::now() < self.due => return true,
            None => self.begin().unwrap_or_else(Step::Failed),
        };
        match step {
            Step::Stands(link) => {
                self.let_go();
                self.conclusion.take().into_iter().for_each(|said| link.conclude(said));
                self.appointment.meet(link);
                false
            }
            // A process that guesses is to have no other try.
            Step::ProvedNothing => {
                self.dismiss(Reason::Unproven);
                false
            }
            Step::Failed(why) => self.failed(why),
            Step::Waits if self.under_way.is_some() && time::now() > self.due => {
                self.dismiss(Reason::Unreachable);
                false
            }
            Step::Waits => true,
        }
    }

    fn begin(&mut self) -> Result<Step, Error> {
        let parties = &self.appointment.parties;
        let adapter = self.port.device.objects()?.adapter;
        let link = Link::new(self.port, adapter.create_connector()?)?;
        let numbers = self.appointment.numbers();
        let (opened, opening) = proof::open(numbers, process::chance());
        let (port, by_both) = (parties.acceptor.port(), numbers.acceptors.is_some());
        let said = Approaching { port, by_both, opening };
        let data = request::encode_approach(&self.appointment.geometry, said);
        self.opened = Some(opened);
        helper::watch(link.connector().descriptor());
        self.due = time::now() + ANSWER;
        self.under_way = Some((link.clone(), Stage::Asks));
        match link.connector().connect(link.pair(), parties.connector, &data, CONNECT)? {
            Started::Done => self.complete(&link),
            Started::Pending => Ok(Step::Waits),
        }
    }

    fn advance(&mut self, link: &Arc<Link>, stage: Stage) -> Result<Step, Error> {
        match (link.connector().next_result(), stage) {
            (None, _) => Ok(Step::Waits),
            (Some(reported), Stage::Asks) => reported.result.and_then(|()| self.complete(link)),
            (Some(reported), Stage::Completes) => {
                reported.result.map(|()| Step::Stands(link.clone()))
            }
        }
    }

    /// The other end agreed. The segment is there before anything can come.
    fn complete(&mut self, link: &Arc<Link>) -> Result<Step, Error> {
        // Another program may listen at this number over RDMA.
        let answer = request::decode_answer(&link.connector().private_data()?);
        let (answer, opened) = answer.zip(self.opened.take()).ok_or(Error::ConnectionRefused)?;
        let between = request::between(link.connector(), true)?;
        self.conclusion = opened.conclude(&answer, &between);
        if self.conclusion.is_none() {
            return Ok(Step::ProvedNothing);
        }
        link.make_segment(self.appointment.geometry, Role::Acceptor)?;
        self.under_way = Some((link.clone(), Stage::Completes));
        match link.connector().complete_connect(COMPLETE)? {
            Started::Done => Ok(Step::Stands(link.clone())),
            Started::Pending => Ok(Step::Waits),
        }
    }

    /// An attempt failed; true if there is another one.
    fn failed(&mut self, why: Error) -> bool {
        self.end();
        self.attempts += 1;
        let reason = match why {
            Error::ConnectionRefused | Error::ConnectionReset if self.attempts < ATTEMPTS => {
                self.due = time::now() + (FIRST_PAUSE << (self.attempts - 1));
                return true;
            }
            Error::ConnectionRefused | Error::ConnectionReset => Reason::PeerNative,
            Error::InsufficientResources | Error::AccessDenied => {
                let to = self.appointment.parties.connector;
                log::warn!("no RDMA to {to}: {why}; see 'ulimit -l'");
                Reason::OutOfMemory
            }
            Error::DeviceRemoved => Reason::NoDevice,
            _ => Reason::Unreachable,
        };
        self.appointment.fail(reason);
        false
    }

    /// Nothing comes of it.
    pub(super) fn dismiss(&mut self, why: Reason) {
        self.end();
        self.appointment.fail(why);
    }

    fn let_go(&mut self) {
        if let Some((link, _)) = self.under_way.take() {
            helper::forget(link.connector().descriptor());
        }
    }

    fn end(&mut self) {
        if let Some((link, _)) = &self.under_way {
            link.end();
        }
        self.let_go();
    }
}
