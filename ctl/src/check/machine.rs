//! What the shim needs of this machine. Each thing is really tried.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;

use sanshim_core::registry::Registry;

use super::Finding;

/// With less room in /dev/shm than this, in bytes, a container is likely to run out of it.
const LITTLE_ROOM: u64 = 4 << 20;

/// Creates and removes a registry file.
pub(super) fn registry() -> Finding {
    let registry = Registry::open(b"sanctl").map_err(|error| error.to_string())?;
    let slot = registry.allocate();
    registry.remove();
    if slot.is_none() {
        return Err("/dev/shm is full; free some room in it".to_owned());
    }
    let found = file_system(c"/dev/shm");
    let found = found.map_err(|error| format!("/dev/shm: {error}; mount a tmpfs on it"))?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    if free < LITTLE_ROOM {
        return Err(format!("only {} KiB are free in /dev/shm; free some room in it", free >> 10));
    }
    Ok(format!("/dev/shm is usable, {} MiB free", free >> 20))
}

/// What the file system of a path has.
pub(super) fn file_system(path: &CStr) -> io::Result<libc::statvfs> {
    let mut found = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: a NUL-terminated path; the call fills one statvfs.
    if unsafe { libc::statvfs(path.as_ptr(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: filled by the successful call.
    Ok(unsafe { found.assume_init() })
}

/// Creates and seals a memory file, as each connection's segment is.
pub(super) fn segments() -> Finding {
    seal_a_memory_file()
        .map(|()| "memory files can be made and sealed".to_owned())
        .map_err(|error| format!("no sealed memory files: {error}; allow memfd_create"))
}

fn seal_a_memory_file() -> io::Result<()> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a NUL-terminated name.
    let file = owned(unsafe { libc::memfd_create(c"sanctl-check".as_ptr(), flags) })?;
    // SAFETY: a descriptor of ours.
    succeeded(unsafe { libc::ftruncate(file.as_raw_fd(), 4096) })?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: a descriptor of ours.
    succeeded(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })
}

/// Binds a Unix socket in the folder in which processes find each other.
pub(super) fn rendezvous() -> Finding {
    let path = format!("/dev/shm/sanctl-check-{}", std::process::id());
    let bound = UnixListener::bind(&path);
    let removed = std::fs::remove_file(&path);
    bound.and(removed).map(|()| "Unix sockets can be bound in /dev/shm".to_owned()).map_err(
        |error| format!("no Unix sockets in /dev/shm: {error}; allow AF_UNIX sockets, and bind"),
    )
}

pub(super) fn owned(descriptor: i32) -> io::Result<OwnedFd> {
    succeeded(descriptor)?;
    // SAFETY: just made, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn succeeded(result: i32) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
