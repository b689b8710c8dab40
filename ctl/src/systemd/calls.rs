//! What a unit's SystemCallFilter= leaves of the system calls that the library makes.

use std::collections::BTreeSet;
use std::process::Command;

use super::unit::Unit;

/// System calls of the library that a filter may forbid a TCP program.
const NEEDED: [&str; 40] = [
    "bind",
    "clock_gettime",
    "dup3",
    "epoll_create1",
    "epoll_ctl",
    "epoll_pwait",
    "eventfd2",
    "fchmod",
    "fchmodat",
    "fcntl",
    "fstat",
    "fstatfs",
    "ftruncate",
    "futex",
    "getdents64",
    "getrandom",
    "madvise",
    "memfd_create",
    "mkdirat",
    "mmap",
    "mremap",
    "munmap",
    "newfstatat",
    "openat",
    "openat2",
    "ppoll",
    "pread64",
    "prlimit64",
    "process_vm_readv",
    "process_vm_writev",
    "pwrite64",
    "readlinkat",
    "recvmsg",
    "renameat2",
    "sched_yield",
    "sendmsg",
    "setxattr",
    "statx",
    "tgkill",
    "unlinkat",
];

/// Those without which it only is slower: large sends go in messages.
pub(super) const FOR_SPEED: [&str; 2] = ["process_vm_readv", "process_vm_writev"];

/// Those of [`NEEDED`] that it forbids.
///
/// # Errors
/// What its groups hold cannot be told.
pub(super) fn forbidden(unit: &Unit) -> Result<Vec<&'static str>, String> {
    let filters: Vec<_> = unit.all("SystemCallFilter").collect();
    let Some(first) = filters.first() else { return Ok(Vec::new()) };
    let is_list_of_forbidden = first.value.starts_with('~');
    let mut allowed = BTreeSet::from_iter(NEEDED.into_iter().filter(|_| is_list_of_forbidden));
    for filter in filters {
        let (takes, list) = match filter.value.strip_prefix('~') {
            Some(list) => (true, list),
            None => (false, filter.value.as_str()),
        };
        let listed = expand(list.split_whitespace())?;
        for call in NEEDED.into_iter().filter(|call| listed.contains(*call)) {
            let _ = if takes { allowed.remove(call) } else { allowed.insert(call) };
        }
    }
    if !is_list_of_forbidden {
        // systemd adds them to every list of what is allowed.
        let always = expand(["@default"].into_iter())?;
        allowed.extend(NEEDED.into_iter().filter(|call| always.contains(*call)));
    }
    Ok(NEEDED.into_iter().filter(|call| !allowed.contains(call)).collect())
}

/// The system calls of a list of names and groups, which may hold groups.
fn expand<'a>(list: impl Iterator<Item = &'a str>) -> Result<BTreeSet<String>, String> {
    let mut waiting: Vec<String> =
        list.map(|name| name.split(':').next().unwrap_or_default().to_owned()).collect();
    let (mut calls, mut seen) = (BTreeSet::new(), BTreeSet::new());
    while let Some(name) = waiting.pop() {
        if !name.starts_with('@') {
            calls.insert(name);
        } else if seen.insert(name.clone()) {
            waiting.extend(group(&name)?);
        }
    }
    Ok(calls)
}

/// What a group holds, as this machine's systemd has it.
fn group(name: &str) -> Result<Vec<String>, String> {
    let output =
        Command::new("systemd-analyze").args(["syscall-filter", "--no-pager", name]).output();
    let output = output.map_err(|error| format!("systemd-analyze, which knows {name}: {error}"))?;
    if !output.status.success() {
        return Err(format!("systemd-analyze does not know {name}"));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().skip(1).map(str::trim);
    Ok(lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect())
}
