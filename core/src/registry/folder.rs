//! The folder of one user's registry files.
//!
//! A path lies in a fixed buffer, so that nothing is allocated. Each use opens the folder, because a program may close
//! every descriptor from 3 up.

use std::ffi::CStr;
use std::fmt::{self, Write};
use std::io;

use super::error::RegistryError;
use super::kernel::{self, OwnedDescriptor};
use super::publisher::Publisher;
use crate::sys::user_folder::{UserFolder, MODE};
use crate::sys::{file, folder, Errno};

/// NUL-terminated text of at most `N - 1` bytes.
#[derive(Clone, Copy)]
pub(super) struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Text<N> {
    pub(super) const EMPTY: Self = Text { bytes: [0; N], length: 0 };

    /// `None` when the text does not fit or holds a NUL.
    pub(super) fn format(arguments: fmt::Arguments<'_>) -> Option<Self> {
        let mut text = Self::EMPTY;
        text.write_fmt(arguments).ok()?;
        Some(text)
    }

    pub(super) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        if end >= N || text.as_bytes().contains(&0) {
            return Err(fmt::Error);
        }
        self.bytes[self.length..end].copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// The path of a registry folder.
#[derive(Clone, Copy)]
pub struct FolderPath(Text<64>);

impl FolderPath {
    /// That of this process's user, which is made if it is missing: `/dev/shm/sanshim-user-<uid>`, unless another user took that
    /// name.
    pub(super) fn of_own_user() -> Result<Self, RegistryError> {
        match UserFolder::make() {
            Ok(folder) => Self::new(format_args!("{}", folder.as_str())),
            Err(Errno(libc::EOVERFLOW)) => Err(RegistryError::UnknownUser),
            Err(Errno(error)) => {
                let folder = Self::new(format_args!("/dev/shm"))?;
                Err(RegistryError::io("make a folder in", folder)(io::Error::from_raw_os_error(
                    error,
                )))
            }
        }
    }

    pub(super) fn new(path: fmt::Arguments<'_>) -> Result<Self, RegistryError> {
        Text::format(path).map(FolderPath).ok_or(RegistryError::PathTooLong)
    }

    /// Opens the folder, and makes it if it is missing. Checks that it is a folder of `owner`'s in which nobody else may
    /// read or change names.
    pub(super) fn open(self, owner: u32) -> Result<OwnedDescriptor, RegistryError> {
        let path = self.0.as_c_str();
        let made = match kernel::make_folder(path, MODE) {
            Ok(()) => true,
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => false,
            Err(error) => return Err(RegistryError::io("make", self)(error)),
        };
        let fd = self.open_existing().map_err(|error| match error.raw_os_error() {
            // It is a symbolic link, or not a folder.
            Some(libc::ELOOP | libc::ENOTDIR) => RegistryError::NotPrivate { folder: self },
            _ => RegistryError::io("open", self)(error),
        })?;
        if made {
            // The umask may have taken bits away from the owner.
            kernel::set_mode(&fd, MODE).map_err(RegistryError::io("set the mode of", self))?;
        }
        let status = kernel::status(&fd).map_err(RegistryError::io("inspect", self))?;
        if status.st_uid != owner || status.st_mode & 0o066 != 0 {
            return Err(RegistryError::NotPrivate { folder: self });
        }
        Ok(fd)
    }

    /// Opens the folder if it is there and is no symbolic link.
    pub(super) fn open_existing(self) -> io::Result<OwnedDescriptor> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        kernel::open(libc::AT_FDCWD, self.0.as_c_str(), flags, 0)
    }
}

/// Calls `each` with the id of every process of this user that has a registry file. Processes of other PID namespaces are
/// left out: this one cannot reach them by their numbers.
pub(crate) fn each_published(mut each: impl FnMut(u32)) {
    let Ok(own) = Publisher::of_this_process() else { return };
    let Some(found) = UserFolder::find(kernel::effective_user()) else { return };
    let Ok(opened) = folder::open(found.as_c_str()) else { return };
    let _ = folder::each_name(opened, |name| match Publisher::parse(name.to_bytes()) {
        Some(one) if one.namespace == own.namespace => each(one.pid),
        _ => {}
    });
    file::close(opened);
}

impl fmt::Display for FolderPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.as_c_str().to_string_lossy())
    }
}

impl fmt::Debug for FolderPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.as_c_str())
    }
}
