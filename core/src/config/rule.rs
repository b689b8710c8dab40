//! Rules: which connections may use the SAN.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use ipnet::IpNet;
use serde::Deserialize;
use wildmatch::WildMatch;

/// Which end of a connection this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketRole {
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

/// A rule that concerns this program. A field that is `None` matches everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) roles: Roles,
    pub(super) network: Option<IpNet>,
    pub(super) ports: Option<RangeInclusive<u16>>,
    pub(super) san: bool,
}

impl Rule {
    pub(super) fn matches(&self, role: SocketRole, address: &SocketAddr) -> bool {
        let role_matches = match self.roles {
            Roles::Both => true,
            Roles::Connect => role == SocketRole::Connect,
            Roles::Listen => role == SocketRole::Listen,
        };
        role_matches
            && self.network.is_none_or(|network| network.contains(&address.ip().to_canonical()))
            && self.ports.as_ref().is_none_or(|ports| ports.contains(&address.port()))
    }
}

/// True when the program's name matches `pattern`, in which `*` stands for any characters and `?` for one.
pub(super) fn is_program(pattern: &str, name: &[u8]) -> bool {
    WildMatch::new(pattern).matches(&String::from_utf8_lossy(name))
}

/// Reads an address, or addresses that share a prefix: `127.0.0.0/8`, `fd00::/8`.
///
/// # Errors
/// What is wrong, and what may stand there.
pub(super) fn parse_network(text: &str) -> Result<IpNet, String> {
    let (address, prefix) =
        text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    // ipnet's own parser takes 010.0.0.0 too.
    let address: IpAddr = address.parse().map_err(|_| {
        "must be an address like 127.0.0.1 or a network like 127.0.0.0/8 or fd00::/8".to_owned()
    })?;
    let Some(prefix) = prefix else { return Ok(address.into()) };
    let network = prefix.parse().ok().and_then(|prefix| IpNet::new(address, prefix).ok());
    let network = network.ok_or_else(|| {
        format!("the prefix behind / must be 0 to {}", IpNet::from(address).max_prefix_len())
    })?;
    if network != network.trunc() {
        return Err(format!("has bits set behind the prefix; shorten /{prefix} or zero them"));
    }
    Ok(network)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs() {
        let cases = [
            ("redis-*", "redis-server", true),
            ("redis-*", "redis-", true),
            ("redis-*", "redis", false),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("?", "a", true),
            ("?", "", false),
            ("*a*b*", "xaxxbx", true),
            ("*a*b", "xaxbxb", true),
            ("*a*b", "xaxbxc", false),
            ("python3.?*", "python3.11", true),
            ("nginx", "nginx: worker", false),
            ("a**b", "ab", true),
            ("b?r", "bär", true),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(is_program(pattern, name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = "a*".repeat(50) + "b";
        assert!(!is_program(&pattern, "a".repeat(5000).as_bytes()));
    }

    #[test]
    fn networks() {
        let cases = [
            ("127.0.0.0/8", "127.255.0.1", true),
            ("127.0.0.0/8", "128.0.0.1", false),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.2", false),
            ("0.0.0.0/0", "255.255.255.255", true),
            ("0.0.0.0/0", "::", false),
            ("::/0", "ffff::1", true),
            ("::/0", "1.2.3.4", false),
            ("fd00::/8", "fdff::1", true),
            ("fd00::/8", "fe00::1", false),
            ("::1", "::1", true),
            ("::1/128", "::2", false),
        ];
        for (network, address, expected) in cases {
            let parsed = parse_network(network).expect(network);
            assert_eq!(
                parsed.contains(&address.parse::<IpAddr>().expect(address)),
                expected,
                "{network}"
            );
        }
    }

    #[test]
    fn wrong_networks() {
        for network in [
            "",
            "localhost",
            "127.0.0",
            "1.2.3.4/33",
            "::/129",
            "::/x",
            "10.0.0.1/8",
            "010.0.0.0/8",
        ] {
            assert!(parse_network(network).is_err(), "{network}");
        }
    }
}
