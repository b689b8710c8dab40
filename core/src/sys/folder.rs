//! Folders, and the names in them.

use super::{call, file, Errno, Fd, Result};
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

/// Opens a folder to name what lies below it, not to read it.
pub(crate) fn open_above(path: &CStr) -> Result<Fd> {
    file::open(path, libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC, 0)
}

/// Opens what has that path below an open folder. Somebody else may rule there: neither a symbolic link nor another file system,
/// which could make the caller wait, leads away from the folder. Everybody may read a file that this makes (O_CREAT).
///
/// # Errors
///
/// ELOOP for a symbolic link, EXDEV for another file system.
pub(crate) fn open_within(above: Fd, path: &CStr, flags: i32) -> Result<Fd> {
    // SAFETY: plain data, of which zero is a valid value.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (flags | libc::O_NOFOLLOW | libc::O_CLOEXEC) as u64;
    how.mode = if flags & libc::O_CREAT != 0 { 0o644 } else { 0 };
    how.resolve = libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_XDEV;
    let (at, size) = (&raw const how as usize, size_of_val(&how));
    match call!(openat2, above, path.as_ptr() as usize, at, size) {
        // It comes with Linux 5.6, and filters may forbid it.
        Err(Errno(libc::ENOSYS | libc::EPERM)) => {
            call!(openat, above, path.as_ptr() as usize, how.flags, how.mode)
        }
        opened => opened,
    }
    .map(|fd| fd as Fd)
}

/// A path of what is open, for calls that take a path alone: whatever has its name by now, they come to this. Allocates nothing.
pub(crate) struct OpenedPath([u8; 32]);

impl OpenedPath {
    pub(crate) fn of(opened: Fd) -> OpenedPath {
        let mut path = [0; 32];
        // A zero stays behind the number, which has ten digits at most.
        let _ =
            std::io::Write::write_fmt(&mut &mut path[..], format_args!("/proc/self/fd/{opened}"));
        OpenedPath(path)
    }

    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// What the kernel knows of a path by itself. No file system is asked: one that a program serves may not answer. A symbolic link
/// is not followed at the end.
pub(crate) struct Known {
    /// Of the file system.
    pub(crate) device: (u32, u32),
    pub(crate) inode: u64,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
}

impl Known {
    /// # Errors
    /// The kernel's, where there is nothing of that path.
    pub(crate) fn of(path: &CStr) -> Result<Known> {
        const FLAGS: i32 =
            libc::AT_SYMLINK_NOFOLLOW | libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
        Self::by(path, FLAGS)
    }

    /// The same where the path may end in a symbolic link. The user who named the path answers for that.
    ///
    /// # Errors
    ///
    /// As [`of`](Self::of).
    pub(crate) fn of_named(path: &CStr) -> Result<Known> {
        Self::by(path, libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT)
    }

    fn by(path: &CStr, flags: i32) -> Result<Known> {
        // SAFETY: plain data, of which zero is a valid value.
        let mut found: libc::statx = unsafe { std::mem::zeroed() };
        let (name, at) = (path.as_ptr() as usize, &raw mut found as usize);
        match call!(statx, libc::AT_FDCWD, name, flags, libc::STATX_BASIC_STATS, at) {
            // Filters of containers that are older than the call forbid it.
            Err(Errno(libc::ENOSYS | libc::EPERM)) => {
                // SAFETY: stat is plain data, zero is a valid value of it.
                let mut found: libc::stat = unsafe { std::mem::zeroed() };
                let (at, flags) = (&raw mut found as usize, flags & libc::AT_SYMLINK_NOFOLLOW);
                call!(newfstatat, libc::AT_FDCWD, name, at, flags)?;
                let device = (libc::major(found.st_dev), libc::minor(found.st_dev));
                let (inode, mode, uid) = (found.st_ino, found.st_mode, found.st_uid);
                Ok(Known { device, inode, mode, uid })
            }
            Err(e) => Err(e),
            Ok(_) => {
                let device = (found.stx_dev_major, found.stx_dev_minor);
                let (inode, mode, uid) = (found.stx_ino, found.stx_mode.into(), found.stx_uid);
                Ok(Known { device, inode, mode, uid })
            }
        }
    }

    /// True of a folder in which only that user makes and removes names.
    pub(crate) fn is_private(&self, uid: u32) -> bool {
        is_private(self.mode, self.uid, uid)
    }
}

/// True of a mode and an owner of a folder in which only that user makes and removes names.
pub(crate) fn is_private(mode: u32, owner: u32, uid: u32) -> bool {
    mode & libc::S_IFMT == libc::S_IFDIR && owner == uid && mode & 0o022 == 0
}

/// What the kernel knows of a name in an open folder. It does not follow a symbolic link.
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

/// So many names of a folder are looked at. A user who may make names in it may make any number.
pub(crate) const MOST_NAMES: u32 = 16_384;

/// Calls `each` with every name in a folder that was just opened, and with [`MOST_NAMES`] at most.
pub(crate) fn each_name(folder: Fd, mut each: impl FnMut(&CStr)) -> Result<()> {
    let mut names = 0;
    each_name_while(folder, |name| {
        each(name);
        names += 1;
        names < MOST_NAMES
    })
}

/// As [`each_name`], until `each` says that it needs no more.
pub(crate) fn each_name_while(folder: Fd, mut each: impl FnMut(&CStr) -> bool) -> Result<()> {
    // Each entry has an inode (8 bytes), an offset (8), its length (2), a type (1), the name and a zero.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_names_are_looked_at_than_a_limit() {
        let path = format!("/dev/shm/sanshim-names-test-{}", std::process::id());
        std::fs::create_dir(&path).unwrap();
        for number in 0..MOST_NAMES {
            std::fs::write(format!("{path}/{number}"), "").unwrap();
        }
        let opened = open(&std::ffi::CString::new(path.as_str()).unwrap()).unwrap();
        let mut names = 0;
        each_name(opened, |_| names += 1).unwrap();
        file::close(opened);
        std::fs::remove_dir_all(path).unwrap();
        // The folder itself and the one above have names, too.
        assert_eq!(names, MOST_NAMES);
    }
}
