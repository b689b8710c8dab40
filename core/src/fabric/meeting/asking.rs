//! A thread of the program has the helper look for the other end of a connection, and looks from time to time whether
//! the helper has found it.

use super::appointment::{Appointment, Parties};
use super::rounds;
use crate::fabric::link::Link;
use crate::fabric::{helper, source};
use crate::provider::shm::Geometry;
use crate::reason::Reason;
use std::sync::Arc;

/// What has come of a meeting so far.
pub(crate) enum MeetingOutcome {
    /// Nothing.
    NotYet,
    /// A link that stands, and has a segment. It is the caller's to use, or to refuse.
    Link(Arc<Link>),
    /// No end is there, or none can be reached.
    Nobody(Reason),
}

/// A thread's hold on a meeting. A thread that lets go of it waits no more.
pub(crate) struct Meeting(Option<Arc<Appointment>>);

impl Meeting {
    /// Has the helper look for the other end. `None`: there is no helper. The caller keeps the process from forking,
    /// and does so when it lets go of the meeting.
    pub(crate) fn arrange(parties: Parties, geometry: Geometry) -> Option<Self> {
        if !helper::start() {
            return None;
        }
        let appointment = Arc::new(Appointment::new(parties, geometry));
        let is_nowhere = parties.local().ip().is_loopback() && !source::is_of_this_host();
        match is_nowhere {
            true => appointment.fail(Reason::NoDevice),
            false => rounds::ask(appointment.clone()),
        }
        Some(Meeting(Some(appointment)))
    }

    /// What has come of it by now. This is cheap.
    pub(crate) fn look(&self) -> MeetingOutcome {
        let Some(appointment) = &self.0 else { return MeetingOutcome::NotYet };
        match appointment.take() {
            None => MeetingOutcome::NotYet,
            Some(Err(why)) => MeetingOutcome::Nobody(why),
            Some(Ok(link)) => MeetingOutcome::Link(link),
        }
    }

    /// Notes the acceptor's number, which may not have been known before.
    pub(crate) fn note_acceptors(&self, number: u32) {
        self.0.iter().for_each(|appointment| appointment.note_acceptors(number));
    }

    /// In a fork child: it is the parent's.
    pub(crate) fn forget(mut self) {
        std::mem::forget(self.0.take());
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let Some(appointment) = self.0.take() else { return };
        appointment.call_off();
        if !appointment.is_decided() {
            helper::wake();
        }
    }
}
