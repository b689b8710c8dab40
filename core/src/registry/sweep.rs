//! Removes the files of processes that ended without removing them, by kill -9 or _exit.

use std::ffi::CStr;

use super::kernel::{self, OwnedDescriptor};
use super::layout::{RegistryHeader, VERSION};
use super::publisher::Publisher;
use crate::sys::folder::MOST_NAMES;

/// A sweep asks about each process, if there are no more files than this.
const ASKED_FOR: usize = 64;
/// Of further files it asks about one in so many.
const SHARE: u32 = 16;

/// Removes the files of processes that are gone, in this user's folder. If there are many files it looks at some of
/// them.
///
/// Nobody can ask for a process of another PID namespace by its number. A living process holds its file, so a sweep
/// removes one that nobody holds. `turn` grows by one from one sweep to the next, or about so.
pub(super) fn sweep(folder: &OwnedDescriptor, own_namespace: u64, turn: u32) {
    let is_known_gone =
        |one: &Publisher| one.namespace != own_namespace || kernel::is_gone(one.pid);
    let (mut names, mut before) = (0, 0);
    // The stack may be a small one.
    let mut entries = [0; 1024];
    while let Ok(length @ 1..) = kernel::read_entries(folder, &mut entries) {
        names += Names(&entries[..length]).count() as u32;
        if names > MOST_NAMES {
            return;
        }
        for one in Names(&entries[..length]).filter_map(Publisher::parse) {
            before += 1;
            if !is_asked_for(one.pid, before - 1, turn) || !is_known_gone(&one) {
                continue;
            }
            let name = one.file_name(true);
            let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
            let Ok(file) = kernel::open(folder.raw(), name.as_c_str(), flags, 0) else { continue };
            // Asked again, after the file was opened. If a later process of that id makes one, it is another file.
            if is_known_gone(&one) && is_abandoned(&file, one, own_namespace) {
                // Another process may have swept it already.
                let _ = kernel::unlink_same(folder, name.as_c_str(), &file);
            }
        }
    }
}

/// True if a sweep asks for that process, with so many files before it. Where thousands live a new process does not ask
/// for them all: sixteen sweeps do.
fn is_asked_for(pid: u32, before: usize, turn: u32) -> bool {
    before < ASKED_FOR || pid % SHARE == turn % SHARE
}

/// True of a file that a process left which its number says is gone, or which is of another PID namespace.
fn is_abandoned(file: &OwnedDescriptor, publisher: Publisher, own_namespace: u64) -> bool {
    const VERSION_AT: usize = std::mem::offset_of!(RegistryHeader, version);
    const NAMESPACE_AT: usize = std::mem::offset_of!(RegistryHeader, pid_namespace);
    let mut start = [0; NAMESPACE_AT + 8];
    let length = kernel::read(file, &mut start).unwrap_or(0);
    let part = |at: usize, size: usize| start[..length].get(at..at + size);
    // Another version of the library has other rules for names, and may not hold its files.
    let is_its = part(NAMESPACE_AT, 8) == Some(&publisher.namespace.to_ne_bytes());
    let is_held = || {
        part(VERSION_AT, 4) != Some(&VERSION.to_ne_bytes())
            || kernel::is_held(file.raw()).unwrap_or(true)
    };
    is_its && (publisher.namespace == own_namespace || !is_held())
}

/// The names in a buffer of `linux_dirent64` records: inode (8 bytes), offset (8), record length
/// (2), type (1), name, NUL.
struct Names<'a>(&'a [u8]);

impl<'a> Iterator for Names<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let length = u16::from_ne_bytes(self.0.get(16..18)?.try_into().ok()?);
        let (record, rest) = self.0.split_at_checked(usize::from(length))?;
        self.0 = rest;
        CStr::from_bytes_until_nul(record.get(19..)?).ok().map(CStr::to_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::{is_asked_for, ASKED_FOR, SHARE};

    #[test]
    fn of_many_processes_few_are_asked_for_and_in_time_all() {
        const MANY: u32 = 10_000;
        let asked = |turn| (0..MANY).filter(move |&i| is_asked_for(MANY - i, i as usize, turn));
        for first in [1, 16, 4711, 4_194_304] {
            assert!(asked(first).count() <= ASKED_FOR + (MANY / SHARE) as usize + 1);
            let all: std::collections::BTreeSet<u32> =
                (first..first + SHARE).flat_map(asked).collect();
            assert_eq!(all.len(), MANY as usize, "from {first} on");
        }
    }
}
