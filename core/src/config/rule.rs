//! Rules: which connections may use the SAN.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use serde::Deserialize;

use super::pattern::Network;

/// Which end of a connection this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It connects.
    Connect,
    /// It listens and accepts.
    Listen,
}

/// The ends a rule concerns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Roles {
    Connect,
    Listen,
    #[default]
    Both,
}

/// A rule that concerns this program. What is `None` matches everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) roles: Roles,
    pub(super) network: Option<Network>,
    pub(super) ports: Option<RangeInclusive<u16>>,
    pub(super) san: bool,
}

impl Rule {
    pub(super) fn matches(&self, role: Role, address: &SocketAddr) -> bool {
        let role_matches = match self.roles {
            Roles::Both => true,
            Roles::Connect => role == Role::Connect,
            Roles::Listen => role == Role::Listen,
        };
        role_matches
            && self.network.is_none_or(|network| network.contains(address.ip().to_canonical()))
            && self.ports.as_ref().is_none_or(|ports| ports.contains(&address.port()))
    }
}
