//! Why a process cannot publish its connections.

use std::io;
use thiserror::Error;

use super::folder::FolderPath;

/// Why the registry is off for a process. To make one allocates nothing, because fork children do so too.
#[derive(Debug, Error)]
pub enum RegistryError {
    /// A step on the folder or the file failed.
    #[error("cannot {step} {folder}: {source}; make /dev/shm a writable tmpfs with room")]
    Io {
        /// What was tried, as in "cannot {step}".
        step: &'static str,
        /// The folder concerned.
        folder: FolderPath,
        /// What the kernel answered.
        source: io::Error,
    },
    /// This process's user has no number in its user namespace.
    #[error("this user has no number of its own in the user namespace; map it there (unshare --map-current-user)")]
    UnknownUser,
    /// /proc does not tell this process's PID namespace.
    #[error("/proc does not tell this process's PID namespace (/proc/self/ns/pid); mount /proc")]
    UnknownNamespace,
    /// The folder belongs to another user, or others may read it.
    #[error("{folder} is not a folder that only this user may read; remove it, or chmod 711 it")]
    NotPrivate {
        /// The folder concerned.
        folder: FolderPath,
    },
    /// RLIMIT_FSIZE is smaller than the table.
    #[error("the file size limit of {limit} bytes leaves no room for the table of connections; raise ulimit -f")]
    FileSizeLimit {
        /// The limit in force, in bytes.
        limit: u64,
    },
    /// The folder's path is longer than the kernel or this registry takes.
    #[error("the registry folder's path is too long")]
    PathTooLong,
}

impl RegistryError {
    pub(super) fn io(step: &'static str, folder: FolderPath) -> impl FnOnce(io::Error) -> Self {
        move |source| RegistryError::Io { step, folder, source }
    }
}
