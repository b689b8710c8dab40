//! Processes publish by the numbers that they have themselves. This module finds the numbers that they have here, as
//! /proc shows them.

use std::collections::HashMap;
use std::{fmt, fs};

use super::process::own_pid_namespace;
use super::publisher::Publisher;

/// See the module. /proc is looked through when first needed.
pub(super) struct Numbers {
    own_namespace: u64,
    /// /proc shows the numbers of our own PID namespace. It may be mounted in another one.
    is_proc_ours: bool,
    seen: Option<HashMap<Publisher, u32>>,
}

impl Numbers {
    pub(super) fn new() -> Numbers {
        let is_proc_ours = numbers_of("self").is_some_and(|numbers| numbers.len() == 1);
        Numbers { own_namespace: own_pid_namespace(), is_proc_ours, seen: None }
    }

    /// True if a publisher's number is the same here. Then /proc tells whether the process lives.
    pub(super) fn are_of(&self, publisher: Publisher) -> bool {
        self.is_proc_ours && publisher.namespace == self.own_namespace
    }

    /// The number here of a process that lives; `None` if /proc does not show it.
    pub(super) fn here(&mut self, publisher: Publisher) -> Option<u32> {
        if self.are_of(publisher) {
            return Some(publisher.pid);
        }
        let (own, ours) = (self.own_namespace, self.is_proc_ours);
        self.seen.get_or_insert_with(|| look(ours.then_some(own))).get(&publisher).copied()
    }
}

/// All processes in /proc. `own` is the PID namespace whose numbers it shows, if that is known.
fn look(own: Option<u64>) -> HashMap<Publisher, u32> {
    let all = all().into_iter();
    all.filter_map(|here| {
        let numbers = numbers_of(&here.to_string())?;
        // Another user's namespace is not told; one number means that it is that of /proc.
        let is_near = numbers.len() == 1;
        let namespace = namespace_of(here, "pid").or(own.filter(|_| is_near))?;
        Some((Publisher { pid: *numbers.last()?, namespace }, here))
    })
    .collect()
}

/// The numbers here of all processes that /proc shows, in order.
pub(super) fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut all: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    all.sort_unstable();
    all
}

/// The numbers that a process has in /proc's PID namespace and in those below, down to its own.
fn numbers_of(process: &str) -> Option<Vec<u32>> {
    let status = fs::read(format!("/proc/{process}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().map(|number| number.parse().ok()).collect()
}

/// Inode of a namespace of that kind of a process, by its number in /proc or `self`; `None` if the caller may not know.
pub(super) fn namespace_of(pid: impl fmt::Display, kind: &str) -> Option<u64> {
    let link = fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()?;
    link.to_str()?.strip_prefix(kind)?.strip_prefix(":[")?.strip_suffix(']')?.parse().ok()
}

/// Whether two processes share their namespace of that kind (`net`, `user`), as far as the caller may know; `None` is the
/// caller itself.
pub fn share_namespace(kind: &str, one: Option<u32>, other: Option<u32>) -> bool {
    let of = |pid: Option<u32>| {
        pid.map_or_else(|| namespace_of("self", kind), |pid| namespace_of(pid, kind))
    };
    match (of(one), of(other)) {
        (Some(one), Some(other)) => one == other,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_process_has_its_number_and_another_namespaces_does_not() {
        let own = Publisher::of_this_process().unwrap();
        let mut numbers = Numbers::new();
        assert!(numbers.are_of(own));
        assert_eq!(numbers.here(own), Some(own.pid));
        let elsewhere = Publisher { namespace: 1, ..own };
        assert!(!numbers.are_of(elsewhere));
        assert_eq!(numbers.here(elsewhere), None);
        assert_eq!(numbers.seen.unwrap().get(&own), Some(&own.pid));
        // As if /proc were another namespace's.
        let mut numbers = Numbers { is_proc_ours: false, ..Numbers::new() };
        assert_eq!(numbers.here(own), Some(own.pid));
        assert_eq!(numbers.here(Publisher { pid: i32::MAX as u32, ..own }), None);
    }
}
