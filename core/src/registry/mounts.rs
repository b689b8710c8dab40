//! Shared memory: the caller's, and that of other mount namespaces, such as containers', reached through
//! /proc/PID/root.
//!
//! Somebody else rules over what lies there. So neither a symbolic link nor a mount leads out of it. Of another
//! namespace `sanctl` reads nothing but a tmpfs, and of any no more than a limit.

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use syscalls::{syscall, Errno, Sysno};

use super::numbers::{all, namespace_of};
use crate::sys::folder;

/// Where each has it.
pub(super) const SHARED_MEMORY: &str = "/dev/shm";
/// The type of a mount that the caller may read.
const TMPFS: i64 = 0x0102_1994;
/// So many names are looked at in each folder of the caller's shared memory, and in all of another one.
pub(super) const MOST_NAMES: usize = 16_384;

/// Device and inode of a shared memory's folder.
pub(super) type FolderIdentity = (u64, u64);

/// A shared memory of another mount namespace.
pub(super) struct SharedFolder {
    /// A process that has it.
    pub(super) pid: u32,
    pub(super) identity: FolderIdentity,
}

/// All that can be seen from here.
#[derive(Default)]
pub(super) struct Mounts {
    /// The shared memory of each mount namespace.
    of: HashMap<u64, FolderIdentity>,
    /// The memories of other mount namespaces, each once.
    pub(super) others: Vec<SharedFolder>,
    /// Why some cannot be looked at, and of which process.
    pub(super) problems: Vec<(u32, io::Error)>,
}

impl Mounts {
    pub(super) fn look() -> Mounts {
        let own = namespace_of("self", "mnt");
        let mut found = Mounts::default();
        if let (Some(own), Some(identity)) = (own, own_identity()) {
            found.of.insert(own, identity);
        }
        let mut failed = HashMap::new();
        for pid in all() {
            // A process that the caller may not look at tells nothing.
            let Some(namespace) = namespace_of(pid, "mnt") else { continue };
            if found.of.contains_key(&namespace) {
                continue;
            }
            match SharedFolder::of(pid) {
                Ok(shared) => {
                    failed.remove(&namespace);
                    let is_new = !found.of.values().any(|known| *known == shared.identity);
                    found.of.insert(namespace, shared.identity);
                    found.others.extend(Some(shared).filter(|_| is_new));
                }
                // It has none, or the process ended in this moment.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => drop(failed.entry(namespace).or_insert((pid, error))),
            }
        }
        found.problems = failed.into_values().collect();
        found.problems.sort_by_key(|(pid, _)| *pid);
        found
    }

    /// Whether a process has that shared memory, as far as the caller may know.
    pub(super) fn has(&self, pid: u32, identity: FolderIdentity) -> bool {
        let Some(namespace) = namespace_of(pid, "mnt") else { return true };
        match self.of.get(&namespace) {
            Some(of) => *of == identity,
            // It is newer than the look.
            None => SharedFolder::of(pid).is_ok_and(|shared| shared.identity == identity),
        }
    }
}

/// The caller's.
pub(super) fn own_identity() -> Option<FolderIdentity> {
    let found = fs::metadata(SHARED_MEMORY).ok()?;
    Some((found.dev(), found.ino()))
}

impl SharedFolder {
    fn of(pid: u32) -> io::Result<SharedFolder> {
        let found = open_in(pid, SHARED_MEMORY.as_ref(), false)?.metadata()?;
        Ok(SharedFolder { pid, identity: (found.dev(), found.ino()) })
    }

    /// The path of what has that name in it, for [`open_in`].
    pub(super) fn path_of(&self, name: &OsStr) -> PathBuf {
        Path::new(SHARED_MEMORY).join(name)
    }

    /// The names in it, at most so many.
    pub(super) fn names(&self, most: usize) -> Vec<OsString> {
        self.names_in(SHARED_MEMORY.as_ref(), most)
    }

    /// The names in a folder in it, at most so many; none if it may not be read.
    pub(super) fn names_in(&self, folder: &Path, most: usize) -> Vec<OsString> {
        let opened = open_in(self.pid, folder, false);
        opened.and_then(|folder| names(&folder, most)).unwrap_or_default()
    }
}

/// Device and inode of a folder in the root of a process. `None` is the caller. This follows no symbolic link in
/// another's root. The caller knows that the path is on no file system of the network.
///
/// # Errors
///
/// The kernel's, where there is no such folder or the caller may not look.
pub fn identity_of(pid: Option<u32>, path: &Path) -> io::Result<(u64, u64)> {
    let found = match pid {
        None => fs::metadata(path)?,
        Some(pid) => find_in(pid, path)?.metadata()?,
    };
    match found.file_type() {
        kind if kind.is_dir() => Ok((found.dev(), found.ino())),
        // The kernel opens the link itself where it ends the path.
        kind if kind.is_symlink() => Err(io::Error::from_raw_os_error(libc::ELOOP)),
        _ => Err(io::ErrorKind::NotADirectory.into()),
    }
}

/// Finds what has that path in the root of a process, without opening it.
fn find_in(pid: u32, path: &Path) -> io::Result<File> {
    let below = CString::new(path.strip_prefix("/").unwrap_or(path).as_os_str().as_bytes())?;
    let root = CString::new(format!("/proc/{pid}/root"))?;
    let root = open_at(libc::AT_FDCWD, &root, libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    open_at(root.as_raw_fd(), &below, flags, libc::RESOLVE_NO_SYMLINKS)
}

/// Opens a file or a folder of a tmpfs in the root of a process. It opens nothing else: a program that serves another
/// file system could have the caller wait.
pub(super) fn open_in(pid: u32, path: &Path, to_write: bool) -> io::Result<File> {
    let not_such = || io::Error::new(io::ErrorKind::NotFound, "is no file or folder of a tmpfs");
    let below = path.strip_prefix(SHARED_MEMORY).map_err(|_| not_such())?;
    let base = find_in(pid, SHARED_MEMORY.as_ref())?;
    // SAFETY: plain data, of which zero is a valid value.
    let mut system: libc::statfs64 = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills one struct statfs.
    unsafe { syscall!(Sysno::fstatfs, base.as_raw_fd(), &raw mut system) }.map_err(os)?;
    if system.f_type != TMPFS {
        return Err(not_such());
    }
    let found = if below == Path::new("") { base } else { find_below(&base, below)? };
    let kind = found.metadata()?.file_type();
    if !kind.is_dir() && !kind.is_file() {
        return Err(not_such());
    }
    open_found(&found, to_write)
}

/// Opens a file or a folder of the caller's shared memory, or of a folder elsewhere that the caller named. Another user may rule
/// in it: what he put in the place of a folder since is not opened, be it a link or a mount.
///
/// # Errors
/// The kernel's: ELOOP for a symbolic link, EXDEV for a mount.
pub(super) fn open_here(path: &Path, to_write: bool) -> io::Result<File> {
    let parts = match path.strip_prefix(SHARED_MEMORY) {
        Ok(below) => (Path::new(SHARED_MEMORY), below),
        Err(_) => (path.parent().unwrap_or(path), Path::new(path.file_name().unwrap_or_default())),
    };
    let base = CString::new(parts.0.as_os_str().as_bytes())?;
    let base = open_at(libc::AT_FDCWD, &base, libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let found = find_below(&base, parts.1)?;
    let kind = found.metadata()?.file_type();
    if kind.is_symlink() {
        return Err(io::Error::from_raw_os_error(libc::ELOOP));
    }
    if !kind.is_dir() && !kind.is_file() {
        return Err(io::Error::other("is not a regular file; remove it"));
    }
    open_found(&found, to_write)
}

/// Finds what has that path below an open folder, without opening it.
fn find_below(base: &File, below: &Path) -> io::Result<File> {
    let below = CString::new(below.as_os_str().as_bytes())?;
    folder::open_within(base.as_raw_fd(), &below, libc::O_PATH)
        // SAFETY: a descriptor that was just made, and belongs to nobody else.
        .map(|fd| unsafe { File::from_raw_fd(fd) })
        .map_err(|error| io::Error::from_raw_os_error(error.0))
}

/// Opens the very one that was looked at.
fn open_found(found: &File, to_write: bool) -> io::Result<File> {
    let again = CString::new(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    let access = if to_write { libc::O_RDWR } else { libc::O_RDONLY };
    open_at(libc::AT_FDCWD, &again, access | libc::O_NONBLOCK | libc::O_NOCTTY, 0)
}

fn open_at(at: i32, path: &CStr, flags: i32, resolve: u64) -> io::Result<File> {
    // SAFETY: plain data, of which zero is a valid value.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    (how.flags, how.resolve) = ((flags | libc::O_CLOEXEC) as u64, resolve);
    let size = size_of_val(&how);
    // SAFETY: a path that ends with zero, and a struct of that size.
    unsafe { syscall!(Sysno::openat2, at, path.as_ptr(), &raw const how, size) }
        // SAFETY: a descriptor that was just made, and belongs to nobody else.
        .map(|fd| unsafe { File::from_raw_fd(fd as i32) })
        .map_err(os)
}

fn os(error: Errno) -> io::Error {
    io::Error::from_raw_os_error(error.into_raw())
}

/// The names in an open folder, at most so many.
pub(super) fn names(folder: &File, most: usize) -> io::Result<Vec<OsString>> {
    let mut all = Vec::new();
    let entries = fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))?;
    for entry in entries.take(most) {
        all.push(OsString::from_vec(entry?.file_name().into_vec()));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A folder in shared memory that is removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Folder {
            let path = format!("{SHARED_MEMORY}/sanshim-mounts-{}-{test}", std::process::id());
            fs::create_dir(&path).unwrap();
            Folder(path.into())
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn open(path: &Path) -> io::Result<File> {
        open_in(std::process::id(), path, false)
    }

    #[test]
    fn files_and_folders_of_shared_memory_are_opened() {
        let folder = Folder::new("files");
        let file = folder.0.join("file");
        fs::write(&file, "text").unwrap();
        let identity = |found: fs::Metadata| (found.dev(), found.ino());
        let opened = identity(open(&file).unwrap().metadata().unwrap());
        assert_eq!(opened, identity(fs::metadata(&file).unwrap()));
        assert!(open(&folder.0).unwrap().metadata().unwrap().is_dir());
        let own = SharedFolder::of(std::process::id()).unwrap();
        assert_eq!(Some(own.identity), own_identity());
        assert_eq!(own.names_in(&folder.0, 2), ["file"]);
        fs::write(folder.0.join("other"), "").unwrap();
        assert_eq!(own.names_in(&folder.0, 1).len(), 1);
        let written = open_in(std::process::id(), &file, true).unwrap();
        assert!(std::os::unix::fs::FileExt::write_all_at(&written, b"T", 0).is_ok());
    }

    #[test]
    fn what_leads_out_or_could_wait_is_not_opened() {
        let folder = Folder::new("others");
        symlink("/etc", folder.0.join("out")).unwrap();
        symlink("file", folder.0.join("link")).unwrap();
        // Which leads to a tmpfs.
        symlink(&folder.0, folder.0.join("again")).unwrap();
        fs::write(folder.0.join("file"), "text").unwrap();
        let pipe = folder.0.join("pipe");
        let name = CString::new(pipe.as_os_str().as_bytes()).unwrap();
        // SAFETY: a path that ends with zero.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        for path in
            ["out", "out/passwd", "link", "again/file", "pipe", "../../../etc/passwd", "missing"]
        {
            let opened = open(&folder.0.join(path));
            assert!(opened.is_err(), "{path}");
        }
        for path in ["/etc/passwd", "/proc/self/status", "/dev/zero", "/"] {
            assert!(open(Path::new(path)).is_err(), "{path}: not of a tmpfs");
        }
    }

    #[test]
    fn a_link_in_the_place_of_a_folder_is_not_followed() {
        let folder = Folder::new("here");
        fs::create_dir(folder.0.join("own")).unwrap();
        let file = folder.0.join("own/file");
        fs::write(&file, "text").unwrap();
        assert!(open_here(&file, true).is_ok() && open_here(&folder.0, false).is_ok());
        // Another user's folder becomes a link, to his choice of files.
        fs::rename(folder.0.join("own"), folder.0.join("moved")).unwrap();
        symlink("moved", folder.0.join("own")).unwrap();
        assert!(open_here(&file, false).is_err() && fs::File::open(&file).is_ok());
        let opened = open_here(&folder.0.join("own"), false);
        assert_eq!(opened.unwrap_err().raw_os_error(), Some(libc::ELOOP));
        // The caller names a folder of another root, and may name a link.
        let elsewhere = std::env::temp_dir().join(format!("sanshim-here-{}", std::process::id()));
        symlink(folder.0.join("moved"), &elsewhere).unwrap();
        assert!(open_here(&elsewhere.join("file"), false).is_ok());
        fs::remove_file(elsewhere).unwrap();
    }

    #[test]
    fn a_process_has_its_own_shared_memory_alone() {
        let (mounts, own) = (Mounts::look(), own_identity().unwrap());
        let pid = std::process::id();
        assert!(mounts.has(pid, own));
        assert!(!mounts.has(pid, (own.0, own.1 + 1)));
        // One that was made since.
        let before = Mounts::default();
        assert!(before.has(pid, own) && !before.has(pid, (own.0 + 1, own.1)));
        assert!(mounts.others.iter().all(|other| other.identity != own));
    }
}
