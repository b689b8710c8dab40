//! Which ends use the session: one word that both ends change, so that they agree whatever they do at the same time.
//! Until both use it, either may go back to TCP for good. Between hosts each end has a word of its own, and the link
//! keeps both alike. This module does not know how the word comes to the ends.

use super::sync::{AtomicU32, Ordering};

/// Which end of the connection a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It called connect.
    Connector = 0,
    /// It called accept.
    Acceptor = 1,
}

impl Role {
    /// The other end.
    pub(crate) fn peer(self) -> Self {
        match self {
            Role::Connector => Role::Acceptor,
            Role::Acceptor => Role::Connector,
        }
    }
}

/// How far both ends have agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgreementState {
    /// Offered by the connector. No acceptor took it yet.
    Pending = 0,
    /// The acceptor will use it.
    Taken = 1,
    /// One of both went on over TCP before both used it.
    Withdrawn = 2,
    /// The acceptor declined.
    Refused = 3,
    /// The connector uses it: what the acceptor took is no offer of a connection that is gone.
    Confirmed = 4,
    /// Both use it.
    Settled = 5,
}

impl AgreementState {
    fn of(word: u32) -> AgreementState {
        match word {
            0 => AgreementState::Pending,
            1 => AgreementState::Taken,
            2 => AgreementState::Withdrawn,
            4 => AgreementState::Confirmed,
            5 => AgreementState::Settled,
            _ => AgreementState::Refused,
        }
    }

    /// What the end in this role waits for before it enters.
    pub(crate) fn awaited_by(role: Role) -> AgreementState {
        match role {
            Role::Connector => AgreementState::Taken,
            Role::Acceptor => AgreementState::Confirmed,
        }
    }
}

/// The word. It may lie in memory that the peer can write: a wrong value spoils that connection alone.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Agreement(AtomicU32);

impl Default for Agreement {
    fn default() -> Self {
        Self::new()
    }
}

impl Agreement {
    /// The word of a session that is offered.
    pub(crate) const fn new() -> Self {
        Agreement(AtomicU32::new(AgreementState::Pending as u32))
    }

    /// How far it has come. Acquire.
    pub(crate) fn state(&self) -> AgreementState {
        AgreementState::of(self.0.load(Ordering::Acquire))
    }

    fn change(&self, from: AgreementState, to: AgreementState) -> bool {
        let (from, to) = (from as u32, to as u32);
        self.0.compare_exchange(from, to, Ordering::SeqCst, Ordering::Acquire).is_ok()
    }

    /// The acceptor decides about the offer; false if the connector withdrew it.
    pub(crate) fn decide(&self, to: AgreementState) -> bool {
        self.change(AgreementState::Pending, to)
    }

    /// The end in this role uses the session from now on; false if the other is not as far, or went back.
    pub(crate) fn enter(&self, role: Role) -> bool {
        let to = match role {
            Role::Connector => AgreementState::Confirmed,
            Role::Acceptor => AgreementState::Settled,
        };
        self.change(AgreementState::awaited_by(role), to)
    }

    /// An end goes on over TCP; false if both use the session by now.
    pub(crate) fn withdraw(&self) -> bool {
        [AgreementState::Pending, AgreementState::Taken, AgreementState::Confirmed]
            .into_iter()
            .any(|from| self.change(from, AgreementState::Withdrawn))
            || matches!(self.state(), AgreementState::Withdrawn | AgreementState::Refused)
    }
}
