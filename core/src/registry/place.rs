//! Where a process publishes, as a reader found it. The reader opens the file again later, and asks whether it is still
//! the process's.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::file;
use super::kernel;
use super::layout::RegistryHeader;
use super::mounts::{self, FolderIdentity};
use super::publisher::Publisher;

/// A registry file, and the process to which it belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistryPlace {
    pub(super) path: PathBuf,
    /// The path is in the root of this process, if it is not in the caller's.
    pub(super) root: Option<u32>,
    /// The shared memory that it lies in, as far as that matters.
    pub(super) shared: Option<FolderIdentity>,
    pub(super) publisher: Publisher,
    /// The process's number here, where /proc tells by it whether the process lives.
    pub(super) near: Option<u32>,
    /// Device and inode.
    pub(super) identity: (u64, u64),
}

impl RegistryPlace {
    /// The path, for messages.
    pub fn path(&self) -> PathBuf {
        shown(self.root, &self.path)
    }

    /// Opens the file as it was found.
    ///
    /// # Errors
    /// When it cannot be opened, or another one has its name by now.
    pub(super) fn open(&self, to_write: bool) -> io::Result<File> {
        let file = open(self.root, &self.path, to_write)?;
        let found = file.metadata()?;
        if (found.dev(), found.ino()) != self.identity {
            return Err(io::Error::new(io::ErrorKind::NotFound, "is another process's by now"));
        }
        Ok(file)
    }

    /// True while the file has its name.
    pub(super) fn is_there(&self) -> bool {
        self.open(false).is_ok()
    }

    /// True when its process has ended, or executes another program. Where that is not told the process counts as alive.
    pub(super) fn has_ended(&self, file: &File, header: &RegistryHeader) -> bool {
        match self.near {
            Some(pid) => file::has_ended(header, pid),
            None => !kernel::is_held(file.as_raw_fd()).unwrap_or(true),
        }
    }
}

/// A path, in the root of that process, as people see it.
pub(super) fn shown(root: Option<u32>, path: &Path) -> PathBuf {
    root.map_or_else(
        || path.to_owned(),
        |pid| PathBuf::from(format!("/proc/{pid}/root{}", path.display())),
    )
}

/// Opens what may be any file, and may have another one's name by now. With a process it is a file in that one's root.
pub(super) fn open(root: Option<u32>, path: &Path, to_write: bool) -> io::Result<File> {
    match root {
        Some(pid) => mounts::open_in(pid, path, to_write),
        None => mounts::open_here(path, to_write),
    }
}
