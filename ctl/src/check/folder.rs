//! Whether programs can meet in the folder that the configuration names.

use std::fs::{self, Metadata};
use std::io::{Error, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sanshim_core::sys::mounts;

use super::Finding;

/// A file system of the network is not looked at: it may not answer.
pub(super) fn judge(folder: &Path) -> Finding {
    let shown = folder.display();
    if let Some(kind) = mounts::remote_kind(None, folder) {
        return Err(format!(
            "{shown} is on {kind}, which is not of this host alone; name a folder of a tmpfs"
        ));
    }
    let found = fs::metadata(folder).map_err(|error| match error.kind() {
        ErrorKind::NotFound => format!("{shown} is missing; mkdir -m 1777 {shown}, or mount it"),
        _ => format!("{shown}: {error}; let the program's user reach it"),
    })?;
    if !found.is_dir() {
        return Err(format!("{shown} is no folder; name one"));
    }
    let user = rustix::process::geteuid().as_raw();
    let usual = folder.join(format!("sanshim-user-{user}"));
    let own = fs::symlink_metadata(&usual).ok();
    let is_own = own.as_ref().is_some_and(|own| is_of(own, user));
    if is_full(folder, user) {
        return Err(format!("{shown} is full; free some room in it"));
    }
    bind_in(if is_own { &usual } else { folder }).map_err(|error| match error.raw_os_error() {
        Some(libc::EROFS) => format!("{shown} is read-only; mount it with rw"),
        Some(libc::ENOSPC | libc::EDQUOT) => format!("{shown} is full; free some room in it"),
        Some(libc::EACCES | libc::EPERM) => format!(
            "user {user} may make no names in {shown}; chmod 1777 {shown}, or give it to that user"
        ),
        _ => format!("no Unix sockets in {shown}: {error}; allow them there"),
    })?;
    let mut line = format!("{shown} is usable");
    let who = match found.mode() {
        mode if mode & 0o1000 != 0 => None,
        mode if mode & 0o002 != 0 => Some("every user"),
        mode if mode & 0o020 != 0 => Some("each member of its group"),
        _ => None,
    };
    if let Some(who) = who {
        line += &format!(", but {who} may rename what others have in it; chmod +t {shown}");
    }
    if own.is_some() && !is_own {
        line += &format!("; {} is somebody else's, so another name is used", usual.display());
    }
    Ok(line)
}

/// True if only that user makes names in it, as programs demand of his folder.
fn is_of(found: &Metadata, user: u32) -> bool {
    found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0
}

/// True if its file system has no block or no inode left for that user. One without a limit says that it has none at all.
fn is_full(folder: &Path, user: u32) -> bool {
    rustix::fs::statvfs(folder).is_ok_and(|found| {
        let (blocks, files) = match user {
            0 => (found.f_bfree, found.f_ffree),
            _ => (found.f_bavail, found.f_favail),
        };
        (found.f_blocks > 0 && blocks == 0) || (found.f_files > 0 && files == 0)
    })
}

/// Binds a Unix socket, as each program does. Processes of two containers may have one number, so a time is the name.
fn bind_in(folder: &Path) -> Result<(), Error> {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos() as u64;
    let path: PathBuf = folder.join(format!("sanctl-{since:x}"));
    UnixListener::bind(&path)?;
    fs::remove_file(&path)
}
