//! Folders, and the names in them.

use super::{call, file, Fd, Result};
use std::ffi::CStr;
use std::time::{Duration, SystemTime};

/// Makes a folder. EEXIST if there is anything of that name.
pub(crate) fn make(path: &CStr, mode: u32) -> Result<()> {
    call!(mkdirat, libc::AT_FDCWD, path.as_ptr() as usize, mode).map(drop)
}

/// Opens a folder to be read. Fails for a symbolic link.
pub(crate) fn open(path: &CStr) -> Result<Fd> {
    const FLAGS: i32 = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    file::open(path, FLAGS, 0)
}

/// What is known of a name in an open folder. A symbolic link is not followed.
pub(crate) fn status_in(folder: Fd, name: &CStr) -> Result<libc::stat> {
    // SAFETY: stat is plain data, zero is a valid value of it.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    let at = &mut status as *mut _ as usize;
    call!(newfstatat, folder, name.as_ptr() as usize, at, libc::AT_SYMLINK_NOFOLLOW)?;
    Ok(status)
}

/// True if what has that name in an open folder was last written longer ago than that.
pub(crate) fn is_older(folder: Fd, name: &CStr, than: Duration) -> bool {
    let written = status_in(folder, name).map(|status| status.st_mtime as u64);
    let since = written.map(|at| SystemTime::UNIX_EPOCH + Duration::from_secs(at));
    since.is_ok_and(|since| since.elapsed().is_ok_and(|age| age > than))
}

/// Removes a name from an open folder.
pub(crate) fn remove_from(folder: Fd, name: &CStr) -> Result<()> {
    call!(unlinkat, folder, name.as_ptr() as usize, 0).map(drop)
}

/// Calls `each` with every name in a folder that was just opened.
pub(crate) fn each_name(folder: Fd, mut each: impl FnMut(&CStr)) -> Result<()> {
    each_name_while(folder, |name| {
        each(name);
        true
    })
}

/// As [`each_name`], until `each` says that it needs no more.
pub(crate) fn each_name_while(folder: Fd, mut each: impl FnMut(&CStr) -> bool) -> Result<()> {
    // Of each entry: inode (8 bytes), offset (8), its length (2), type (1), the name and a zero.
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    // The stack may be a small one.
    let mut buffer = [0u64; 128];
    loop {
        let size = std::mem::size_of_val(&buffer);
        let n = call!(getdents64, folder, buffer.as_mut_ptr() as usize, size)?;
        if n == 0 {
            return Ok(());
        }
        // SAFETY: the kernel filled `n` bytes of the buffer.
        let mut rest = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), n) };
        while rest.len() > NAME {
            if let Ok(name) = CStr::from_bytes_until_nul(&rest[NAME..]) {
                if !each(name) {
                    return Ok(());
                }
            }
            let length = u16::from_ne_bytes([rest[LENGTH], rest[LENGTH + 1]]) as usize;
            rest = rest.get(length.max(1)..).unwrap_or(&[]);
        }
    }
}
