//! Why a process cannot publish its connections.

use std::{fmt, io};

use super::folder::FolderPath;

/// Why the registry is off for a process. To make one allocates nothing, because fork children do so too.
#[derive(Debug)]
pub enum RegistryError {
    /// A step on the folder or the file failed.
    Io {
        /// What was tried, as in "cannot {step}".
        step: &'static str,
        /// The folder concerned.
        folder: FolderPath,
        /// What the kernel answered.
        source: io::Error,
    },
    /// This process's user has no number in its user namespace.
    UnknownUser,
    /// /proc does not tell this process's PID namespace.
    UnknownNamespace,
    /// The folder belongs to another user, or others may read it.
    NotPrivate {
        /// The folder concerned.
        folder: FolderPath,
    },
    /// RLIMIT_FSIZE is smaller than the table.
    FileSizeLimit {
        /// The limit in force, in bytes.
        limit: u64,
    },
    /// The folder's path is longer than the kernel or this registry takes.
    PathTooLong,
}

impl RegistryError {
    pub(super) fn io(step: &'static str, folder: FolderPath) -> impl FnOnce(io::Error) -> Self {
        move |source| RegistryError::Io { step, folder, source }
    }
}

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegistryError::Io { step, folder, source } => {
                write!(f, "cannot {step} {folder}: {source}; make /dev/shm a writable tmpfs")
            }
            RegistryError::NotPrivate { folder } => write!(
                f,
                "{folder} is not a folder that only this user may read; remove it, or chmod 711 it"
            ),
            RegistryError::UnknownUser => f.write_str(
                "this user has no number of its own in the user namespace; map it there (unshare --map-current-user)",
            ),
            RegistryError::UnknownNamespace => f.write_str(
                "/proc does not tell this process's PID namespace (/proc/self/ns/pid); mount /proc",
            ),
            RegistryError::FileSizeLimit { limit } => write!(
                f,
                "the file size limit of {limit} bytes leaves no room for the table of connections; \
                 raise ulimit -f"
            ),
            RegistryError::PathTooLong => f.write_str("the registry folder's path is too long"),
        }
    }
}

impl std::error::Error for RegistryError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RegistryError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
