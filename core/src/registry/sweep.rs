//! Removes the files of processes that ended without removing them, by kill -9 or _exit.

use std::ffi::CStr;

use super::folder::file_name;
use super::kernel::{self, Fd};
use super::layout::Header;

/// Removes the files of processes that are gone, in this user's folder.
///
/// A file of another pid namespace is left alone, because its process cannot be seen from here.
pub(super) fn sweep(folder: &Fd, own_namespace: u64) {
    if own_namespace == 0 {
        return;
    }
    // The stack may be a small one.
    let mut entries = [0; 1024];
    while let Ok(length @ 1..) = kernel::read_entries(folder, &mut entries) {
        for pid in Names(&entries[..length]).filter_map(parse_pid) {
            let name = file_name(pid, true);
            let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
            let Ok(file) = kernel::open(folder.raw(), name.as_c_str(), flags, 0) else { continue };
            // Asked after the file was opened. If a later process of that id makes one, it is another file.
            if kernel::is_gone(pid) && pid_namespace(&file) == Some(own_namespace) {
                // Another process may have swept it already.
                let _ = kernel::unlink_same(folder, name.as_c_str(), &file);
            }
        }
    }
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
    use super::parse_pid;

    #[test]
    fn only_canonical_process_ids_are_taken() {
        assert_eq!(parse_pid(b"1"), Some(1));
        assert_eq!(parse_pid(b"4194304"), Some(4_194_304));
        for name in ["", "0", "01", "+1", "-1", ".17", "17x", "2147483648", "99999999999"] {
            assert_eq!(parse_pid(name.as_bytes()), None, "{name}");
        }
    }
}
