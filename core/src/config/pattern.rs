//! Patterns for program names and addresses.

use std::net::IpAddr;

/// True when `name` matches `pattern`, in which `*` stands for any bytes and `?` for one.
pub(super) fn glob(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Where to go on if what follows the last star does not match: the pattern behind the star, and the name after one
    // more byte that the star takes.
    let mut retry = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                p += 1;
                retry = Some((p, n));
            }
            Some(&byte) if byte == b'?' || byte == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match &mut retry {
                Some((behind_star, taken)) => {
                    *taken += 1;
                    (p, n) = (*behind_star, *taken);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

/// Addresses that share a prefix: `127.0.0.0/8`, `fd00::/8`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Network {
    address: IpAddr,
    prefix: u32,
}

impl Network {
    pub(super) fn parse(text: &str) -> Result<Network, String> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| {
            "must be an address like 127.0.0.1 or a network like 127.0.0.0/8 or fd00::/8".to_owned()
        })?;
        let width = width(address);
        let prefix = match prefix {
            None => width,
            Some(digits) => digits
                .parse()
                .ok()
                .filter(|&prefix| prefix <= width)
                .ok_or_else(|| format!("the prefix behind / must be 0 to {width}"))?,
        };
        let network = Network { address, prefix };
        if network.masked(address) != network.bits(address) {
            return Err(format!("has bits set behind the prefix; shorten /{prefix} or zero them"));
        }
        Ok(network)
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4()
            && self.masked(address) == self.bits(self.address)
    }

    fn bits(&self, address: IpAddr) -> u128 {
        match address {
            IpAddr::V4(v4) => v4.to_bits().into(),
            IpAddr::V6(v6) => v6.to_bits(),
        }
    }

    fn masked(&self, address: IpAddr) -> u128 {
        let host_bits = width(self.address) - self.prefix;
        let ones = u128::MAX.checked_shl(host_bits).unwrap_or(0);
        self.bits(address) & ones
    }
}

fn width(address: IpAddr) -> u32 {
    if address.is_ipv4() {
        32
    } else {
        128
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
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
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(glob(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = "a*".repeat(50) + "b";
        assert!(!glob(pattern.as_bytes(), "a".repeat(5000).as_bytes()));
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
            let parsed = Network::parse(network).expect(network);
            assert_eq!(parsed.contains(address.parse().expect(address)), expected, "{network}");
        }
    }

    #[test]
    fn wrong_networks() {
        for network in ["", "localhost", "127.0.0", "1.2.3.4/33", "::/129", "::/x", "10.0.0.1/8"] {
            assert!(Network::parse(network).is_err(), "{network}");
        }
    }
}
