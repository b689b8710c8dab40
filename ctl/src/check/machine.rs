//! What the shim needs of this machine. The check really tries each thing.

use std::os::unix::net::UnixListener;

use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, statvfs, MemfdFlags, SealFlags};
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
    let found = statvfs("/dev/shm");
    let found = found.map_err(|error| format!("/dev/shm: {error}; mount a tmpfs on it"))?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    if free < LITTLE_ROOM {
        return Err(format!("only {} KiB are free in /dev/shm; free some room in it", free >> 10));
    }
    Ok(format!("/dev/shm is usable, {} MiB free", free >> 20))
}

/// Creates and seals a memory file, as each connection's segment is.
pub(super) fn segments() -> Finding {
    seal_a_memory_file()
        .map(|()| "memory files can be made and sealed".to_owned())
        .map_err(|error| format!("no sealed memory files: {error}; allow memfd_create"))
}

fn seal_a_memory_file() -> rustix::io::Result<()> {
    let file = memfd_create("sanctl-check", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, 4096)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
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
