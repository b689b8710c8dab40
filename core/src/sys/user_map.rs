//! Which users have a number in this process's user namespace.

use super::file;
use std::ffi::CStr;

const MAP: &CStr = c"/proc/self/uid_map";

/// The users that have a number here, as far as /proc tells. The kernel takes no other number.
pub(super) fn mapped(users: &[u32]) -> Vec<u32> {
    let map = read(MAP);
    users.iter().copied().filter(|user| has(&map, *user)).collect()
}

/// Whether a map, of which each line has the first user here, the first outside, and how many, has a number for a user.
fn has(map: &str, user: u32) -> bool {
    let mut ranges = map.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace().map(str::parse::<u64>);
        let (first, _, count) = (words.next()?.ok()?, words.next()?.ok()?, words.next()?.ok()?);
        Some(first..first + count)
    });
    map.is_empty() || ranges.any(|range| range.contains(&user.into()))
}

fn read(path: &CStr) -> String {
    let mut text = Vec::new();
    let Ok(fd) = file::open_to_read(path) else { return String::new() };
    let mut part = [0; 512];
    while let Ok(n @ 1..) = file::read(fd, part.as_mut_ptr(), part.len()) {
        text.extend_from_slice(&part[..n]);
    }
    file::close(fd);
    String::from_utf8(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_those_of_the_ranges() {
        let map = "         0       1000          1\n    100000     200000      65536\n";
        for (user, expected) in [
            (0, true),
            (1, false),
            (99_999, false),
            (100_000, true),
            (165_535, true),
            (165_536, false),
        ] {
            assert_eq!(has(map, user), expected, "{user}");
        }
        assert!(has("0 0 4294967295\n", 4_294_967_294));
        assert!(has("", 7), "where there is no /proc");
    }

    #[test]
    fn this_process_has_a_number_here() {
        let own = super::super::process::euid();
        assert_eq!(mapped(&[own]), [own]);
    }
}
