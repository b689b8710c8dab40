//! Removes the files of processes that ended without removing them, by kill -9 or _exit.

use std::ffi::CStr;

use super::folder::file_name;
use super::kernel::{self, Fd};
use super::layout::Header;

/// Of so many files each process is asked for.
const ASKED_FOR: usize = 64;
/// Of those beyond, one of so many.
const SHARE: u32 = 16;

/// Removes the files of processes that are gone, in this user's folder; of many files, some of them.
///
/// A file of another pid namespace is left alone, because its process cannot be seen from here. `turn` grows by one from one
/// sweep to the next, or about so.
pub(super) fn sweep(folder: &Fd, own_namespace: u64, turn: u32) {
    if own_namespace == 0 {
        return;
    }
    let mut before = 0;
    // The stack may be a small one.
    let mut entries = [0; 1024];
    while let Ok(length @ 1..) = kernel::read_entries(folder, &mut entries) {
        for pid in Names(&entries[..length]).filter_map(parse_pid) {
            before += 1;
            if !is_asked_for(pid, before - 1, turn) || !kernel::is_gone(pid) {
                continue;
            }
            let name = file_name(pid, true);
            let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
            let Ok(file) = kernel::open(folder.raw(), name.as_c_str(), flags, 0) else { continue };
            // Asked again, after the file was opened. If a later process of that id makes one, it is another file.
            if kernel::is_gone(pid) && pid_namespace(&file) == Some(own_namespace) {
                // Another process may have swept it already.
                let _ = kernel::unlink_same(folder, name.as_c_str(), &file);
            }
        }
    }
}

/// Whether a sweep asks for that process, with so many files before it. Where thousands live a new one does not ask for them all: sixteen sweeps
/// do.
fn is_asked_for(pid: u32, before: usize, turn: u32) -> bool {
    before < ASKED_FOR || pid % SHARE == turn % SHARE
}

/// The pid namespace recorded in a file's header.
fn pid_namespace(file: &Fd) -> Option<u64> {
    const OFFSET: usize = std::mem::offset_of!(Header, pid_namespace);
    let mut start = [0; OFFSET + 8];
    let length = kernel::read(file, &mut start).ok()?;
    let bytes: [u8; 8] = start[..length].get(OFFSET..)?.try_into().ok()?;
    Some(u64::from_ne_bytes(bytes))
}

/// The process id that a file name is. `None` for any other spelling of the number, such as with leading zeros.
pub(super) fn parse_pid(name: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(name).ok()?;
    let canonical = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|&pid| canonical && pid <= i32::MAX as u32)
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
    use super::{is_asked_for, parse_pid, ASKED_FOR, SHARE};

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

    #[test]
    fn only_canonical_process_ids_are_taken() {
        assert_eq!(parse_pid(b"1"), Some(1));
        assert_eq!(parse_pid(b"4194304"), Some(4_194_304));
        for name in ["", "0", "01", "+1", "-1", ".17", "17x", "2147483648", "99999999999"] {
            assert_eq!(parse_pid(name.as_bytes()), None, "{name}");
        }
    }
}
